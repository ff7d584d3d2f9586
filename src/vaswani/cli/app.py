"""The application that commands register with, and how a command ends.

Heavy imports stand inside the commands. Every failure is one line on standard error: exit status 2 for what
the user gave, 1 for what happened on the way, Ctrl-C included. With `--debug`, anywhere on the command line,
the traceback comes before it.
"""

import errno
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, NoReturn

import typer

from vaswani.bootstrap import rank, restore_ctrl_c
from vaswani.cli.application import Application
from vaswani.cli.screen import flush_standard_output, tell
from vaswani.errors import (
    PipeClosedError,
    RunError,
    StoppedError,
    UserError,
    describe_system_failure,
    one_line,
)
from vaswani.startup import prepare_streams

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C
NOT_USABLE = (  # of a path that was given
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
SECONDS_BEFORE_THE_OTHERS_TELL = 2.0

app = Application(
    help="The original Transformer: train it, evaluate it, translate with it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _common(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; any command takes it.")
    ] = False,
) -> None:
    """Declare what all commands take; `run` acts on it."""


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
        was_asked_to = isinstance(error, StoppedError) or isinstance(error.__cause__, KeyboardInterrupt)
        if message and not (was_asked_to and rank() > 0):  # several processes stop as one
            _tell(message)
        return status
    if status == TYPER_INTERRUPTED:
        tell("interrupted")
        return 1
    return status or 0


def _tell(message: str) -> None:
    """On standard error; of several processes the first speaks for all that fail alike."""
    number = rank()
    if number > 0:
        time.sleep(SECONDS_BEFORE_THE_OTHERS_TELL)  # launchers end the others when one has failed
    tell(f"{f'process {number}: ' if number > 0 else ''}{message}")


def _status_and_message(error: Exception) -> tuple[int, str]:
    if isinstance(error, PipeClosedError):
        return error.exit_status, ""
    if isinstance(error, UserError | RunError):
        return error.exit_status, str(error)
    if isinstance(error, OSError) and error.filename and error.errno in NOT_USABLE:
        return UserError.exit_status, f"cannot use {os.fsdecode(error.filename)}: {error.strerror}"
    if hasattr(error, "format_message"):  # typer's own, about usage
        return getattr(error, "exit_code", 2), error.format_message()
    if told := describe_system_failure(error):
        return 1, told
    return 1, f"{type(error).__name__}: {one_line(error)} (--debug shows where)"


def main() -> NoReturn:
    """Entry point of the command."""
    prepare_streams()
    restore_ctrl_c()
    status = run(sys.argv[1:])
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # all is done and said
    if status and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # At once: while Python takes its seconds to end, the others lose their connection to this process and
        # complain of it, though the launcher is about to end them.
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
