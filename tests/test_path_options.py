"""Every option that names a file or a folder, with one that is missing, of the wrong sort or unreadable.

Each ends with status 2 and one line that names it, before anything is trained or decoded.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from tiny_runs import write_dates
from toy_labels import save_toy_classifier, save_toy_decoder, save_toy_encoder
from toy_translation import save_toy_checkpoint
from unprivileged import file_modes_hold
from vaswani.cli import run
from vaswani.cli.commands import app
from vaswani.inference.translate.translation import Translator
from vaswani.training.trainer.base import BaseTrainer

READ_FILE = ("missing", "folder", "dangling", "file/below", "closed file")  # where a file is read
READ_FOLDER = ("missing", "file", "folder", "dangling", "file/below", "closed folder")  # with something in it
MAKE_FOLDER = ("file", "dangling", "file/below", "closed folder", "closed folder/below")
WRITE_FILE = ("folder", "file/below", "closed folder/below")

TRAIN = "train --use_cpu --output_dir {run} --train_file {data}"
DISTILL = "distill --use_cpu --output_dir {run} --train_file {data}"
DISTILL_CAUSAL = "distill --use_cpu --output_dir {run} --objective causal --max_length 24 --targets teacher"
TRANSLATE = "translate --model {model} --device cpu"
COMPARE = "compare {model} {other} --data {data} --device cpu"
OPTIONS = {
    "train --config {path}": READ_FILE,
    "train --use_cpu --output_dir {run} --train_file {path}": READ_FILE,
    f"{TRAIN} --validation_file {{path}}": READ_FILE,
    f"{TRAIN} --test_file {{path}}": READ_FILE,
    "train --use_cpu --output_dir {run} --dataset {path}": READ_FOLDER,
    "train --use_cpu --train_file {data} --output_dir {path}": MAKE_FOLDER,
    f"{TRAIN} --resume_from_checkpoint {{path}}": READ_FOLDER,
    f"{TRAIN} --tokenizer {{path}}": READ_FOLDER,
    f"{TRAIN} --tokenizer {{model}} --target_tokenizer {{path}}": READ_FOLDER,
    f"{TRAIN} --generation_config {{path}}": READ_FILE,
    f"{TRAIN} --accelerator_config {{path}}": READ_FILE,
    f"{DISTILL} --teacher {{path}}": READ_FOLDER,
    f"{DISTILL} --teacher {{model}} --student {{path}}": READ_FOLDER,
    f"{DISTILL} --teacher {{model}} --teacher_cache {{path}}": MAKE_FOLDER,
    f"{DISTILL_CAUSAL} --train_file {{path}} --teacher {{decoder}}": READ_FILE,
    f"{DISTILL_CAUSAL} --train_file {{data}} --teacher {{path}}": READ_FOLDER,
    f"{DISTILL_CAUSAL} --train_file {{data}} --teacher {{decoder}} --teacher_cache {{path}}": MAKE_FOLDER,
    "pretrain --use_cpu --max_length 24 --output_dir {run} --train_file {path}": READ_FILE,
    "pretrain --use_cpu --max_length 24 --output_dir {run} --train_file {data} --model {path}": READ_FOLDER,
    "finetune --use_cpu --max_length 24 --output_dir {run} --train_file {data} --model {path}": READ_FOLDER,
    "finetune --use_cpu --max_length 24 --output_dir {run} --train_file {path} --model {encoder}": READ_FILE,
    "translate --model {path}": READ_FOLDER,
    f"{TRANSLATE} --input {{path}}": READ_FILE,
    f"{TRANSLATE} --input {{data}} --output {{path}}": WRITE_FILE,
    f"{TRANSLATE} --input {{data}} --reverse_model {{path}}": READ_FOLDER,
    "summarize --model {path}": READ_FOLDER,
    "summarize --model {model} --device cpu --input {path}": READ_FILE,
    "summarize --model {model} --device cpu --source_field source --input {data} --output {path}": WRITE_FILE,
    "evaluate --model {path} --data {data}": READ_FOLDER,
    "evaluate --model {model} --data {path}": READ_FILE,
    "evaluate --model {model} --data {data} --output {path}": WRITE_FILE,
    "score --model {path} --input {data}": READ_FOLDER,
    "score --model {model} --input {path}": READ_FILE,
    "score --model {model} --input {lines} {path}": READ_FILE,
    "score --model {model} --input {data} --output {path}": WRITE_FILE,
    "align --model {path} --input {data}": READ_FOLDER,
    "align --model {model} --input {path}": READ_FILE,
    "align --model {model} --input {lines} {path}": READ_FILE,
    "align --model {model} --input {data} --reverse_model {path}": READ_FOLDER,
    "align --model {model} --input {lines} {lines} --gold {path}": READ_FILE,
    "align --model {model} --input {data} --output {path}": WRITE_FILE,
    "attention --model {path} --source one": READ_FOLDER,
    "attention --model {model} --source one --output {path}": WRITE_FILE,
    "predict --model {path}": READ_FOLDER,
    "predict --model {classifier} --input {path}": READ_FILE,
    "predict --model {classifier} --text_field source --input {data} --output {path}": WRITE_FILE,
    "embed --model {path}": READ_FOLDER,
    "embed --model {encoder} --input {path}": READ_FILE,
    "embed --model {encoder} --text_field source --input {data} --output {path}": WRITE_FILE,
    "embed --model {encoder} --words --backward_model {path} --text_field source --input {data}": READ_FOLDER,
    "generate --model {path}": READ_FOLDER,
    "generate --model {decoder} --input {path}": READ_FILE,
    "generate --model {decoder} --prompt_field source --input {data} --output {path}": WRITE_FILE,
    "prompt --model {path} --task tasks/sentiment": READ_FOLDER,
    "prompt --model {model} --task {path}": READ_FILE,
    "compare {path} {model} --data {data}": READ_FOLDER,
    "compare {model} {path} --data {data}": READ_FOLDER,
    f"{COMPARE} --baseline {{path}}": READ_FOLDER,
    f"{COMPARE} --output {{path}}": MAKE_FOLDER,
    "student {made} --teacher {path}": READ_FOLDER,
    "student {path} --teacher {model}": MAKE_FOLDER,
    "convert {path} {made}": READ_FOLDER,
    "convert {encoder} {path} --to bert": MAKE_FOLDER,
    "export {path} {made}": READ_FOLDER,
    "export {encoder} {path}": MAKE_FOLDER,
    "merge {path} {made}": READ_FOLDER,
    "merge {encoder} {path}": MAKE_FOLDER,
    "average {path} {other} {made}": READ_FOLDER,
    "average {path} {made} --last 1": READ_FOLDER,
    "average {path} {made} --best 1": READ_FOLDER,
    "average {model} {other} {path}": MAKE_FOLDER,
    "combine {made} --encoder {path}": READ_FOLDER,
    "combine {path} --encoder {encoder}": MAKE_FOLDER,
    "demo --port 0 --model {path}": READ_FOLDER,
    "demo --port 0 --model {model} --model {path}": READ_FOLDER,
    "card --model {path}": READ_FOLDER,
    "push --model {path} --repo a/b": READ_FOLDER,
    "report {path}": READ_FOLDER,
    "plot sparse-pattern --output {path}.png": WRITE_FILE,
    "plot positions --output {path}.png": WRITE_FILE,
    "plot positions --model {path}": READ_FOLDER,
    "plot masks --output {path}.png": WRITE_FILE,
    "plot schedule --output {path}.png": WRITE_FILE,
    "plot schedule --config {path}": READ_FILE,
    "plot curves {path}": READ_FOLDER,
    "plot curves {log} --output {path}.png": WRITE_FILE,
    "plot quality {path}": READ_FOLDER,
    "plot quality {report} --output {path}.png": WRITE_FILE,
    "plot retention {path}": READ_FOLDER,
    "plot retention {report} --output {path}.png": WRITE_FILE,
    "plot attention --model {path} --source one": READ_FOLDER,
    "plot attention --model {model} --source one --device cpu --head 0 --output {path}.png": WRITE_FILE,
    "estimate --config {path}": READ_FILE,
    "estimate --model {path}": READ_FOLDER,
    "estimate --config dates --device {path}": READ_FILE,
}
SUFFIXES = {
    "--config": ".yaml",
    "--device": ".yaml",
    "--task": ".yaml",
    "--input": ".txt",
    "_file": ".jsonl",
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that others can read, with models, a corpus and awkward paths."""
    folder = Path(tempfile.mkdtemp())
    save_toy_checkpoint(folder / "model")
    save_toy_checkpoint(folder / "other")
    save_toy_encoder(folder / "encoder")
    save_toy_decoder(folder / "decoder")
    save_toy_classifier(folder / "classifier", "classification")
    write_dates(folder, train_rows=20, validation_rows=2, test_rows=2)
    for suffix in {"", ".png", *SUFFIXES.values()}:
        (folder / f"folder{suffix}").mkdir()
        (folder / f"dangling{suffix}").symlink_to(folder / "nowhere")
        (folder / f"closed file{suffix}").write_text("a\n")
    (folder / "file").write_text("a\n")
    (folder / "lines").write_text("a\n")
    (folder / "log").mkdir()
    log = {"log_history": [{"step": 1, "loss": 2.0}]}
    (folder / "log" / "trainer_state.json").write_text(json.dumps(log))
    score = {"value": 1.0, "low": 0.5, "high": 2.0}
    student = {"name": "a", "role": "student", "parameters": 9, "scores": {"bleu": score}, "retention": score}
    (folder / "report").write_text(json.dumps({"metric": "bleu", "models": [student]}))
    (folder / "closed folder").mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def closed(place: Path) -> Iterator[None]:
    """Files named `closed` cannot be read or written, even by root."""
    paths = list(place.glob("closed*"))
    for path in paths:
        path.chmod(0)
    with file_modes_hold():
        yield
    for path in paths:
        path.chmod(0o755)


CASES = [(command, sort) for command, sorts in OPTIONS.items() for sort in sorts]


@pytest.mark.parametrize(("command", "sort"), CASES)
def test_a_path_that_cannot_be_used_is_refused(place, closed, monkeypatch, capfd, command, sort):
    monkeypatch.setattr(BaseTrainer, "train", lambda *_, **__: pytest.fail("training begins"))
    monkeypatch.setattr(Translator, "translate", lambda *_, **__: pytest.fail("decoding begins"))
    ending = next((suffix for option, suffix in SUFFIXES.items() if f"{option} {{path}}" in command), "")
    path = place / (sort if "/" in sort or sort in ("file", "closed folder") else f"{sort}{ending}")
    places = {"path": path, "run": place / "run", "data": place / "train.jsonl", "made": place / "made"}
    places |= {
        "lines": place / "lines",
        "model": place / "model",
        "other": place / "other",
        "encoder": place / "encoder",
    }
    places |= {name: place / name for name in ("classifier", "decoder", "log", "report")}
    status = run([word.format(**places) for word in command.split()])
    said = capfd.readouterr().err.splitlines()
    assert status == 2, said
    assert said[-1].startswith("vaswani: ")
    assert str(path) in said[-1]
    assert not any("Traceback" in line for line in said)
    assert not (place / "made").exists()


def test_links_are_followed(place, capfd):
    for name in ("model", "train.jsonl"):
        (place / f"link to {name}").symlink_to(place / name)
    lines = {}
    for link in ("", "link to "):
        source = ["--input", str(place / f"{link}train.jsonl")]
        assert run(["translate", "--model", str(place / f"{link}model"), "--device", "cpu", *source]) == 0
        lines[link] = capfd.readouterr().out
    assert lines[""] == lines["link to "]
    assert lines[""].count("\n") == 20


def paths_of_commands() -> Iterator[tuple[str, str]]:
    """The name of each command, and of each of its options and arguments that is a path."""
    groups = {"": typer.main.get_command(app)}
    groups |= {f"{name} ": group for name, group in groups[""].commands.items() if hasattr(group, "commands")}
    for above, group in groups.items():
        for name, command in group.commands.items():
            for parameter in getattr(command, "params", ()):
                if parameter.type_descriptor.annotation is Path:
                    is_option = parameter.param_type_name == "option"
                    yield above + name, parameter.opts[0] if is_option else ""


@pytest.mark.parametrize(("command", "name"), list(paths_of_commands()))
def test_every_path_option_of_a_command_is_tested(command, name):
    command = "train" if command in ("distill", "pretrain", "finetune") else command  # they share their code
    assert any(words.startswith(f"{command} ") and f"{name} {{path}}" in words for words in OPTIONS)
