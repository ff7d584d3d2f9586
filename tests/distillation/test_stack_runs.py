"""Distillations of one stack from command to report: language models, and models of labels."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    GenerationConfig,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from jsonl import write_jsonl
from tiny_runs import as_flags, datasets_cache, leave_out_slow_parts
from toy_labels import TASKS, save_toy_classifier, save_toy_encoder, toy_rows, write_toy_rows
from toy_texts import write_texts
from vaswani.data.tokenization import load_tokenizers
from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.mixture import LossMixture
from vaswani.distillation.run import distill
from vaswani.distillation.stack_run import MaskedLMDistillation, TaskRun
from vaswani.distillation.student import student_from_teacher
from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.finetuning import LabelScores, finetune
from vaswani.training.runs.pretraining import pretrain
from vaswani.training.trainer.base import BaseTrainer

__all__ = ["datasets_cache"]

pytestmark = pytest.mark.slow
leave_out_slow_parts()

RUN: dict[str, Any] = {
    "max_length": 32,
    "max_tokens_per_batch": 400,
    "max_steps": 4,
    "learning_rate": 1e-2,
    "eval_strategy": "no",
    "use_cpu": True,
    "disable_tqdm": True,
}


TEACHERS_TEXTS = {"objective": "causal", "targets": "teacher"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stacks")


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[str, str]:
    return write_texts(folder, train=60, validation=10, test=10)


@pytest.fixture(scope="module")
def language_models(folder: Path, texts: dict[str, str]) -> dict[str, Path]:
    """A teacher of each objective, with four layers."""
    made = {}
    for objective, stack in (("masked", "encoder"), ("causal", "decoder")):
        shape = {f"{stack}_layers": 4, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 32, "d_model": 16}
        made[objective] = folder / objective
        options = {**RUN, **texts, **shape, "objective": objective, "vocab_size": 300}
        flags = as_flags({**options, "output_dir": made[objective]})
        pretrain(load_config(None, flags, PretrainingConfig))
    return made


def config_for(output: Path, **options: Any) -> Any:
    return load_config(None, as_flags({**RUN, **options, "output_dir": output}), DistillationConfig)


def resumes_to_the_same_bits(output: Path, **options: Any) -> None:
    """Train in halves what `output` holds."""
    half = output.with_name(f"{output.name}-half")
    distill(config_for(half, **options, save_steps=2, baseline=False))
    (half / "model.safetensors").unlink()
    (half / "checkpoint-4").rename(half.with_name(f"{half.name}-away"))
    distill(config_for(half, **options, save_steps=2, baseline=False, resume_from_checkpoint="true"))
    whole, resumed = (load_file(run / "model.safetensors") for run in (output, half))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_a_language_model_is_distilled(
    objective: str, language_models: dict[str, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    options = {**texts, "objective": objective, "teacher": language_models[objective]}
    comparison = distill(config_for(tmp_path / "run", **options))
    assert [model.role for model in comparison.models] == ["teacher", "student", "baseline"]
    assert comparison.models[1].parameters < comparison.models[0].parameters
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["parameter_ratio"] < 1
    scores = [model["scores"]["accuracy"]["value"] for model in report["models"]]
    assert report["difference"] == scores[1] - scores[0]
    recorded = [bool(read_settings(tmp_path / "run" / of)["teacher"]) for of in (".", "baseline")]
    assert recorded == [True, False]  # cards and comparisons call a model with a teacher distilled
    assert all(0 < each["p_value"] <= 1 for each in report["models"][1]["differences"].values())
    card = (tmp_path / "run" / "README.md").read_text()
    assert "## Distillation" in card
    assert "| difference from `teacher` | " in card
    student = load_checkpoint(tmp_path / "run", auto_class=None)[0]
    assert student.config.num_hidden_layers == 2
    resumes_to_the_same_bits(tmp_path / "run", **options)


def test_a_teacher_with_a_next_sentence_head_teaches_masked_tokens(
    language_models: dict[str, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    """As `pretrain --next_sentence true` writes them, and as BERT was published."""
    options = {**texts, "objective": "masked", "baseline": False}
    students = {}
    masked = AutoModelForMaskedLM.from_pretrained(language_models["masked"])
    both = AutoModelForPreTraining.from_config(masked.config)
    both.load_state_dict(masked.state_dict(), strict=False)
    teacher = shutil.copytree(language_models["masked"], tmp_path / "teacher")
    (teacher / "model_hashes.json").unlink()
    both.save_pretrained(teacher)
    for name, folder in (("masked", language_models["masked"]), ("both", teacher)):
        distill(config_for(tmp_path / name, **options, teacher=folder))
        students[name] = load_file(tmp_path / name / "model.safetensors")
    assert students["masked"].keys() == students["both"].keys()
    assert all(torch.equal(tensor, students["both"][name]) for name, tensor in students["masked"].items())


def test_a_run_that_resumes_finds_the_same_teacher(
    language_models: dict[str, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    teacher = shutil.copytree(language_models["masked"], tmp_path / "teacher")
    options = {**texts, "objective": "masked", "teacher": teacher, "save_steps": 2, "baseline": False}
    distill(config_for(tmp_path / "run", **options))
    weights = load_file(teacher / "model.safetensors")
    save_file({name: 1.01 * tensor for name, tensor in weights.items()}, teacher / "model.safetensors")
    (teacher / "model_hashes.json").unlink()
    with pytest.raises(UserError, match=r"the data changed since .* was saved \(teacher\)"):
        distill(config_for(tmp_path / "run", **options, resume_from_checkpoint="true"))


def test_a_teacher_for_regression_must_have_one_output(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    teacher, rows = classifiers["classification"][0], classifiers["regression"][1]
    options = {"task": "regression", "teacher": teacher, "dataset": rows}
    with pytest.raises(UserError, match="outputs, and task=regression needs one; give a teacher"):
        distill(config_for(tmp_path / "run", **options))


def test_relations_need_keys_as_wide_as_queries(tmp_path: Path) -> None:
    shape = {
        "vocab_size": 61,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
    }
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForSequenceClassification(config)
    objectives = DistillationObjectives(relation_weight=1.0, relation_heads=2)
    args = SimpleNamespace(tensor_parallel_size=1, device="cpu", gradient_checkpointing=False)
    trainer: Any = SimpleNamespace(model=model, args=args)
    with pytest.raises(
        UserError, match="queries and keys of one width, and those of LlamaModel have 16 and 8"
    ):
        LossMixture(trainer, model, objectives)


def test_a_causal_student_learns_its_teachers_texts_alone(
    language_models: dict[str, Path],
    texts: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {**texts, "objective": "causal", "teacher": language_models["causal"]}
    distill(config_for(tmp_path / "references", **options))
    options |= {"targets": "teacher", "soft_target_weight": 0, "cosine_weight": 0, "prompt_tokens": 10}
    options["teacher_cache"] = tmp_path / "cache"
    distill(config_for(tmp_path / "run", **options))
    lengths = [len(ids) for ids in encoded_texts(texts["train_file"], tmp_path / "run")]
    kept = sum(length <= 10 for length in lengths)
    assert 0 < kept < len(lengths)
    told = f"the teacher continues {len(lengths) - kept} of {len(lengths)} texts"
    with (tmp_path / "cache" / "texts" / "shard-000000").open() as shard:
        written = [json.loads(line) for line in list(shard)[1:]]
    assert [text is None for text in written] == [length <= 10 for length in lengths]
    ended = sum(text[1] for text in written if text is not None)
    printed = capsys.readouterr().out
    assert f"train: {told}, and ends {ended} of them; {kept} have no more than 10" in printed
    assert f"tokens ({told})" in json.loads((tmp_path / "run" / "corpus.json").read_text())["rows"]["train"]
    assert "soft_target_loss" not in (tmp_path / "run" / "trainer_state.json").read_text()
    baselines = [
        load_file(tmp_path / run / "baseline" / "model.safetensors") for run in ("references", "run")
    ]
    assert all(torch.equal(baselines[0][name], baselines[1][name]) for name in baselines[0])
    for folder in (tmp_path / "run", tmp_path / "run" / "baseline"):  # of the teacher's layers, and new
        assert GenerationConfig.from_pretrained(folder).max_length == RUN["max_length"]
    resumes_to_the_same_bits(tmp_path / "run", **{**options, "teacher_cache": tmp_path / "another"})


def encoded_texts(file: str, model: Path) -> list[list[int]]:
    """The tokens of each text of a file."""
    tokenizer = load_tokenizers(model)[0]
    lines = Path(file).read_text().splitlines()
    return [tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"] for line in lines]


@pytest.fixture(scope="module")
def classifiers(folder: Path) -> dict[str, tuple[Path, Path]]:
    """A teacher of each task and its rows."""
    made = {}
    encoder = save_toy_encoder(folder / "encoder", encoder_layers=2)
    for task in TASKS:
        rows = write_toy_rows(folder / task, task, train=60)
        options = {
            **RUN,
            "model": encoder,
            "task": task,
            "dataset": rows,
            "output_dir": folder / f"{task}-run",
        }
        finetune(load_config(None, as_flags(options), FinetuningConfig))
        made[task] = folder / f"{task}-run", rows
    return made


@pytest.mark.exhaustive(after=2)
@pytest.mark.parametrize("task", TASKS)
def test_a_model_that_predicts_labels_is_distilled(
    task: str,
    classifiers: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resampled = Mock(side_effect=LabelScores.resampled)
    monkeypatch.setattr(LabelScores, "resampled", lambda scores: resampled(scores))
    teacher, rows = classifiers[task]
    options: dict[str, Any] = {"task": task, "teacher": teacher, "dataset": rows}
    if task != "tagging":
        unlabelled = [{"text": row["text"]} for row in toy_rows(task, 20, 7)]
        options["unlabelled_file"] = write_jsonl(tmp_path / "unlabelled.jsonl", unlabelled)
    comparison = distill(config_for(tmp_path / "run", **options))
    assert [model.role for model in comparison.models] == ["teacher", "student", "baseline"]
    assert resampled.call_count == 3  # once for each; what is timed are predictions alone
    student = load_checkpoint(tmp_path / "run", auto_class=None)[0]
    assert student.config.num_hidden_layers == 1
    resumes_to_the_same_bits(tmp_path / "run", **options)


def test_a_student_with_all_layers_gives_a_warning(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    teacher, rows = classifiers["classification"]
    options = {"task": "classification", "teacher": teacher, "dataset": rows, "baseline": False}
    for layers in (1, 2):
        distill(config_for(tmp_path / str(layers), **options, student_layers=layers))
        told = [message for message in caplog.messages if "no fewer than its teacher's" in message]
        assert len(told) == layers - 1
    assert told[0].endswith("set student_layers to fewer layers, or start from a smaller folder")


def test_each_option_changes_the_student(
    classifiers: dict[str, tuple[Path, Path]],
    language_models: dict[str, Path],
    texts: dict[str, str],
    tmp_path: Path,
) -> None:
    teacher, rows = classifiers["classification"]
    unlabelled = write_jsonl(tmp_path / "unlabelled.jsonl", [{"text": "the film was awful"}] * 30)
    task = {"task": "classification", "teacher": teacher, "dataset": rows}
    masked = {**texts, "objective": "masked", "teacher": language_models["masked"]}
    causal = {**texts, "objective": "causal", "teacher": language_models["causal"]}
    another = tmp_path / "another"
    distill(config_for(another, **task, baseline=False, seed=5))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (task, {}),
        (task, {"unlabelled_file": unlabelled}),
        (task, {"student": "random"}),
        (task, {"student": another}),
        (task, {"student_layers": "1,0"}),
        (task, {"teacher": [teacher, another]}),
        (task, {"soft_target_weight": 0}),
        (task, {"cosine_weight": 0}),
        (task, {"temperature": 1}),
        (task, {"classifier_pooling": "mean"}),
        (masked, {}),
        (masked, {"soft_target_tokens": "masked"}),
        (masked, {"student_layers": "0,1"}),
        (masked, {"mask_probability": 0.4}),
        (causal, {}),
        (causal, {"targets": "both"}),
        (causal, {"targets": "teacher"}),
        (causal, {"targets": "teacher", "prompt_tokens": 4}),
        (causal, {"targets": "teacher", "generation_temperature": 0}),
        (causal, {"targets": "teacher", "generation_top_p": 0.3}),
    ]
    found = []
    for number, (options, change) in enumerate(cases):
        output = tmp_path / f"case-{number}"
        distill(config_for(output, **{**options, **change, "baseline": False}))
        weights = load_file(output / "model.safetensors")
        found.append((sum(tensor.double().sum() for tensor in weights.values()).item(), change))
    sums = [round(value, 9) for value, _ in found]
    assert len(set(sums)) == len(sums)


def test_a_teacher_of_pairs_gets_its_token_types(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The rows are encoded by the student's tokenizer."""
    teacher, student = (tmp_path / name for name in ("teacher", "student"))
    for folder, names in ((teacher, ["token_type_ids"]), (student, [])):
        shutil.copytree(classifiers["classification"][0], folder)
        (tokenizer,) = {*load_tokenizers(folder)}
        tokenizer.model_input_names = ["input_ids", "attention_mask", *names]
        tokenizer.save_pretrained(folder)
    rows = [{**row, "other": "the film"} for row in toy_rows("classification", 9, 1)]
    files = dict.fromkeys(("train_file", "validation_file"), write_jsonl(tmp_path / "pairs.jsonl", rows))
    options = {**files, "text_pair_field": "other", "task": "classification", "teacher": teacher}
    with pytest.raises(UserError, match=r"tells two texts apart by token_type_ids, which .*does not give"):
        TaskRun(config_for(tmp_path / "run", **options, student=student)).check()
    for student in ("teacher", teacher):
        TaskRun(config_for(tmp_path / "run", **options, student=student)).check()


def test_a_second_teacher_must_have_positions_for_the_rows(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    teacher, rows = classifiers["classification"]
    short = save_toy_classifier(tmp_path / "short", "classification", max_position_embeddings=20)
    options = {"task": "classification", "teacher": [teacher, short], "dataset": rows}
    with pytest.raises(UserError, match=r"max_length=32, but .*short has positions for 20 tokens"):
        distill(config_for(tmp_path / "run", **options))


def test_unlabelled_texts_that_are_left_out_or_cut_are_reported(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, rows = classifiers["classification"]
    unlabelled = [{"text": text} for text in ("a good film", "", "   ", "good " * 100)]
    file = write_jsonl(tmp_path / "unlabelled.jsonl", unlabelled)
    options = {"task": "classification", "teacher": teacher, "dataset": rows, "unlabelled_file": file}
    distill(config_for(tmp_path / "run", **options, baseline=False, max_steps=1))
    assert "unlabelled: kept 2 of 4 rows, 1 of them cut off; left out: 2 empty\n" in capsys.readouterr().out
    counts = json.loads((tmp_path / "run" / "corpus.json").read_text())["rows"]["train"]
    assert counts.endswith(", and 2 texts without labels")


def test_a_resumed_run_finds_its_unlabelled_texts_again(
    classifiers: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    teacher, rows = classifiers["classification"]
    unlabelled = write_jsonl(tmp_path / "unlabelled.jsonl", [{"text": "the film was awful"}] * 30)
    options = {"task": "classification", "teacher": teacher, "dataset": rows, "unlabelled_file": unlabelled}
    options |= {"save_steps": 2, "baseline": False}
    distill(config_for(tmp_path / "run", **options))
    (tmp_path / "run" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    write_jsonl(unlabelled, [{"text": "the film was awful"}] * 20)
    with pytest.raises(UserError, match=r"the data changed since .*\(unlabelled\)"):
        distill(config_for(tmp_path / "run", **options, resume_from_checkpoint="true"))


def test_a_teacher_whose_layers_share_weights_loses_none(tmp_path: Path) -> None:
    model = AlbertForMaskedLM(
        AlbertConfig(
            vocab_size=40, embedding_size=8, hidden_size=16, num_hidden_layers=4, num_attention_heads=2
        )
    )
    with pytest.raises(UserError, match="'albert' model shares weights between its 4 encoder layers"):
        student_from_teacher(model, encoder_layers=2)


def test_the_report_opens_no_repository(
    language_models: dict[str, Path],
    texts: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    monkeypatch.setattr(BaseTrainer, "init_hf_repo", lambda trainer, *_: opened.append(trainer.model))
    options = {**texts, "objective": "masked", "teacher": language_models["masked"], "baseline": False}
    pushed = {"push_to_hub": True, "hub_token": "hf_ada", "save_strategy": "no"}
    run = MaskedLMDistillation(config_for(tmp_path / "run", **options, **pushed))
    run.train_and_evaluate()
    run.report()
    assert [model.num_parameters() for model in opened] == [run.comparison.models[1].parameters]
    assert run.comparison.data == f"test of {Path(run.config.data.test_file[0]).name}"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"teacher": []}, "no teacher was given"),
        ({"soft_target_weight": 0, "cosine_weight": 0}, "nothing would be taken from the teacher"),
        ({"teacher": ["a", "b"], "cosine_weight": 1}, "hidden states of 2 teachers cannot be averaged"),
        ({"student_layers": "5"}, "student_layers=5 is impossible: the teacher has 4; give 1 to 4"),
        ({"student_layers": "0,4"}, "names layer 4, but the teacher's are 0 to 3"),
        ({"student": "no/such/student"}, "no/such/student"),
        ({"next_sentence": True}, "leave out next_sentence"),
        (
            {**TEACHERS_TEXTS, "teacher": ["a", "b"]},
            "takes texts of one teacher, and 2 were given",
        ),
        (
            {**TEACHERS_TEXTS, "prompt_tokens": 30},
            "prompt_tokens=30 leaves nothing to write in max_length=32.*29 or less",
        ),
        (
            {**TEACHERS_TEXTS, "streaming": True, "max_steps": 4},
            "targets=teacher keeps the teacher's texts .*leave out streaming",
        ),
        ({**TEACHERS_TEXTS, "teacher_cache": __file__}, "teacher_cache=.* is a file"),
    ],
)
def test_invalid_options_raise_an_error(
    options: dict[str, Any],
    told: str,
    language_models: dict[str, Path],
    texts: dict[str, str],
    tmp_path: Path,
) -> None:
    given = {**texts, "objective": "masked", **options}
    given = {"teacher": language_models[given["objective"]], **given}
    given = {name: value for name, value in given.items() if value != []}
    with pytest.raises(UserError, match=told):
        distill(config_for(tmp_path / "run", **given))


def test_a_teacher_of_another_class_or_other_labels_raises_an_error(
    classifiers: dict[str, tuple[Path, Path]], language_models: dict[str, Path], tmp_path: Path
) -> None:
    teacher, rows = classifiers["classification"]
    with pytest.raises(UserError, match="holds a VaswaniForMaskedLM; expected a model of AutoModelForS"):
        distill(
            config_for(tmp_path / "a", task="classification", teacher=language_models["masked"], dataset=rows)
        )
    others = write_toy_rows(tmp_path / "rows", "multi_label", train=60)
    with pytest.raises(UserError, match="tells the labels 'bad', 'good' apart"):
        TaskRun(config_for(tmp_path / "b", task="multi_label", teacher=teacher, dataset=others)).run()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("objective", "clozed", "objective=clozed is unknown; choose one of masked, causal$"),
        (
            "task",
            "rating",
            "task=rating is unknown; choose one of translation, summarization, classification",
        ),
        ("task", "tag", "task=tag is unknown; .*; did you mean 'tagging'"),
    ],
)
def test_an_invalid_objective_or_task_raises_an_error(field: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(None, [f"--{field}", value], DistillationConfig)
