"""Commands that are refused."""

from pathlib import Path

import pytest

from tiny_runs import as_flags
from vaswani.cli import run


def refusal(command: str, options: dict, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that says why a command does not train; check that it writes no folder.

    Args:
        command: such as `finetune`.
        options: its options; None stands for one that is not given.
        capsys: captures what the command prints.
    """
    given = {name: value for name, value in options.items() if value is not None}
    assert run([command, *as_flags(given)]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    line = printed.strip().splitlines()[-1]
    assert line.startswith("vaswani: ")
    assert not Path(options["output_dir"]).exists()
    return line
