"""The command `vaswani`: parse, call, print.

- `startup.py` prepares the process: streams, Ctrl-C, the launcher.
- `command_line.py` runs a command and reports how it ended.
- `app.py` has the application with which commands register. Each group of commands has a file, which
  `commands.py` imports.

Commands import what they need inside their functions, so that `--help` and usage errors need no torch.
"""

from collections.abc import Sequence
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the command."""
    from vaswani.cli.startup import prepare_process

    prepare_process()
    from vaswani.cli.command_line import run_and_exit

    run_and_exit()


def run(arguments: Sequence[str]) -> int:
    """Run a command in this process and return its exit status."""
    from vaswani.cli.command_line import run

    return run(arguments)
