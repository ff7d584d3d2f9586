"""The examples run unchanged, offline, and give the documented results."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forking import ForkingPython

pytestmark = [pytest.mark.script, pytest.mark.slow]

RunExample = Callable[..., list[str]]
EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def run_example(forking_python: ForkingPython, tmp_path_factory: pytest.TempPathFactory) -> RunExample:
    """Run an example and return the lines that it prints."""

    def run(name: str, *arguments: Path) -> list[str]:
        result = forking_python.run([EXAMPLES / name, *arguments], tmp_path_factory.mktemp("printed"))
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


def share_right(lines: list[str]) -> float:
    shown = [line for line in lines if "  ->  " in line]
    assert len(shown) == 8
    return sum("should be" not in line for line in shown) / len(shown)


@pytest.fixture(scope="module")
def first_example(run_example, tmp_path_factory) -> tuple[Path, list[str]]:
    output_dir = tmp_path_factory.mktemp("example")
    return output_dir, run_example("01_train_and_translate.py", output_dir)


def test_a_model_trains_and_translates_from_python(first_example: tuple[Path, list[str]]) -> None:
    assert share_right(first_example[1]) >= 0.75


@pytest.mark.exhaustive
def test_a_plain_seq2seq_trainer_trains_our_model(run_example: RunExample, tmp_path: Path) -> None:
    assert share_right(run_example("02_plain_seq2seq_trainer.py", tmp_path)) >= 0.75


def test_files_and_n_best_lists(run_example: RunExample, first_example: tuple[Path, list[str]]) -> None:
    lines = run_example("03_translate_files.py", first_example[0])
    at = lines.index("27. Januar 1999")
    scores = [float(line.split()[0]) for line in lines[at + 1 : at + 4]]
    assert scores == sorted(scores, reverse=True)
    best = lines[at + 1].split()[-1]
    assert lines[at + 4] == "(an empty line stays empty)"
    assert lines[-5].startswith(f"{best!r} [")
    assert lines[-4] == "'' []"


def test_a_server_translates_with_ctranslate2(
    run_example: RunExample, first_example: tuple[Path, list[str]]
) -> None:
    pytest.importorskip("ctranslate2")
    lines = run_example("08_serve_with_ctranslate2.py", first_example[0])
    assert lines[0].startswith("27. Januar 1999  ->  ")
    assert lines[-1] == "the same as with PyTorch"


def test_onnx_runtime_translates_the_same(
    run_example: RunExample, first_example: tuple[Path, list[str]]
) -> None:
    lines = run_example("09_onnx.py", first_example[0])
    assert "the same as with PyTorch" in lines
    assert any(line.startswith("int8: ") for line in lines)
    assert lines[-1].startswith("encoder: (1, ")


def test_a_sparsified_library_model_is_saved_and_loaded(run_example: RunExample, tmp_path: Path) -> None:
    times, loaded = run_example("04_long_documents.py", tmp_path)
    assert times.startswith("4,096 tokens: ")
    assert loaded == "loaded again as SparseBertForMaskedLM, with equal outputs"


@pytest.mark.exhaustive
def test_a_library_model_is_distilled_into_ours(run_example: RunExample, tmp_path: Path) -> None:
    lines = run_example("05_distill_a_library_model.py", tmp_path)
    assert share_right(lines) >= 0.75
    (counts,) = (line for line in lines if line.startswith("teacher "))
    teacher, student = (int(number.replace(",", "")) for number in re.findall(r"[\d,]+\d", counts))
    assert student < 0.6 * teacher


def test_shots_raise_the_accuracy(run_example: RunExample, tmp_path: Path) -> None:
    lines = [
        line
        for line in run_example("06_few_shot_prompting.py", tmp_path)
        if "right with 0, 1, 2 and 4 shots:" in line
    ]
    assert len(lines) == 5
    for line in lines:
        none, *_, four = (int(number) for number in re.findall(r"(\d+)\s*%", line))
        assert none <= 60
        assert four >= 90


@pytest.mark.exhaustive
def test_semantic_search_finds_equal_days(run_example: RunExample, tmp_path: Path) -> None:
    untrained, trained, query, best, *_ = run_example("07_semantic_search.py", tmp_path)
    shares = [int(re.search(r"(\d+)%", line)[1]) for line in (untrained, trained)]
    assert shares[0] < 30
    assert shares[1] >= 80
    assert query == "1975-05-19"
    assert best.endswith("19.05.1975")
