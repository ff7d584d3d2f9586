"""Run a command and report how it ended.

Every failure is reported in one line on standard error. The exit status is 2 for wrong input and 1 for a
failure during the run, including Ctrl-C. A training that saves and stops ends with 143 after SIGTERM and 130
after Ctrl-C. `--debug`, anywhere on the command line, prints the traceback first.
"""

import errno
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TextIO

from vaswani.cli.commands import app
from vaswani.cli.screen import flush_standard_output, print_message
from vaswani.cli.startup import let_ctrl_c_kill, rank
from vaswani.errors import (
    PipeClosedError,
    RunError,
    StoppedError,
    UserError,
    describe_system_failure,
    one_line,
)

PACKAGE = Path(__file__).parents[1]
TYPER_INTERRUPTED = 130  # what typer returns after Ctrl-C
UNUSABLE_PATH = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
SECONDS_BEFORE_OTHER_RANKS_TELL = 2.0


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    debug = "--debug" in arguments
    try:
        status = app(
            [argument for argument in arguments if argument != "--debug"], "vaswani", standalone_mode=False
        )
        flush_standard_output()
    except Exception as error:
        if debug:
            traceback.print_exc()
        with suppress(RunError):
            flush_standard_output()
        status, message = _status_and_message(error)
        was_stopped = isinstance(error, StoppedError) or isinstance(error.__cause__, KeyboardInterrupt)
        if message and not (was_stopped and rank() > 0):  # all processes stop for the same reason
            _print_failure(message)
        return status
    if status == TYPER_INTERRUPTED:
        print_message("interrupted")
        return 1
    return status or 0


def run_and_exit() -> NoReturn:
    """Run the command of this process, and end the process."""
    warnings.showwarning = _show_warning
    status = run(sys.argv[1:])
    let_ctrl_c_kill()
    if status and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # End at once. Python needs seconds to end normally; meanwhile the other processes would report a lost
        # connection, although the launcher is about to end them.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Write this package's own warnings as one line, and others with the place in the code."""
    if issubclass(category, UserWarning) and Path(filename).is_relative_to(PACKAGE):
        print_message(str(message))
    else:
        print_message(f"{category.__name__}: {message} ({filename}:{lineno})")


def _print_failure(message: str) -> None:
    """Write a message on standard error. When several processes fail, rank 0 writes first."""
    number = rank()
    if number > 0:
        time.sleep(SECONDS_BEFORE_OTHER_RANKS_TELL)  # a launcher ends the others when one has failed
    print_message(f"{f'process {number}: ' if number > 0 else ''}{message}")


def _status_and_message(error: Exception) -> tuple[int, str]:
    if isinstance(error, PipeClosedError):
        return error.exit_status, ""
    if isinstance(error, UserError | RunError):
        return error.exit_status, str(error)
    if isinstance(error, OSError) and error.filename and error.errno in UNUSABLE_PATH:
        return UserError.exit_status, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
    if hasattr(error, "format_message"):  # a usage error of typer
        return getattr(error, "exit_code", 2), error.format_message()
    if told := describe_system_failure(error):
        return 1, told
    return 1, f"{type(error).__name__}: {one_line(error)} (--debug prints the traceback)"
