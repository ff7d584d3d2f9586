"""Every kind of run trains the same model when it is repeated, resumed or shared by two processes."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from refusals import refusal
from run_records import assert_same_weights, logged

from damage import cut
from rank_processes import train_in_processes
from tiny_runs import TINY_MODEL, as_flags, write_dates
from toy_labels import POSITIONS, TASKS, save_toy_decoder, save_toy_encoder, write_toy_rows
from toy_questions import write_toy_questions
from toy_texts import write_texts
from toy_translation import save_toy_checkpoint
from vaswani.cli import run as run_command
from vaswani.insight.curves import PANELS


class Kind(NamedTuple):
    command: str
    options: dict[str, Any]  # `model` and `dataset` name folders of `toys`
    logs: tuple[str, ...] = ("loss",)
    files: tuple[str, ...] = ()  # written besides the weights


COMMON = {"use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "seed": 11}

ENCODER = {**COMMON, "model": "encoder", "dataset": "classification", "max_length": POSITIONS}
ENCODER |= {"learning_rate": 5e-3, "max_tokens_per_batch": 1500, "max_steps": 9, "save_steps": 5}
QUESTIONS = {**ENCODER, "task": "question_answering", "dataset": "questions"}
QUESTIONS |= {"max_length": 24, "doc_stride": 8, "max_question_length": 8}
DECODER = {**ENCODER, "model": "decoder", "lm_loss_weight": 0.5}
COMPLETION = {**ENCODER, "model": "decoder", "task": "completion"}
COMPLETION |= {"prompt_field": "text", "completion_field": "label"}
FINETUNING = {
    **{task: Kind("finetune", {**ENCODER, "task": task, "dataset": task}) for task in TASKS},
    "questions": Kind("finetune", QUESTIONS, files=("predictions.json", "null_odds.json", "config.json")),
    "decoder": Kind("finetune", DECODER, logs=("loss", "lm_loss")),
    "completion": Kind("finetune", COMPLETION),
}
TINY = {**COMMON, "dropout": 0.3, "learning_rate": 3e-3, "warmup_steps": 4, "max_steps": 10, "save_steps": 7}
TEXTS = {**TINY, "dataset": "texts", "vocab_size": 420, "max_length": 40}
TEXTS |= {"max_tokens_per_batch": 200, "gradient_accumulation_steps": 2}
ONE_STACK = {
    stack: {name: size for name, size in TINY_MODEL.items() if name == "d_model" or name.startswith(stack)}
    for stack in ("encoder", "decoder")
}
MASKED = {**TEXTS, **ONE_STACK["encoder"], "objective": "masked", "whole_word_masking": True}
OBJECTIVES = {
    "masked": MASKED,
    "pairs": {**MASKED, "next_sentence": True},
    "causal": {**TEXTS, **ONE_STACK["decoder"], "objective": "causal"},
    "spans": {**TEXTS, **TINY_MODEL, "objective": "span_denoising"},
    "gaps": {**TEXTS, **TINY_MODEL, "objective": "gap_sentences", "gap_sentence_strategy": "random"},
}
TRANSLATION = {**TINY, **TINY_MODEL, "dataset": "dates", "vocab_size": 300, "max_tokens_per_batch": 1200}
TRANSLATION |= {"bpe_dropout": 0.3}
KINDS = {
    **FINETUNING,
    **{name: Kind("pretrain", options) for name, options in OBJECTIVES.items()},
    "translation": Kind("train", TRANSLATION),
}
VARIANTS = {
    f"{name}, {variant}": KINDS[name]._replace(options=KINDS[name].options | option)
    for variant, option, names in (
        ("of GPT-2", {"model": "gpt2"}, ("decoder", "completion")),
        ("streamed", {"streaming": True}, (*OBJECTIVES, "translation")),
        ("read by a worker", {"dataloader_num_workers": 1}, ("translation",)),
    )
    for name in names
}


def cases(names: Iterable[str]) -> list[Any]:
    """Parameters; those that differ little from another are marked `exhaustive`."""
    repetitions = ("multi_label", "regression", "pairs", "causal", "gaps")
    return [
        pytest.param(name, marks=pytest.mark.exhaustive) if name.startswith(repetitions) else name
        for name in names
    ]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toys")
    for task in TASKS:
        write_toy_rows(folder / task, task, test=37)  # which two processes cannot share evenly
    write_toy_questions(folder / "questions", unanswerable=0.4)
    for name in ("texts", "dates"):
        (folder / name).mkdir()
    write_texts(folder / "texts", train=30, test=4)
    write_dates(folder / "dates", train_rows=200, validation_rows=4, test_rows=4)
    save_toy_encoder(folder / "encoder")
    save_toy_decoder(folder / "decoder")
    save_toy_decoder(folder / "gpt2", library=True)
    return folder


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest, toys: Path) -> Kind:
    kind = (KINDS | VARIANTS)[request.param]
    places = {name: toys / kind.options[name] for name in ("model", "dataset") if name in kind.options}
    return kind._replace(options=kind.options | places)


@pytest.fixture(scope="module")
def whole(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an uninterrupted run of a kind has left."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_command([kind.command, *as_flags(kind.options | {"output_dir": folder})]) == 0
    epochs = json.loads((folder / "trainer_state.json").read_text())["epoch"]
    assert epochs > 1 or "streaming" in kind.options  # each epoch has another order and other noise
    return folder


def assert_same_run(kind: Kind, first: Path, second: Path) -> None:
    assert_same_weights(first, second)
    for name in kind.logs:
        assert logged(first, name) == logged(second, name) != []
    for name in kind.files:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases(KINDS), indirect=True)
def test_the_saved_configuration_repeats_the_run(kind, whole, tmp_path):
    saved = whole / "training_config.yaml"
    assert f"vaswani {kind.command} --config {saved.name}" in saved.read_text()
    assert run_command([kind.command, "--config", str(saved), "--output_dir", str(tmp_path)]) == 0
    assert_same_run(kind, whole, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases(KINDS), indirect=True)
def test_every_score_of_the_run_is_drawn_by_plot_curves(kind, whole):
    results = json.loads((whole / "test_results.json").read_text())
    scores = {name.removeprefix("test_") for name in results}
    scores -= {"epoch", "runtime", "samples_per_second", "steps_per_second"}
    drawn = {key.removeprefix("eval_") for _, labels, _ in PANELS for key in labels}
    assert len(scores) > 1
    assert scores <= drawn


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases(KINDS | VARIANTS), indirect=True)
def test_a_resumed_run_equals_an_uninterrupted_one(kind, whole, tmp_path):
    checkpoint = whole / f"checkpoint-{kind.options['save_steps']}"
    epoch = json.loads((checkpoint / "trainer_state.json").read_text())["epoch"]
    assert epoch % 1 or "streaming" in kind.options  # some batches of an epoch are left
    resumed = kind.options | {"output_dir": tmp_path, "resume_from_checkpoint": checkpoint}
    assert run_command([kind.command, *as_flags(resumed)]) == 0
    assert_same_run(kind, whole, tmp_path)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", cases(FINETUNING), indirect=True)
def test_two_processes_train_and_score_as_one_does(kind, tmp_path):
    save_model = save_toy_encoder if kind.options["model"].name == "encoder" else save_toy_decoder
    model = save_model(tmp_path / "model", dropout=0.0, attention_dropout=0.0)
    options = kind.options | {"model": model, "max_tokens_per_batch": 300, "max_steps": 5}
    one, two = tmp_path / "1", tmp_path / "2"
    for processes, folder in enumerate((one, two), start=1):
        more = {"output_dir": folder, "gradient_accumulation_steps": 3 - processes}
        train_in_processes(options | more, processes, kind.command)
    for name in kind.logs:
        assert logged(two, name) == pytest.approx(logged(one, name), rel=1e-4)
    assert scores(two) == pytest.approx(scores(one), rel=1e-3, abs=1e-3)


def scores(folder: Path) -> dict[str, float]:
    """The metrics of a run; for questions the odds, as answers are chosen by small differences of these."""
    if (folder / "null_odds.json").exists():
        return json.loads((folder / "null_odds.json").read_text())
    evaluation = json.loads((folder / "evaluation.json").read_text())
    return {"rows": evaluation["rows"]} | {
        name: metric["value"] for name, metric in evaluation["metrics"].items()
    }


@pytest.mark.parametrize("kind", cases(FINETUNING), indirect=True)
def test_a_translator_is_not_finetuned(kind, tmp_path, capsys):
    save_toy_checkpoint(tmp_path / "translator")
    options = kind.options | {"model": tmp_path / "translator", "output_dir": tmp_path / "run"}
    told = refusal(kind.command, options, capsys)
    assert re.search(
        "a model of type 'vaswani', which .* does not load; expected an? (encoder|decoder)", told
    )


def assert_damaged_weights_are_refused(
    command: str, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """With a corpus that does not exist, which would be named if it were read first."""
    model = Path(shutil.copytree(options["model"], tmp_path / "damaged"))
    cut(model / "model.safetensors")
    options = options | {"model": model, "dataset": tmp_path / "unread", "output_dir": tmp_path / "run"}
    told = refusal(command, options, capsys)
    assert f"{model / 'model.safetensors'} is damaged" in told


@pytest.mark.parametrize("kind", cases(FINETUNING), indirect=True)
def test_damaged_weights_are_refused_before_the_corpus_is_read(kind, tmp_path, capsys):
    assert_damaged_weights_are_refused(kind.command, kind.options, tmp_path, capsys)


def test_damaged_weights_of_a_translator_are_refused_before_the_corpus_is_read(tmp_path, capsys):
    options = {**COMMON, "model": save_toy_checkpoint(tmp_path / "translator"), "learning_rate": 1e-3}
    options |= {"max_source_length": 20, "max_target_length": 20}
    assert_damaged_weights_are_refused("train", options, tmp_path, capsys)
