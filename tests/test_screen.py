"""Progress without a terminal: lines on standard error, soon and then more and more rarely."""

import os
import sys
import time
from threading import Timer

import pytest

from toy_translation import save_toy_checkpoint
from vaswani.cli import run, screen
from vaswani.cli.screen import ProgressLines, progress_bar


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(screen, "LONGEST_DELAY", 0.02)


def wait_for_lines(capsys: pytest.CaptureFixture, number: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < number:
        time.sleep(0.005)
        lines += capsys.readouterr().err.splitlines()
    return lines


@pytest.mark.usefixtures("soon")
def test_long_work_reports_progress(capsys) -> None:
    with progress_bar(4096, " lines") as bar:
        assert isinstance(bar, ProgressLines)  # no terminal
        assert wait_for_lines(capsys, 2)[0] == "vaswani: 0 of 4,096 lines after 0 s"  # in a first long batch
        bar.update(100)
        bar.update(20)
        assert any(line.startswith("vaswani: 120 of 4,096 lines") for line in wait_for_lines(capsys, 2))
    capsys.readouterr()
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("soon")
def test_waiting_for_a_pipe_is_reported_once(capsys) -> None:
    with ProgressLines(None, " lines") as lines:
        assert wait_for_lines(capsys, 1) == ["vaswani: 0 lines after 0 s"]
        lines.update(1)
        assert wait_for_lines(capsys, 1) == ["vaswani: 1 lines after 0 s"]
        time.sleep(0.1)
        assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("typed", [True, False])
def test_typed_input_shows_no_progress(tmp_path, monkeypatch, capsys, typed) -> None:
    save_toy_checkpoint(tmp_path)
    master, slave = os.openpty() if typed else reversed(os.pipe())
    monkeypatch.setattr(sys, "stdin", open(slave))  # noqa: SIM115 - pytest closes it
    os.write(master, b"one\n")
    end = Timer(2.0, lambda: os.write(master, b"\x04") if typed else os.close(master))
    end.start()
    assert run(["translate", "--model", str(tmp_path), "--output", str(tmp_path / "out.txt")]) == 0
    end.join()
    errors = capsys.readouterr().err
    assert "vaswani: translated 1 line" in errors
    assert (" lines after " in errors) == (not typed)


def test_short_work_prints_nothing(capsys) -> None:
    with progress_bar(1, " lines") as bar:
        bar.update(1)
    assert capsys.readouterr().err == ""
