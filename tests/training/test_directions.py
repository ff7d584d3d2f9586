"""Trainings of one model in several directions, from a table with a column for each language."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest
import torch
import yaml

from in_process import outcome
from jsonl import write_jsonl
from rank_processes import train_in_processes
from tiny_runs import TINY_RUN, as_flags, leave_out_slow_parts, resolved, weights
from vaswani import Translator
from vaswani.data.sources.dates import generate_dates
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import NUM_BYTES, SPECIAL_TOKENS, load_tokenizers
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun, distill
from vaswani.errors import UserError
from vaswani.hub.hashes import HASHES
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import ContinuedRun, TrainingRun, train

leave_out_slow_parts()

WORDS = {"digits": ["1", "2", "3"], "en": ["one", "two", "three"], "de": ["eins", "zwei", "drei"]}
DIRECTIONS = ["digits-en", "digits-de"]
TAGS = [">>en<<", ">>de<<"]


def rows_of_numbers(count: int, seed: int) -> Iterator[dict[str, str]]:
    generator = random.Random(seed)
    for _ in range(count):
        number = generator.choices(range(3), k=generator.randint(4, 5))
        yield {language: " ".join(words[digit] for digit in number) for language, words in WORDS.items()}


def write_table(folder: Path, train_rows: int = 60) -> Path:
    """A folder with a table of numbers for each split; two rows of the test lack a language each."""
    folder.mkdir(parents=True)
    for seed, (split, count) in enumerate({"train": train_rows, "validation": 6, "test": 12}.items()):
        rows = list(rows_of_numbers(count, seed))
        if split == "test":
            rows[0]["de"] = ""
            del rows[1]["en"]
        write_jsonl(folder / f"{split}.jsonl", rows)
    return folder


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A run of a second."""
    run = {**TINY_RUN, "output_dir": tmp_path / "run", "eval_strategy": "no", "evaluate_test": False}
    return {**run, "dataset": str(write_table(tmp_path / "table")), "directions": DIRECTIONS}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has learned both directions, beside its table."""
    folder = tmp_path_factory.mktemp("learned")
    options = {**TINY_RUN, "d_model": 32, "max_steps": 120, "learning_rate": 1e-2, "warmup_steps": 10}
    options |= {
        "dropout": 0,
        "logging_steps": 60,
        "eval_steps": 60,
        "save_steps": 120,
        "generation_num_beams": 1,
    }
    options |= {"dataset": str(write_table(folder / "table", 200)), "directions": DIRECTIONS}
    options |= {"language": ["en", "de"], "eval_strategy": "steps"}
    train(resolved({**options, "output_dir": folder / "run"}))
    return folder


@pytest.mark.slow
def test_the_tag_decides_the_language(learned: Path) -> None:
    source = "3 1 2 2"
    for language in ("en", "de"):
        translator = Translator.from_pretrained(
            learned / "run", source_prefix=f">>{language}<< ", num_beams=1
        )
        (text,) = translator([source])
        assert text.split()[0] == WORDS[language][2]
        assert set(text.split()) <= set(WORDS[language])


@pytest.mark.slow
def test_the_score_of_a_direction_is_that_of_its_evaluation(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = json.loads((learned / "run" / "evaluation.json").read_text())
    logged = json.loads((learned / "run" / "test_results.json").read_text())
    assert evaluation["rows"] == 24 - 2
    assert list(evaluation["directions"]) == ["bleu_digits-en", "bleu_digits-de"]
    for language in ("en", "de"):
        score = evaluation["directions"][f"bleu_digits-{language}"]
        data = ["--data", learned / "table", "--source_field", "digits", "--target_field", language]
        more = [*data, "--source_prefix", f">>{language}<< ", "--device", "cpu", "--json"]
        status, output, errors = outcome(capsys, "evaluate", "--model", learned / "run", *more)
        assert status == 0, errors
        assert json.loads(output.splitlines()[-1])["bleu"] == pytest.approx(score)
        assert score == logged[f"test_bleu_digits-{language}"] > 0
    of_training = json.loads((learned / "run" / "trainer_state.json").read_text())["log_history"]
    assert any("eval_bleu_digits-en" in entry and "eval_bleu" in entry for entry in of_training)


@pytest.mark.slow
def test_without_columns_all_directions_are_evaluated(
    learned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "evaluate",
        "--model",
        learned / "run",
        "--data",
        learned / "table",
        "--device",
        "cpu",
        "--json",
    ]
    status, output, errors = outcome(capsys, *command)
    assert status == 0, errors
    evaluation = json.loads((learned / "run" / "evaluation.json").read_text())
    assert json.loads(output.splitlines()[-1])["bleu"] == pytest.approx(
        evaluation["metrics"]["bleu"]["value"]
    )
    assert "all directions of the training together (digits-en, digits-de)" in errors
    assert "--source_field digits --target_field en --source_prefix '>>en<< '" in errors
    status, _, errors = outcome(capsys, *command, "--source_prefix", ">>de<< ")
    assert status == 2
    assert "--source_prefix='>>de<< ' is for one direction" in errors
    status, _, errors = outcome(capsys, *command, "--source_field", "digits")
    assert status == 2
    assert "no field 'target'" in errors


@pytest.mark.slow
def test_a_run_tells_its_directions(learned: Path) -> None:
    run = learned / "run"
    assert yaml.safe_load((run / "training_config.yaml").read_text())["directions"] == DIRECTIONS
    assert json.loads((run / "tokenizer_config.json").read_text())["source_tags"] == TAGS
    assert "1 empty, 1 mispaired" in json.loads((run / "corpus.json").read_text())["rows"]["test"]
    (tag,) = TextCodec(load_tokenizers(run)[0]).token_ids([TAGS[0]], add_special_tokens=False)
    assert len(tag) == 1
    card = (run / "README.md").read_text()
    assert "to predict one column of a row from another (`digits-en`, `digits-de`)" in card
    assert "By direction: bleu_digits-en " in card
    assert "`>>en<<`, `>>de<<`" in card


def by_hand(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a training on tagged sources that are written into a file."""
    table = Path(options["dataset"])
    rows = map(json.loads, (table / "train.jsonl").read_text().splitlines())
    tagged = [
        {"source": f">>{language}<< {row['digits']}", "target": row[language]}
        for row in rows
        for language in ("en", "de")
    ]
    file = write_jsonl(table.parent / "tagged.jsonl", tagged)
    rest = {name: value for name, value in options.items() if name not in ("dataset", "directions")}
    return {**rest, "train_file": str(file), "source_tags": TAGS, "output_dir": table.parent / "by hand"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"bpe_dropout": 0.2}, {"streaming": True}, {"shared_vocab": False}], ids=str
)
def test_a_run_learns_what_tags_written_by_hand_teach(options: dict[str, Any], more: dict[str, Any]) -> None:
    options |= more
    train(resolved(options))
    train(resolved(by_hand(options)))
    assert torch.equal(weights(options["output_dir"]), weights(by_hand(options)["output_dir"]))


@pytest.mark.slow
def test_a_resumed_run_learns_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    train(resolved(options))
    begun = options["output_dir"] / "checkpoint-3"
    train(resolved({**options, "output_dir": tmp_path / "resumed", "resume_from_checkpoint": str(begun)}))
    assert torch.equal(weights(options["output_dir"]), weights(tmp_path / "resumed"))
    other = {"directions": DIRECTIONS[::-1], "resume_from_checkpoint": str(begun)}
    with pytest.raises(UserError, match="directions="):
        train(resolved({**options, **other, "output_dir": tmp_path / "other"}))


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_learn_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    options |= {"dropout": 0.0, "evaluate_test": True, "max_target_length": 8}
    for processes in (1, 2):
        accumulated = {"gradient_accumulation_steps": 2 // processes, "output_dir": tmp_path / str(processes)}
        train_in_processes(options | accumulated, processes)
    one, two = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in "12")
    assert one["directions"].keys() == two["directions"].keys() == {"bleu_digits-en", "bleu_digits-de"}
    assert torch.allclose(weights(tmp_path / "1"), weights(tmp_path / "2"), atol=1e-4)


# What contradicts the directions.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_field", "en"),
        ("target_field", "de"),
        ("source_tags", [">>de<<"]),
        ("source_prefix", ">>de<< "),
        ("source_language", "en"),
        ("target_language", "de"),
    ],
)
def test_directions_exclude_what_they_decide(name: str, value: Any, options: dict[str, Any]) -> None:
    if name in ("source_prefix", "source_language", "target_language"):
        options = {name: options[name] for name in ("dataset", "directions", "output_dir")} | {"model": "m"}
    with pytest.raises(UserError, match=re.escape(f"directions and {name}={value} were both given")):
        resolved({**options, name: value})
    with pytest.raises(UserError, match=f"{name}=.* (has no effect with directions|were both given)"):
        load_config(None, as_flags({**options, name: value}))


def test_the_default_columns_have_no_effect_either(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="source_field=source has no effect with directions; leave it out"):
        load_config(None, as_flags({**options, "source_field": "source"}))


def test_flags_replace_the_columns_of_a_file_and_the_other_way_round(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("dataset: table\nsource_field: en\ntarget_field: de\nsource_tags: ['>>x<<']\n")
    data = load_config(file, ["--directions", "en-fr", "fr-en"]).data
    assert (data.directions, data.source_field, data.tags) == (
        ["en-fr", "fr-en"],
        "source",
        [">>fr<<", ">>en<<"],
    )
    file.write_text("dataset: table\ndirections: [en-fr]\n")
    data = load_config(file, ["--source_field", "en", "--target_field", "fr"]).data
    assert (data.directions, data.source_field, data.tags) == ([], "en", [])


def test_malformed_directions_are_refused_with_the_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="directions=en-en has the same column twice"):
        resolved({**options, "directions": ["en-en"]})


def test_a_vocabulary_without_room_for_the_tags_is_refused(options: dict[str, Any]) -> None:
    options["vocab_size"] = size = NUM_BYTES + len(SPECIAL_TOKENS)
    with pytest.raises(
        UserError, match=f"vocab_size={size} is too small: .* give vocab_size={size + 2} or more"
    ):
        TrainingRun(resolved(options)).check()
    TrainingRun(resolved({**options, "directions": [], "source_field": "en", "target_field": "de"})).check()


def test_a_direction_without_rows_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    rows = [{**row, "fr": ""} for row in rows_of_numbers(3, 0)]
    (tmp_path / "few").mkdir()
    options["dataset"] = str(write_jsonl(tmp_path / "few" / "train.jsonl", rows).parent)
    with pytest.raises(UserError, match="directions=en-fr: no training row has text in both columns"):
        train(resolved({**options, "directions": ["en-de", "en-fr"]}))


# Given tokenizers, models and teachers.


@pytest.fixture(scope="module")
def untagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has no tags."""
    folder = tmp_path_factory.mktemp("untagged")
    generate_dates("de", train_rows=20, validation_rows=0, test_rows=0)["train"].to_json(
        folder / "rows.jsonl"
    )
    options = {**TINY_RUN, "max_steps": 1, "eval_strategy": "no", "train_file": str(folder / "rows.jsonl")}
    train(resolved({**options, "output_dir": folder / "run"}))
    return folder / "run"


NO_TAGS = "directions: the tokenizer has no tags and no token >>en<<"


@pytest.mark.slow
def test_a_model_without_the_tags_is_not_compared_in_all_directions(
    learned: Path, untagged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", learned / "table", "--max_rows", 2, "--max_length", 8, "--device", "cpu"]
    status, _, errors = outcome(capsys, "compare", untagged, learned / "run", *data)
    assert status == 2
    assert f"{untagged} has no token >>en<<; compare models of the same directions" in errors


@pytest.mark.slow
def test_a_given_tokenizer_must_have_the_tags(options: dict[str, Any], untagged: Path, learned: Path) -> None:
    with pytest.raises(UserError, match=NO_TAGS):
        train(resolved({**options, "tokenizer": str(untagged)}))
    with pytest.raises(UserError, match="has tags such as '>>de<<', '>>en<<' and no token >>digits<<"):
        train(resolved({**options, "tokenizer": str(learned / "run"), "directions": ["en-digits"]}))
    train(resolved({**options, "tokenizer": str(learned / "run")}))
    found, given = (TextCodec(load_tokenizers(each)[0]) for each in (options["output_dir"], learned / "run"))
    assert found.vocabulary() == given.vocabulary()


@pytest.mark.slow
@pytest.mark.parametrize("option", ["tokenizer", "model"])
def test_a_run_states_tags_that_the_given_tokenizer_has_only_as_tokens(
    option: str, options: dict[str, Any], learned: Path, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    copytree(learned / "run", given, ignore=ignore_patterns("checkpoint-*", HASHES))
    settings = json.loads((given / "tokenizer_config.json").read_text())
    del settings["source_tags"]
    (given / "tokenizer_config.json").write_text(json.dumps(settings))
    names = "dataset", "output_dir", "directions", "evaluate_test", "eval_strategy", "use_cpu", "disable_tqdm"
    rest = options if option == "tokenizer" else {name: options[name] for name in names}
    config = resolved({**rest, option: str(given), "max_steps": 1})
    (TrainingRun if option == "tokenizer" else ContinuedRun)(config).run()
    made = json.loads((options["output_dir"] / "tokenizer_config.json").read_text())
    assert made["source_tags"] == TAGS


@pytest.mark.slow
def test_a_trained_model_continues_in_directions(
    options: dict[str, Any], untagged: Path, learned: Path
) -> None:
    rest = {
        name: options[name] for name in ("dataset", "output_dir", "evaluate_test", "use_cpu", "disable_tqdm")
    }
    rest |= {"directions": ["en-de"], "eval_strategy": "no", "max_steps": 1, "learning_rate": 1e-3}
    with pytest.raises(UserError, match=NO_TAGS.replace(">>en", ">>de")):
        ContinuedRun(resolved({**rest, "model": str(untagged)})).run()
    config = resolved({**rest, "model": str(learned / "run")})
    ContinuedRun(config).run()
    settings = json.loads((options["output_dir"] / "tokenizer_config.json").read_text())
    assert settings["source_tags"] == TAGS


@pytest.mark.slow
def test_a_student_learns_the_directions_of_its_teacher(
    options: dict[str, Any], untagged: Path, learned: Path
) -> None:
    options |= {"max_steps": 2, "evaluate_test": True, "teacher_num_beams": 1, "generation_num_beams": 1}
    options |= {"baseline": False, "max_target_length": 8, "max_test_rows": 4}

    def student(**more: Any) -> Any:
        return resolved({**options, **more}, DistillationConfig)

    teacher = str(learned / "run")
    with pytest.raises(UserError, match="directions and source_prefix were both given"):
        DistillationRun(student(teacher=teacher, source_prefix=">>en<< ")).check()
    with pytest.raises(UserError, match=NO_TAGS):
        distill(student(teacher=str(untagged)))
    with pytest.raises(UserError, match=NO_TAGS):  # the student has them, and its teacher has not
        distill(student(teacher=str(untagged), vocabulary="own", soft_target_weight=0))
    assert distill(student(teacher=teacher)) is not None
    assert (
        yaml.safe_load((options["output_dir"] / "training_config.yaml").read_text())["directions"]
        == DIRECTIONS
    )


def test_a_run_without_directions_has_no_tags() -> None:
    assert load_config(None, ["--dataset", "dates"], RunConfig).data.tags == []


@pytest.mark.slow
def test_texts_without_targets_need_tags_of_their_own(
    options: dict[str, Any], learned: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Path(options["dataset"], "train.jsonl").unlink()
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{tag} {row['digits']}\n" for row in rows_of_numbers(8, 5) for tag in TAGS))
    options |= {"max_steps": 1, "teacher": str(learned / "run"), "teacher_num_beams": 1, "baseline": False}
    options |= {"unlabelled_file": str(texts), "max_target_length": 8, "soft_target_weight": 0}
    distill(resolved(options, DistillationConfig))
    assert "none of the tags" not in caplog.text
    texts.write_text(texts.read_text().replace(">>de<< ", ""))
    distill(resolved({**options, "output_dir": tmp_path / "untagged"}, DistillationConfig))
    assert "sources of the train split begin with none of the tags" in caplog.text
