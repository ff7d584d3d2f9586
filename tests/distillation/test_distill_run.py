"""Complete distillations of seconds: their files, the effect of each option on the student, and errors."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoConfig, AutoModelForSeq2SeqLM, BertConfig, BertModel

from jsonl import write_jsonl
from tiny_runs import resolved, weights
from vaswani.data.tokenization import load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.distillation.comparison import Comparison
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun, distill
from vaswani.distillation.student import save_student
from vaswani.distillation.teacher import Teacher
from vaswani.distillation.teacher_targets import TeacherTarget
from vaswani.errors import UserError
from vaswani.inference.translate.translation import Translator
from vaswani.training.config.config_file import load_config
from vaswani.training.trainer.resuming import check_resumable

QUICK = {"generation_num_beams": 1, "teacher_num_beams": 2, "max_target_length": 16, "max_steps": 3}
SOFT_TARGETS_ALONE = {"targets": "references", "label_weight": 0}
SEQUENCES_ALONE = {"soft_target_weight": 0}


@pytest.fixture
def options(tiny_run, teacher) -> dict:
    return {**tiny_run, **QUICK, "teacher": [str(teacher)], "baseline": "false"}


def run(options: dict, **more) -> Comparison | None:
    return distill(resolved({**options, **more}, DistillationConfig))


def student_of(options: dict, name: str, **more) -> torch.Tensor:
    """Weights of the student of a run in a separate folder, without test rows."""
    options = {**options, **more, "output_dir": f"{options['output_dir']}-{name}"}
    options.pop("test_file", None)
    options.pop("validation_file", None)
    run(options)
    return weights(options["output_dir"])


@pytest.mark.slow
def test_students_that_summarize_are_compared_by_rouge(options):
    cut = {"truncate": "true", "max_source_length": 9}
    comparison = run(options, baseline="false", task="summarization", max_steps=1, **cut)
    assert comparison.search["max_source_length"] == 9  # the teacher reads no more than the student
    assert comparison.metric == "rouge1"
    assert list(comparison.teacher.scores) == ["rouge1", "rouge2", "rougeL", "rougeLsum"]


@pytest.mark.slow
def test_a_distillation_leaves_a_student_a_baseline_and_a_report(options, teacher, capsys):
    comparison = run(options, baseline="true", teacher_top_k=8, retention_metric="chrf", max_test_rows=7)
    folder = Path(options["output_dir"])
    assert comparison.rows == json.loads((folder / "evaluation.json").read_text())["rows"] == 7
    student, baseline = (
        AutoModelForSeq2SeqLM.from_pretrained(path) for path in (folder, folder / "baseline")
    )
    assert student.config.to_diff_dict() == baseline.config.to_diff_dict()
    assert load_tokenizers(folder)[0].get_vocab() == load_tokenizers(teacher)[0].get_vocab()
    assert not torch.equal(weights(folder), weights(folder / "baseline"))

    report = json.loads((folder / "report.json").read_text())
    assert report["metric"] == "chrf"
    assert {"retention", "parameter_ratio", "speedup", "baseline_quality"} <= report.keys()
    teachers = AutoModelForSeq2SeqLM.from_pretrained(teacher)
    assert report["parameter_ratio"] == pytest.approx(student.num_parameters() / teachers.num_parameters())
    assert [model.role for model in comparison.models] == ["teacher", "student", "baseline"]
    assert all(model.weight_bytes > 4 * model.parameters for model in comparison.models)
    assert (folder / "quality_speed.png").stat().st_size > 1000

    printed = capsys.readouterr().out
    assert "rows have the teacher's translation" in printed
    assert "bytes per token" in printed
    assert (folder / "report.md").read_text() in printed
    card = (folder / "README.md").read_text()
    assert (folder / "report.md").read_text().strip() in card
    assert "(quality_speed.png)" in card
    assert "- knowledge-distillation" in card
    assert str(folder.parent) not in card  # nothing of this machine
    saved = yaml.safe_load((folder / "training_config.yaml").read_text())
    assert saved["teacher_top_k"] == 8
    assert load_config(folder / "training_config.yaml", [], DistillationConfig).distillation.teacher == [
        str(teacher)
    ]


@pytest.mark.slow
def test_student_and_baseline_are_the_means_of_their_checkpoints(options):
    run(options, baseline="true", average_checkpoints=2, save_steps=2, cosine_weight=1)
    for folder in (Path(options["output_dir"]), Path(options["output_dir"]) / "baseline"):
        every = [weights(path) for path in folder.glob("checkpoint-*")]
        assert len(every) == 2
        assert not torch.equal(*every)
        assert torch.equal(weights(folder), (sum(each.double() for each in every) / 2).float())


@pytest.mark.slow
@pytest.mark.parametrize("words", ["one two three", "eins zwei drei"])
def test_a_student_shares_embeddings_if_its_teacher_has_one_vocabulary(options, teacher, words):
    """The tokens decide: source and target vocabularies have the same size in both cases."""
    source, target = (train_tokenizer([text] * 4, 262) for text in ("one two three", words))
    config = resolved(options, DistillationConfig)
    distillation = DistillationRun(config)
    distillation.teacher = Teacher(AutoModelForSeq2SeqLM.from_pretrained(teacher), source, target)
    shape = distillation.build_model((source, target)).config
    assert shape.vocab_size == shape.decoder_vocab_size
    assert shape.share_encoder_decoder_embeddings is (words == "one two three")


@pytest.mark.slow
def test_every_choice_of_targets_changes_the_student(options):
    students = [
        student_of(options, targets, targets=targets) for targets in ("references", "teacher", "both")
    ]
    assert not torch.equal(students[0], students[1])
    assert not torch.equal(students[1], students[2])
    other_search = student_of(options, "other search", teacher_num_beams=1)
    assert not torch.equal(students[1], other_search)


@pytest.mark.slow
def test_the_teacher_translates_sources_without_targets(options, dates, tmp_path, capsys):
    rows = [json.loads(line) for line in Path(dates["train_file"]).read_text().splitlines()]
    sources = tmp_path / "sources.txt"
    sources.write_text("\n".join([*(row["source"] for row in rows[:40]), "", " "]) + "\n")
    unlabelled = {"unlabelled_file": str(sources)}
    first, *others = (
        student_of(options, name, **more)
        for name, more in {
            "no more": {},
            "more": unlabelled,
            "more beside references": {**unlabelled, "targets": "both"},
        }.items()
    )
    printed = capsys.readouterr().out
    assert "unlabelled: kept 40 of 42 rows; left out: 2 empty" in printed
    assert "of 136 rows have the teacher's translation" in printed
    assert not any(torch.equal(first, other) for other in others)
    assert not torch.equal(*others)


@pytest.mark.slow
def test_a_student_needs_no_references(options, dates, teacher, tmp_path, capsys):
    """It learns the same from sources alone, but for those whose translation is cut off."""
    rows = [json.loads(line) for line in Path(dates["train_file"]).read_text().splitlines()]
    translator = Translator.from_pretrained(teacher, num_beams=2, max_length=16)
    found = translator.translate([row["source"] for row in rows])
    whole = [row for row, each in zip(rows, found, strict=True) if each.hypotheses[0].complete and each.text]
    assert len(whole) > 0
    pairs = write_jsonl(tmp_path / "pairs.jsonl", whole)
    sources = write_jsonl(tmp_path / "sources.jsonl", [{"source": row["source"]} for row in rows])
    expected = student_of({**options, "train_file": str(pairs)}, "pairs")
    del options["train_file"]
    options |= {"validation_file": dates["validation_file"], "eval_strategy": "no"}
    student_of_sources = {**options, "unlabelled_file": str(sources), "output_dir": str(tmp_path / "run")}
    run(student_of_sources)
    assert torch.equal(weights(tmp_path / "run"), expected)
    assert f"train: {len(whole)} of 96 rows have the teacher's translation" in capsys.readouterr().out
    with pytest.raises(UserError, match="or set baseline to false"):
        run(student_of_sources, output_dir=tmp_path / "other", baseline="true")
    own = {"vocabulary": "own", **SEQUENCES_ALONE}
    with pytest.raises(UserError, match="vocabulary=own needs training rows with targets"):
        run(student_of_sources, output_dir=tmp_path / "other", **own)


@pytest.mark.slow
def test_the_cache_trains_as_the_live_teacher_does_as_k_grows(options):
    options |= {**SOFT_TARGETS_ALONE, "optim": "sgd", "learning_rate": 0.1}  # steps as large as the gradients
    live = student_of(options, "live")
    distances = [
        float((student_of(options, f"top {k}", teacher_top_k=k) - live).abs().max()) for k in (1, 8, 64, 300)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 1e-3
    assert distances[-1] < 1e-4  # k is the whole vocabulary; what is left is the rounding to 16 bits


@pytest.mark.slow
def test_a_student_can_start_from_the_teachers_layers_or_a_folder(options, teacher, tmp_path):
    save_student(teacher, tmp_path / "student", encoder_layers=1, decoder_layers=1)
    fresh = student_of(options, "random", max_steps=1)
    shrunk = student_of(options, "teacher", student="teacher", max_steps=1)
    given = student_of(options, "folder", student=tmp_path / "student", max_steps=1)
    assert torch.equal(shrunk, given)  # which keeps the first layer of each stack
    assert not torch.equal(fresh, shrunk)


def test_a_student_with_its_own_vocabulary_learns_from_sequences(options, teacher):
    student_of(options, "own", vocabulary="own", vocab_size=280, **SEQUENCES_ALONE)
    own = load_tokenizers(f"{options['output_dir']}-own")[0]
    assert len(own) == 280 != len(load_tokenizers(teacher)[0])


@pytest.mark.slow
def test_several_teachers_are_averaged(options, teacher, tmp_path):
    save_student(teacher, tmp_path / "second", encoder_layers=1)
    both = [str(teacher), str(tmp_path / "second")]
    one, two, other_order = (
        student_of(options, name, teacher=teachers, **SOFT_TARGETS_ALONE)
        for name, teachers in {"one": both[:1], "two": both, "order": both[::-1]}.items()
    )
    assert not torch.allclose(one, two, atol=1e-4)
    torch.testing.assert_close(two, other_order, rtol=1e-3, atol=1e-4)
    report = run(options, teacher=both)  # its translations, too, and a report on them
    assert report is not None
    assert report.teacher.name == "2 teachers"
    assert report.data.startswith("test of ")


@pytest.mark.slow
def test_a_teacher_given_as_a_configuration_is_trained_once(options, teacher, tmp_path, capsys, caplog):
    config = tmp_path / "teacher.yaml"
    lines = yaml.safe_load((teacher / "training_config.yaml").read_text())
    lines = {name: value for name, value in lines.items() if not name.endswith("_file")}  # this run's corpus
    lines |= {"output_dir": str(tmp_path / "trained"), "max_steps": 2, "dataset": "dates"}
    config.write_text(yaml.safe_dump(lines))
    first = student_of(options, "first", teacher=str(config))
    assert "training the teacher" in capsys.readouterr().out
    second = student_of(options, "second", teacher=str(config))
    assert "training the teacher" not in capsys.readouterr().out
    assert torch.equal(first, second)

    assert "is used as it is" not in caplog.text
    config.write_text(yaml.safe_dump(lines | {"seed": 3}))
    student_of(options, "third", teacher=str(config))
    assert "was trained with seed=42 and is used as it is" in caplog.text


@pytest.mark.slow
def test_a_baseline_starts_from_the_students_initial_folder(options, teacher):
    del options["test_file"], options["validation_file"]
    run(options, student=str(teacher), baseline="true", learning_rate=1e-9, targets="references")
    for folder in (Path(options["output_dir"]), Path(options["output_dir"]) / "baseline"):
        assert torch.allclose(weights(folder), weights(teacher), atol=1e-6)


def test_ignored_model_options_of_a_student_folder_are_reported(options, teacher, capsys):
    del options["test_file"], options["validation_file"]
    options |= {"student": str(teacher), "targets": "references", "max_steps": 1, "save_strategy": "no"}
    run(options, d_model=640, dropout=0.45)
    kept = json.loads((Path(options["output_dir"]) / "config.json").read_text())
    told = f"student={teacher} keeps its own fields: d_model={kept['d_model']} (not 640), dropout="
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_a_resumed_baseline_is_trained_and_averaged_as_its_student(options):
    del options["test_file"], options["validation_file"]
    options |= {"baseline": "true", "generation_num_beams": 1, "save_steps": 2, "targets": "references"}
    run(options, max_steps=2)
    run(options, max_steps=4, resume_from_checkpoint="true")
    folder = Path(options["output_dir"])
    for trained in (folder, folder / "baseline"):
        assert json.loads((trained / "trainer_state.json").read_text())["global_step"] == 4
    run(options, max_steps=4, average_checkpoints=2, resume_from_checkpoint="true")
    for trained in (folder, folder / "baseline"):
        assert (trained / "averaged.json").exists()
    with pytest.raises(UserError, match=r"cannot change temperature=2\.0 "):
        run(options, max_steps=4, resume_from_checkpoint="true", temperature=2)
    moved = folder.parent / "teacher's outputs"
    options |= {"max_steps": 4, "teacher_cache": moved}
    changed = DistillationRun(resolved(options, DistillationConfig))
    check_resumable(folder / "checkpoint-4", changed.config)
    changed.teacher = Teacher(AutoModelForSeq2SeqLM.from_pretrained(options["teacher"][0]), None, None)
    assert changed._open_cache("targets", []).folder == moved / "targets"


@pytest.fixture
def library_teacher(teacher, tmp_path) -> Callable[..., Path]:
    """Saves a library's model of a kind with random weights, and the tokenizers of the other teacher."""

    def save(kind: str, max_positions: int = 128) -> Path:
        tokenizers = load_tokenizers(teacher)
        torch.manual_seed(0)
        shape = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": len(tokenizers[0])}
        shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
        shape |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": max_positions}
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
        config = AutoConfig.for_model(kind, **shape, **ids)
        AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / kind)
        save_tokenizers(*tokenizers, tmp_path / kind)
        return tmp_path / kind

    return save


@pytest.mark.slow
def test_a_library_teacher_is_given_by_its_folder_alone(options, library_teacher):
    comparison = run(options, teacher=library_teacher("marian"), teacher_top_k=4, max_source_length=100)
    student = AutoModelForSeq2SeqLM.from_pretrained(options["output_dir"])
    assert student.config.model_type == "vaswani"
    assert student.config.decoder_start_token_id == 0
    assert comparison.students[0].parameters == student.num_parameters()


@pytest.mark.slow
def test_a_student_of_library_layers_has_the_library_model_type(options, library_teacher):
    options |= {"teacher": library_teacher("bart"), "student": "teacher", "baseline": "true"}
    comparison = run(options, max_source_length=100)
    student = AutoModelForSeq2SeqLM.from_pretrained(options["output_dir"])
    assert student.config.model_type == "bart"
    assert student.config.encoder_layers == 1
    assert comparison.baseline.parameters == student.num_parameters()


# ------------------------------------------------------------------------------------------- what cannot work


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"teacher": None}, "no teacher was given"),
        ({"teacher": "nowhere/at/all"}, "does not exist|no such"),
        ({"temperature": 0}, "temperature=0.0 must be above 0"),
        ({"soft_target_weight": -1}, "soft_target_weight=-1.0 must be at least 0"),
        ({"divergence": "kl"}, "divergence=kl is unknown; choose one of forward_kl"),
        ({"label_weight": 0, "soft_target_weight": 0}, "nothing to train for"),
        ({"targets": "references", "soft_target_weight": 0}, "nothing would be taken from the teacher"),
        (
            {"unlabelled_file": "x", "targets": "references"},
            "unlabelled_file=x has no targets but the teacher",
        ),
        ({"unlabelled_file": "no.txt"}, "no such file: no.txt"),
        ({"vocabulary": "own"}, "vocabulary=own has other tokens than the teacher.*targets=teacher"),
        ({"vocabulary": "own", "student": "teacher"}, "vocabulary=own needs student=random"),
        ({"teacher_top_k": 0}, "teacher_top_k=0 must be at least 1"),
        ({"teacher_top_k": 301}, "301.*300"),
        ({"teacher_top_k": 4, "cosine_weight": 1}, "teacher_top_k keeps distributions alone"),
        ({"teacher_top_k": 4, "bpe_dropout": 0.1}, "bpe_dropout splits words anew"),
        ({"retention_metric": "meteor"}, "retention_metric=meteor is unknown; choose one of bleu"),
        (
            {"retention_metric": "rouge1"},
            "rouge1 is not a metric of task=translation; choose one of bleu, chrf",
        ),
        ({"retention_metric": "bleu", "task": "summarization"}, "bleu is not a metric of task=summarization"),
        ({"relation_weight": 1, "relation_heads": 3}, "relation_heads=3 does not divide the width 16"),
        ({"student": "teacher", "encoder_layers": 3}, "encoder_layers=3 is impossible: the teacher has 2"),
        ({"student": "teacher", "d_model": 24}, "d_model is 16, not 24; leave d_model out"),
        ({"streaming": "true"}, "reads its corpus more than once; leave out streaming"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options_raise_a_one_line_error_and_write_no_model(options, wrong, message):
    with pytest.raises(UserError, match=message) as error:
        run({name: value for name, value in {**options, **wrong}.items() if value is not None})
    assert "\n" not in str(error.value)
    assert not (Path(options["output_dir"]) / "model.safetensors").exists()


@pytest.mark.slow
def test_a_student_with_other_tokens_cannot_learn_distributions(options, tmp_path):
    student_of(options, "other", vocabulary="own", vocab_size=280, **SEQUENCES_ALONE)
    other = f"{options['output_dir']}-other"
    with pytest.raises(UserError, match=r"different source vocabularies, such as .*; .*by sequences"):
        run(options, student=other)
    student_of(options, "by sequences", student=other, **SEQUENCES_ALONE)


def test_a_cache_of_another_teacher_is_refused(options, teacher, tmp_path):
    cache = {"teacher_cache": str(tmp_path / "cache")}
    student_of(options, "first", **cache)
    save_student(teacher, tmp_path / "second", encoder_layers=1)
    with pytest.raises(UserError, match="teacher"):
        run(options, teacher=tmp_path / "second", **cache)
    with pytest.raises(UserError, match="num_beams"):
        run(options, teacher_num_beams=1, **cache)


def test_rows_beyond_a_teachers_positions_are_found_before_the_training(options, library_teacher):
    options |= {"teacher": library_teacher("marian", max_positions=16), "targets": "references"}
    with pytest.raises(
        UserError, match="the teacher has positions for 16 source tokens, and a row of train has"
    ):
        run(options)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["targets", "logits"])
def test_a_truncated_shard_is_reported_and_recomputed(options, tmp_path, outputs, caplog):
    options |= {"teacher_cache": str(tmp_path / "cache"), "teacher_top_k": 4}
    whole = student_of(options, "whole")
    (shard,) = (tmp_path / "cache" / outputs).glob("shard-*")
    shard.write_bytes(shard.read_bytes()[:-7])
    assert torch.equal(student_of(options, "mended"), whole)
    assert f"{shard} is damaged and is computed again." in caplog.messages


def test_a_teacher_of_another_kind_is_refused(options, tmp_path):
    config = BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(UserError, match="type 'bert', which does not translate; expected an encoder-decoder"):
        run(options, teacher=tmp_path / "bert")


@pytest.mark.slow
def test_a_new_run_in_the_folder_of_another_is_refused(options):
    run(options)
    with pytest.raises(UserError, match="already holds a run"):
        run(options)


@pytest.mark.parametrize("targets", ["teacher", "both"])
def test_a_teacher_that_translates_nothing_is_an_error(options, targets):
    message = (
        "0 of 96 rows have .*; for 96 it is empty, or cut off at max_target_length=3; raise max_target_length"
    )
    with pytest.raises(UserError, match=message):
        run(options, targets=targets, max_target_length=3, **SEQUENCES_ALONE)


@pytest.mark.parametrize(
    ("targets", "usable", "kept", "weights"),
    [("teacher", 30, 96, SEQUENCES_ALONE), ("both", 30, 126, SEQUENCES_ALONE), ("both", 0, 96, {})],
)
def test_a_teacher_that_translates_few_rows_is_reported(
    options, targets, usable, kept, weights, monkeypatch, caplog
):
    found = [TeacherTarget("one", row < usable, None) for row in range(96)]
    monkeypatch.setattr("vaswani.distillation.run.read_targets", lambda cache: found)
    student_of(options, "few", targets=targets, max_target_length=64, **weights)
    counted = f"the teacher translates {usable} of 96 sources"
    assert any(message.startswith(counted) for message in caplog.messages)
    folder = Path(f"{options['output_dir']}-few")
    rows = json.loads((folder / "corpus.json").read_text())["rows"]["train"]
    assert rows == f"kept {kept} of {kept} rows ({counted})"
    assert rows in (folder / "README.md").read_text()
