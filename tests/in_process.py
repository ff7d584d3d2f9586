"""Run a command in this process, which takes less time than a process of its own."""

import pytest

from vaswani.cli import run


def outcome(capture: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, output and errors of a command."""
    capture.readouterr()
    status = run(list(map(str, arguments)))
    captured = capture.readouterr()
    return status, captured.out, captured.err
