"""`--engine onnx` and `--quantization int8` of the commands: what they write with them and without."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import toy_prompting
from exported_toys import ExportedToys, SavedToys, exported_toys, saved_toys
from jsonl import write_jsonl
from toy_labels import write_toy_rows
from toy_questions import toy_questions
from toy_translation import toy_rows
from vaswani.cli import run
from vaswani.kernels import int8_linear

__all__ = ["exported_toys", "saved_toys"]

pytestmark = pytest.mark.slow  # an export takes seconds

TEXTS = ["the great film", "", "ann was in rome and the film was awful"]
# The toy, the command, and the file that it reads, of each case.
COMMANDS: dict[str, tuple[str, list[str], str]] = {
    "predict": ("classification", ["predict", "--input"], "texts.txt"),
    "predict answers": ("answerer", ["predict", "--input"], "questions.jsonl"),
    "embed": ("encoder", ["embed", "--pooling", "cls", "--input"], "texts.txt"),
    "generate": ("causal", ["generate", "--num_samples", "1", "--input"], "texts.txt"),
    "prompt": ("prompted", ["prompt", "--shots", "2", "--task"], "task.yaml"),
    "score pairs": ("translator", ["score", "--tokens", "--input"], "pairs.jsonl"),
    "score texts": ("causal", ["score", "--tokens", "--input"], "texts.txt"),
    "score masked texts": ("masked", ["score", "--tokens", "--input"], "texts.txt"),
    "evaluate": ("classification", ["evaluate", "--data"], "labels"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("engines")
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


def written(folder: Path, case: str, model: Path, *flags: str) -> tuple[list[float], Any]:
    """The numbers that a command writes, and the rest."""
    _, command, read = COMMANDS[case]
    output = folder / "output.jsonl"
    arguments = [str(folder / read), "--model", str(model), *flags, "--output", str(output)]
    assert run([*command, *arguments]) == 0
    return numbers_and_rest([json.loads(line) for line in output.read_text().splitlines()])


@pytest.mark.parametrize("case", COMMANDS)
def test_onnx_output_matches_that_of_torch(case: str, folder: Path, exported_toys: ExportedToys) -> None:
    pytest.importorskip("onnxruntime")
    model, exported = exported_toys(COMMANDS[case][0])
    expected = written(folder, case, model, "--device", "cpu")
    found = written(folder, case, exported, "--engine", "onnx")
    assert found[0] == pytest.approx(expected[0], abs=1e-3)
    assert found[1] == expected[1]


@pytest.mark.skipif(int8_linear.unavailable() is not None, reason="no VNNI instructions here")
@pytest.mark.parametrize("case", COMMANDS)
def test_int8_changes_the_numbers_slightly(
    case: str, folder: Path, saved_toys: SavedToys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_linear, "MIN_WEIGHTS", 0)
    model = saved_toys(COMMANDS[case][0])
    expected, found = (
        torch.tensor(written(folder, case, model, "--device", "cpu", *flags)[0])
        for flags in ([], ["--quantization", "int8"])
    )
    assert 0 < (found - expected).norm() < 0.2 * expected.norm()
