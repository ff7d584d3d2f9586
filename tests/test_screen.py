"""Progress without a terminal: lines on standard error, soon and then more and more rarely."""

import time

import pytest

from vaswani.cli import screen
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
def test_work_that_takes_long_says_how_far_it_is(capsys) -> None:
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
def test_a_pipe_that_waits_for_input_is_told_of_once(capsys) -> None:
    with ProgressLines(None, " lines") as lines:
        assert wait_for_lines(capsys, 1) == ["vaswani: 0 lines after 0 s"]
        lines.update(1)
        assert wait_for_lines(capsys, 1) == ["vaswani: 1 lines after 0 s"]
        time.sleep(0.1)
        assert capsys.readouterr().err == ""


def test_short_work_says_nothing(capsys) -> None:
    with progress_bar(1, " lines") as bar:
        bar.update(1)
    assert capsys.readouterr().err == ""
