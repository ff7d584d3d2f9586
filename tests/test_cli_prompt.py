"""`vaswani prompt` as a user runs it: a task file, a model, results on the screen and in files."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import BertConfig, BertForMaskedLM

import in_process
from jsonl import write_jsonl
from standard_error import without_progress
from toy_prompting import numeral_rows, numeral_task, save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani.inference.prompt.prompting import Prompter

WRITTEN: dict[str, Any] = {"generate": True, "max_new_tokens": 8}
CHOSEN: dict[str, Any] = {"choices": " {words}"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_checkpoint(tmp_path_factory.mktemp("model"))


def write_task(folder: Path, **values: Any) -> Path:
    rows = numeral_rows()
    write_jsonl(folder / "rows.jsonl", rows)
    task = {"prompt": "{digit}:", "answer": " {word}", "separator": ", ", "examples": rows, "test": rows}
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump({**task, **(values or WRITTEN)}, allow_unicode=True), encoding="utf-8")
    return path


def outcome(capfd: pytest.CaptureFixture, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, output and errors of `vaswani prompt`, without starting a process."""
    return in_process.outcome(capfd, "prompt", *arguments)


@pytest.mark.parametrize("rows", ["test", "examples"])
def test_an_output_that_would_replace_the_task_rows_gives_an_error(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, rows: str
) -> None:
    task = write_task(tmp_path)
    values = {**yaml.safe_load(task.read_text()), f"{rows}_file": "rows.jsonl"}
    del values[rows]
    task.write_text(yaml.safe_dump(values, allow_unicode=True))
    before = (tmp_path / "rows.jsonl").read_text()
    status, _, errors = outcome(capfd, "--model", model, "--task", task, "--output", tmp_path / "rows.jsonl")
    assert status == 2
    assert "rows.jsonl would replace the input" in errors
    assert (tmp_path / "rows.jsonl").read_text() == before


@pytest.mark.slow
@pytest.mark.process
def test_a_process_reports_the_accuracy_by_number_of_shots(model: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path)
    command = [sys.executable, "-m", "vaswani", "prompt", "--model", model, "--task", task]
    done = subprocess.run(
        [*map(str, command), "--shots", "0,1,4"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, without_progress(done.stderr)) == (0, "")
    prompter = Prompter(toy_model(), toy_tokenizer())
    results = [prompter.answer(numeral_task(), shots) for shots in (0, 1, 4)]
    assert done.stdout.splitlines() == list(map(str, results))
    assert done.stdout.splitlines()[2].startswith("4 shots: accuracy 100.00 (95 % interval 72.25 to 100.00)")


@pytest.mark.parametrize("way", [WRITTEN, CHOSEN], ids=["written", "chosen"])
def test_answers_are_written_as_records_and_json(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, way: dict[str, Any]
) -> None:
    task, output = write_task(tmp_path, **way), tmp_path / "answers.jsonl"
    flags = ["--model", model, "--task", task, "--shots", "0,2", "--seed", "5"]
    status, text, errors = outcome(capfd, *flags, "--json", "--output", output)
    assert (status, errors) == (0, "")
    prompter = Prompter(toy_model(), toy_tokenizer())
    results = [prompter.answer(numeral_task(**way), shots, seed=5) for shots in (0, 2)]
    *lines, last = text.splitlines()
    assert lines == list(map(str, results))
    how = {"normalize": "none"} if way is CHOSEN else {"generate": True}
    expected = {"model": str(model), "task": str(task), **how, "seed": 5}
    assert json.loads(last) == {**expected, "results": [result.to_dict() for result in results]}
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    answers = [(result.shots, answer) for result in results for answer in result.answers]
    assert len(records) == len(answers) == 20
    for record, (shots, answer) in zip(records, answers, strict=True):
        assert (record["asked_shots"], record["shots"], record["row"]) == (shots, shots, answer.row)
        assert record["prompt"] == answer.prompt
        assert (record["expected"], record["given"]) == (answer.expected, answer.given)
        assert record["right"] is answer.right
        assert (record["scores"] or {}) == pytest.approx(answer.scores or {}, abs=1e-4)


def test_options_take_effect_with_rows_in_files(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    task, output = write_task(tmp_path, **CHOSEN), tmp_path / "answers.jsonl"
    values = yaml.safe_load(task.read_text(encoding="utf-8"))
    del values["test"], values["examples"]
    files = {"test_file": "rows.jsonl", "examples_file": "rows.jsonl"}
    task.write_text(yaml.safe_dump({**values, **files}, allow_unicode=True), encoding="utf-8")

    def scores(*flags: str) -> list[dict[str, float]]:
        status, _, errors = outcome(capfd, "--model", model, "--task", task, "--output", output, *flags)
        assert (status, errors) == (0, "")
        return [json.loads(line)["scores"] for line in output.read_text(encoding="utf-8").splitlines()]

    plain = scores("--shots", "2")
    assert scores("--shots", "2", "--dtype", "bfloat16", "--device", "cpu") != plain
    assert scores("--shots", "2", "--seed", "1") != plain
    assert scores() != plain
    one_by_one = scores("--shots", "2", "--max_tokens_per_batch", "1")
    for one, other in zip(one_by_one, plain, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_fewer_shots_than_requested_give_a_warning(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    long = {**numeral_rows()[3], "digit": "1 " * 50}
    task = write_task(tmp_path, **CHOSEN, test=[numeral_rows()[2], long])
    status, text, errors = outcome(capfd, "--model", model, "--task", task, "--shots", "8", "--json")
    assert status == 0
    assert errors == (
        "vaswani: shots=8: 1 of 2 rows had fewer, because the model has positions for 64 "
        "tokens; row 2 had 3\n"
    )
    assert json.loads(text.splitlines()[-1])["results"][0]["rows_with_fewer_shots"] == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--shots", "few"], "shots=few: expected a number, or several such as 0,1,4"),
        (["--shots", "1,0,1"], "shots=1,0,1 names a number twice; give each once"),
        (["--shots", "1,"], "shots=1,: expected a number, or several such as 0,1,4"),
        (["--shots", "-1"], "shots=-1 must be 0 or more"),
        (["--shots", "0,99"], "shots=99, and there are 9 examples for row 1 of test"),
        (["--seed", "x"], "Invalid value for '--seed'"),
        (["--task", "nowhere.yaml"], "task file nowhere.yaml does not exist"),
        (["--model", "/no/such/model"], "model folder /no/such/model does not exist"),
        (["--output", "/no/such/file"], "cannot write /no/such/file: No such file or directory"),
        (["--max_tokens_per_batch", "0"], "max_tokens_per_batch=0 must be at least 1"),
        (["--device", "gpu"], "device 'gpu' cannot be used here"),
        (["--dtype", "fp16"], "dtype 'fp16' is unknown"),
        (["--revision", "main"], "revision='main' applies to models on the Hub"),
        (["--shot", "1"], "No such option"),
    ],
)
def test_wrong_flags_give_one_line_and_status_2(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, flags: list[str], message: str
) -> None:
    task = write_task(tmp_path)
    given = {"--model": model, "--task": task} | dict(zip(flags[::2], flags[1::2], strict=True))
    status, output, errors = outcome(capfd, *itertools.chain(*given.items()))
    assert (status, output) == (2, "")
    assert errors.startswith("vaswani: ")
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"chocies": ["a"]}, "unknown key 'chocies'; did you mean 'choices'?"),
        ({}, "a task has choices, or generate: true; got neither"),
        (
            {**WRITTEN, "prompt": "{number}:"},
            "row 1 of test: prompt names the field 'number', and it has 'digit'",
        ),
        ({**WRITTEN, "prompt": ""}, "row 1 of test: the prompt is empty"),
    ],
)
def test_an_invalid_task_gives_a_one_line_error(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, values: dict[str, Any], message: str
) -> None:
    task = write_task(tmp_path, **(values or {"description": "neither"}))
    status, output, errors = outcome(capfd, "--model", model, "--task", task)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_model_that_is_not_causal_gives_a_one_line_error(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(toy_tokenizer()), **shape)).save_pretrained(tmp_path / "bert")
    toy_tokenizer().save_pretrained(tmp_path / "bert")
    task = write_task(tmp_path)
    status, output, errors = outcome(
        capfd, "--model", tmp_path / "bert", "--task", task, "--output", tmp_path / "out"
    )
    assert (status, output) == (2, "")
    assert errors.startswith(f"vaswani: {tmp_path / 'bert'} holds a model of type 'bert', which does not")
    assert errors.count("\n") == 1
    assert not (tmp_path / "out").exists()
