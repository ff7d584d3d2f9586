"""A process that has imported what the commands of `vaswani` need, and runs each in a copy of itself.

Every command is so a process of its own, and begins seconds sooner than a new one.

    python forking.py    # a JSON object on each line of standard input: the arguments of `run_command`

For each it prints the exit status on a line.
"""

import json
import os
import signal
import sys
from typing import NoReturn

import vaswani.hub.push
import vaswani.inference.translate.translation
import vaswani.training.runs.translation  # noqa: F401  # what takes time to import
from tiny_runs import leave_out_curves
from vaswani.cli import main

LONGEST = 300  # seconds


def serve() -> None:
    """Until standard input ends."""
    for line in sys.stdin:
        copy = os.fork()
        if not copy:
            run_command(**json.loads(line))
        _, status = os.waitpid(copy, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run_command(
    arguments: list[str], folder: str, stdout: str, stderr: str, variables: dict[str, str]
) -> NoReturn:
    """In a folder, with what it prints in files; the variables of the environment come after the imports."""
    signal.alarm(LONGEST)
    os.chdir(folder)
    os.environ.update(variables)
    for descriptor, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    leave_out_curves()
    sys.argv = ["vaswani", *arguments]
    main()


if __name__ == "__main__":
    serve()
