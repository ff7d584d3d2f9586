"""`--engine onnx` and `--quantization int8` of the commands: what they write with them and without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModel

import toy_prompting
from tiny_causal import gpt2_like, ours
from toy_labels import save_toy_answerer, save_toy_classifier, save_toy_encoder, write_jsonl, write_toy_rows
from toy_questions import toy_questions
from toy_translation import save_toy_checkpoint, toy_rows
from vaswani.cli import run
from vaswani.interop import export_folder
from vaswani.kernels import int8_linear

pytestmark = pytest.mark.slow  # an export takes seconds

TEXTS = ["the great film", "", "ann was in rome and the film was awful"]
# The model, the command, and the file that it reads, of each case.
COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "predict": ("classifier", ["predict", "--input"], "texts.txt"),
    "predict answers": ("answerer", ["predict", "--input"], "questions.jsonl"),
    "embed": ("encoder", ["embed", "--pooling", "cls", "--input"], "texts.txt"),
    "generate": ("causal", ["generate", "--num_samples", "1", "--input"], "texts.txt"),
    "prompt": ("prompted", ["prompt", "--shots", "2", "--task"], "task.yaml"),
    "score pairs": ("translator", ["score", "--tokens", "--input"], "pairs.jsonl"),
    "score texts": ("causal", ["score", "--tokens", "--input"], "texts.txt"),
    "score masked texts": ("masked", ["score", "--tokens", "--input"], "texts.txt"),
    "evaluate": ("classifier", ["evaluate", "--data"], "labels"),
}


def save(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    if name == "classifier":
        save_toy_classifier(folder, "classification")
    elif name == "answerer":
        save_toy_answerer(folder)
    elif name == "encoder":
        AutoModel.from_pretrained(save_toy_encoder(folder)).save_pretrained(folder)
    elif name == "masked":
        save_toy_encoder(folder)
    elif name == "translator":
        save_toy_checkpoint(folder)
    elif name == "causal":
        ours().save_pretrained(folder)
        gpt2_like(with_bos=True).save_pretrained(folder)
    else:
        toy_prompting.save_toy_checkpoint(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and what the commands read."""
    folder = tmp_path_factory.mktemp("engines")
    for name in {name for name, _, _ in COMMANDS.values()}:
        save(name, folder / name)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    write_jsonl(folder / "questions.jsonl", list(toy_questions(5, seed=3, words=40)))
    pairs = [{"source": source, "target": target} for source, target in toy_rows(5, seed=3)]
    write_jsonl(folder / "pairs.jsonl", pairs)
    write_toy_rows(folder / "labels", "classification")
    rows = toy_prompting.numeral_rows()
    task = {"prompt": "{digit}:", "choices": " {words}", "answer": " {word}", "examples": rows, "test": rows}
    (folder / "task.yaml").write_text(yaml.safe_dump(task, allow_unicode=True))
    return folder


def numbers_and_rest(value: Any) -> tuple[list[float], Any]:
    """All numbers with a fraction in a JSON value, and the value without them."""
    if isinstance(value, float):
        return [value], None
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        parts = {key: numbers_and_rest(part) for key, part in items}
        numbers = [number for part, _ in parts.values() for number in part]
        return numbers, [(key, rest) for key, (_, rest) in parts.items()]
    return [], value


def written(folder: Path, case: str, model: str, *flags: str) -> tuple[list[float], Any]:
    """The numbers that a command writes, and the rest."""
    _, command, read = COMMANDS[case]
    output = folder / "output.jsonl"
    assert (
        run([*command, str(folder / read), "--model", str(folder / model), *flags, "--output", str(output)])
        == 0
    )
    return numbers_and_rest([json.loads(line) for line in output.read_text().splitlines()])


@pytest.mark.parametrize("case", COMMANDS)
def test_onnx_writes_what_torch_writes(case: str, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = COMMANDS[case][0]
    if not (folder / f"{model}_onnx").exists():
        export_folder(str(folder / model), folder / f"{model}_onnx", "onnx")
    expected = written(folder, case, model, "--device", "cpu")
    found = written(folder, case, f"{model}_onnx", "--engine", "onnx")
    assert found[0] == pytest.approx(expected[0], abs=1e-3)
    assert found[1] == expected[1]


@pytest.mark.skipif(int8_linear.unavailable() is not None, reason="no VNNI instructions here")
@pytest.mark.parametrize("case", COMMANDS)
def test_int8_moves_the_numbers_a_little(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 0)
    model = COMMANDS[case][0]
    expected, found = (
        torch.tensor(written(folder, case, model, "--device", "cpu", *flags)[0])
        for flags in ([], ["--quantization", "int8"])
    )
    assert 0 < (found - expected).norm() < 0.2 * expected.norm()
