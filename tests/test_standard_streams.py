"""Commands whose standard streams are closed, full or unread still write complete files.

All commands run in one process for each state of the streams, which are put anew before each command.
"""

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from every_command import commands, save_models
from rank_processes import CONTEXT

pytestmark = pytest.mark.process

STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}
BROKEN_PIPE = 141  # as a shell shows SIGPIPE


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


def run_in(state: dict[str, str], folder: Path, arguments: list[list[str]]) -> None:
    """Run commands in this process, whose streams are as said, and write their statuses and errors."""
    from vaswani.cli import main

    told = []
    kept = os.dup(2)
    for number, command in enumerate(arguments):
        errors = folder / f"{number}.err"
        for name, descriptor in STANDARD.items():
            put_stream(name, descriptor, state.get(name, str(errors) if name == "stderr" else os.devnull))
        sys.argv = ["vaswani", *command]
        try:
            main()
        except SystemExit as ended:
            told.append((ended.code, errors.read_text() if errors.exists() else ""))
    os.dup2(kept, 2)
    (folder / "told.json").write_text(json.dumps(told))


def put_stream(name: str, descriptor: int, state: str) -> None:
    """Close a stream, break it or open a file in its place, and make Python's of it as at its start."""
    if state == "closed":
        with suppress(OSError):
            os.close(descriptor)
        setattr(sys, name, None)
        return
    if state == "gone":
        reads, opened = os.pipe()
        os.close(reads)
    else:
        opened = os.open(state, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    stream = io.FileIO(descriptor, "r" if name == "stdin" else "w", closefd=False)
    buffer = io.BufferedReader(stream) if name == "stdin" else io.BufferedWriter(stream)
    setattr(sys, name, io.TextIOWrapper(buffer, line_buffering=name == "stderr"))


@pytest.fixture
def outcomes(models: Path, tmp_path: Path) -> Callable[..., dict[str, tuple[int, str]]]:
    def run_all(state: dict[str, str], *names: str, **further: list[str]) -> dict[str, tuple[int, str]]:
        """Status and messages of commands of `commands`, and of further ones."""
        wanted = {name: arguments for name, (arguments, _) in commands(models, tmp_path).items()}
        wanted = {name: wanted[name] for name in names} | further
        process = CONTEXT.Process(target=run_in, args=(state, tmp_path, list(wanted.values())))
        process.start()
        process.join(300)
        assert process.exitcode == 0
        told = json.loads((tmp_path / "told.json").read_text())
        return {name: tuple(one) for name, one in zip(wanted, told, strict=True)}

    return run_all


SAYS = {  # of standard output: the status where it fails, and what is said
    "closed": (1, "vaswani: cannot write standard output: it is closed\n"),
    "gone": (BROKEN_PIPE, ""),
    "/dev/full": (1, "vaswani: cannot write standard output: No space left on device\n"),
}
NEEDS_STANDARD_OUTPUT = ("evaluate", "prompt")  # their scores go nowhere else: they do not even begin

WRITE_NOTHING_THERE = {
    "translate": "translated 4 lines",
    "summarize": "summarized 1 document",
    "predict": "predicted 4 lines",
    "embed": "embedded 4 lines",
    "generate": "continued 4 lines",
    "align": "aligned 4 rows",
    "attention": "wrote encoder, decoder, cross attention to ",
    "score": "scored 4 rows",
}


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("state", SAYS)
def test_files_are_complete_when_standard_output_fails(outcomes, models, tmp_path, state) -> None:
    expected = commands(models, tmp_path)
    told = outcomes({"stdout": state}, *expected)
    for name, (status, errors) in told.items():
        if name in WRITE_NOTHING_THERE:
            said = f"vaswani: {WRITE_NOTHING_THERE[name]}"
            assert (status, errors[: len(said)]) == (0, said)
        else:
            assert status == SAYS[state][0], (name, errors)
            assert errors.endswith(SAYS[state][1]), (name, errors)
            assert "Traceback" not in errors
        written = [] if name in NEEDS_STANDARD_OUTPUT and state != "gone" else expected[name][1]
        assert all(file.stat().st_size for file in written), name
    assert not list(tmp_path.rglob("*.partial"))
    assert not list(tmp_path.rglob("unfinished-*"))


@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("state", ["closed", "gone", "/dev/full"])
def test_a_failing_standard_error_does_not_stop_a_command(outcomes, models, tmp_path, state) -> None:
    names = ["translate", "evaluate", "embed", "student", "compare"]
    expected = commands(models, tmp_path)
    told = outcomes({"stderr": state}, *names, wrong=["translate", "--model", "nowhere/x/y"])
    assert told.pop("wrong")[0] == 2
    assert {name: status for name, (status, _) in told.items()} == dict.fromkeys(names, 0)
    assert all(file.stat().st_size for name in names for file in expected[name][1])
    assert not list(tmp_path.rglob("*.partial"))


def test_a_closed_standard_input_gives_an_error(outcomes, models) -> None:
    told = outcomes({"stdin": "closed"}, translate=["translate", "--model", str(models / "translator")])
    assert told["translate"] == (1, "vaswani: cannot read line 1 of the input: it is closed\n")


def test_a_failing_standard_output_gives_an_error_for_results(outcomes, models) -> None:
    model, text = ["--model", str(models / "translator")], ["--input", str(models / "in.txt")]
    for state, expected in SAYS.items():
        told = outcomes(
            {"stdout": state}, translate=["translate", *model, *text], embed=["embed", *model, *text]
        )
        assert set(told.values()) == {expected}
