"""Models with non-finite weights: every command that loads one gives an error."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import in_process
import toy_prompting
from jsonl import write_jsonl
from tiny_runs import TINY_RUN, as_flags, datasets_cache, dates
from toy_labels import save_toy_encoder, write_toy_rows
from toy_prompting import numeral_rows
from toy_translation import save_toy_checkpoint, toy_model, toy_rows, toy_tokenizer
from vaswani import Embedder, Translator
from vaswani.cli import run
from vaswani.errors import RunError, UserError
from vaswani.files.json_files import finite_json, without_non_finite

__all__ = ["datasets_cache", "dates"]  # fixtures


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a translator, another one, an encoder, a causal model, texts and a task."""
    folder = tmp_path_factory.mktemp("whole")
    save_toy_checkpoint(folder / "translator")
    save_toy_checkpoint(folder / "other")
    save_toy_encoder(folder / "encoder")
    toy_prompting.save_toy_checkpoint(folder / "causal")
    (folder / "labels").mkdir()
    write_toy_rows(folder / "labels", "classification", train=20, validation=5, test=5)
    rows = toy_rows(4, seed=3)
    (folder / "source.txt").write_text("".join(f"{source}\n" for source, _ in rows))
    (folder / "target.txt").write_text("".join(f"{target}\n" for _, target in rows))
    pairs = [{"source": source, "target": target} for source, target in rows]
    write_jsonl(folder / "test.jsonl", pairs)
    examples = numeral_rows()
    write_jsonl(folder / "rows.jsonl", examples)
    task = {
        "prompt": "{digit}:",
        "answer": " {word}",
        "separator": ", ",
        "examples": examples,
        "test": examples,
    }
    (folder / "choose.yaml").write_text(json.dumps({**task, "choices": " {words}"}))
    (folder / "write.yaml").write_text(json.dumps({**task, "generate": True, "max_new_tokens": 3}))
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "models"))


# Each command, with {} for the folder of `whole`, and the model in it that it loads.
LOADING = {
    "translate": ("translator", "translate --model {}/translator --input {}/source.txt"),
    "n_best": ("translator", "translate --model {}/translator --input {}/source.txt --n_best 2"),
    "evaluate": ("translator", "evaluate --model {}/translator --data {}/source.txt {}/target.txt"),
    "score": ("translator", "score --model {}/translator --input {}/source.txt {}/target.txt"),
    "score_texts": ("causal", "score --model {}/causal --input {}/source.txt"),
    "score_masked": ("encoder", "score --model {}/encoder --input {}/source.txt"),
    "align": ("translator", "align --model {}/translator --input {}/source.txt {}/target.txt"),
    "attention": ("translator", "attention --model {}/translator --source one --output {}/out.html"),
    "plot": ("translator", "plot attention --model {}/translator --source one --output {}/out.png"),
    "compare": ("other", "compare {}/translator {}/other --data {}/test.jsonl --output {}/out"),
    "teacher": ("translator", "compare {}/translator {}/other --data {}/test.jsonl --output {}/out"),
    "student": ("translator", "student {}/out --teacher {}/translator --decoder_layers 1"),
    "convert": ("causal", "convert {}/causal {}/out --to gpt2"),
    "export": ("encoder", "export {}/encoder {}/out"),
    "combine": ("encoder", "combine {}/out --encoder {}/encoder"),
    "average": ("translator", "average {}/translator {}/out"),
    "embed": ("encoder", "embed --model {}/encoder --input {}/source.txt"),
    "generate": ("causal", "generate --model {}/causal --input {}/source.txt"),
    "prompt": ("causal", "prompt --model {}/causal --task {}/choose.yaml"),
    "demo": ("translator", "demo --model {}/translator --port 0"),
    "positions": ("translator", "plot positions --model {}/translator --output {}/out.png"),
    "push": ("translator", "push --model {}/translator --repo ada/toy"),
    "finetune": (
        "encoder",
        "finetune --model {}/encoder --task classification --train_file {}/labels/train.jsonl "
        "--output_dir {}/out --max_length 30 --max_steps 1 --use_cpu",
    ),
}


def change(folder: Path, how: Callable[[dict[str, torch.Tensor]], Any]) -> str:
    """Change a weight of the first layer; return its name."""
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "layers.0" in name and name.endswith("fc1.weight"))
    how({"weight": weights[name]})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return name


def outcome(capfd: pytest.CaptureFixture[str], command: str, place: Path) -> tuple[int, str, str]:
    return in_process.outcome(capfd, *command.format(*[place] * command.count("{}")).split())


@pytest.mark.slow
@pytest.mark.parametrize("number", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("command", LOADING)
def test_every_command_names_a_non_finite_weight(
    command: str, number: float, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, arguments = LOADING[command]
    name = change(place / kind, lambda weights: weights["weight"].view(-1)[5].fill_(number))
    status, out, errors = outcome(capfd, arguments, place)
    assert (status, out) == (2, ""), errors
    assert f"vaswani: the weights in {place / kind} are not finite numbers: {name} holds NaN" in errors
    assert not (place / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("targets", ["teacher", "references"])
def test_a_teacher_with_non_finite_weights_is_refused(
    targets: str, place: Path, dates: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    change(place / "translator", lambda weights: weights["weight"].fill_(math.nan))
    options = {**TINY_RUN, **dates, "output_dir": place / "out", "teacher": place / "translator"}
    options |= {"targets": targets, "student": "random", "vocabulary": "teacher"}
    options.pop("vocab_size")
    status = run(["distill", *as_flags(options)])
    errors = capfd.readouterr().err
    assert status == 2, errors
    assert f"the weights in {place / 'translator'} are not finite numbers" in errors


# Finite weights whose products are not.

USING = (
    "translate",
    "n_best",
    "score",
    "score_texts",
    "score_masked",
    "align",
    "attention",
    "plot",
    "evaluate",
    "compare",
    "teacher",
    "embed",
    "generate",
    "prompt",
)
OVERFLOWING = {name: LOADING[name] for name in USING} | {
    "greedy": ("translator", "translate --model {}/translator --input {}/source.txt --num_beams 1"),
    "write": ("causal", "prompt --model {}/causal --task {}/write.yaml"),
    "json": ("translator", "evaluate --model {}/translator --data {}/source.txt {}/target.txt --json"),
}


@pytest.mark.parametrize("command", OVERFLOWING)
def test_every_command_reports_non_finite_results(
    command: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, arguments = OVERFLOWING[command]
    change(place / kind, lambda weights: weights["weight"].fill_(torch.finfo(torch.float32).max))
    status, out, errors = outcome(capfd, arguments, place)
    assert (status, out) == (1, ""), errors
    assert ("not finite numbers in float32" in errors) or ("leave the range of torch.float32" in errors)


def test_a_model_with_nan_weights_raises_an_error() -> None:
    model = toy_model()
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight[3] = math.nan
    for num_beams in (1, 4):
        with pytest.raises(RunError, match="the model's scores are not finite numbers in float32"):
            Translator(model, toy_tokenizer(), num_beams=num_beams)(["one two"])
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[3] = math.nan
    with pytest.raises(RunError, match="leave the range"):
        Embedder(model, toy_tokenizer()).embed(["one two"])


@pytest.mark.parametrize("alpha", [math.nan, math.inf, 1e308])
def test_a_non_finite_length_penalty_gives_an_error(
    alpha: float, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="must be a number from -10 to 10"):
        Translator(toy_model(), toy_tokenizer(), length_penalty=alpha)
    status, out, errors = outcome(capfd, f"{LOADING['translate'][1]} --length_penalty {alpha}", place)
    assert (status, out) == (2, "")
    assert "length_penalty" in errors


# JSON.


def test_json_never_contains_non_finite_numbers() -> None:
    with pytest.raises(RunError, match=r"a result is not a finite number: hypotheses.1.score=nan"):
        finite_json({"hypotheses": [{"score": 1.0}, {"score": math.nan}]})
    told = without_non_finite({"scores": [1.0, math.inf], "name": "a", "few": (math.nan, 2)})
    assert told == {"scores": [1.0, None], "name": "a", "few": [None, 2]}
