"""What the command `vaswani` does before its imports, which take seconds.

It is imported before them and acts at once, where the process is the command; for a program that imports the
package, nothing changes.
"""

import errno
import io
import os
import signal
import sys
import threading
import time
from typing import Any

from vaswani.bootstrap import end, is_command
from vaswani.errors import OutputError, PipeClosedError, UserError
from vaswani.files.line_files import give_up

LAUNCHER_VARIABLE = "VASWANI_LAUNCHER"  # its process id, in the environment of the processes that it starts
SECONDS_WITHOUT_LAUNCHER = 60  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.2


def prepare_command() -> None:
    """Prepare this process for the libraries that the command imports.

    - Standard streams that are closed are opened on the null device, so that no file takes their place.
    - Python processes that it starts do not import from the current folder (from Python 3.11).
    - A process of a launcher ends with its launcher.
    """
    prepare_streams()
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _check_current_folder()
    _watch_launcher()


def _check_current_folder() -> None:
    """End the command where the current folder was deleted; libraries fail there with tracebacks."""
    try:
        os.getcwd()
    except OSError:
        end("the current folder was deleted; change into another one (cd)", UserError.exit_status)


# -------------------------------------------------------------------------------------------------- streams


class _Output(io.TextIOWrapper):
    """Standard output. What cannot be written ends the command with one line, and is not tried again."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if error.errno == errno.EBADF:  # closed from the start: only results are missed (see `LineWriter`)
            return
        give_up(self)
        if error.errno == errno.EPIPE:
            raise PipeClosedError("nobody reads standard output any more") from error
        raise OutputError(f"cannot write standard output: {error.strerror}") from error


class _Remarks(_Output):
    """Standard error. Remarks that nobody can read are no reason to end."""

    def _give_up(self, error: OSError) -> None:
        give_up(self)


def prepare_streams() -> None:
    """Put something in the place of standard streams that are closed; have errors of the others told.

    Else the next file that is opened takes the place, and what is meant for the screen is written into it.
    Reading standard input and writing results to standard output still fail.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            _open_null(descriptor, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    sys.stdout = _wrapped(sys.stdout, _Output)
    sys.stderr = _wrapped(sys.stderr, _Remarks)


def _open_null(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)


def _wrapped(stream: Any, kind: type[_Output]) -> Any:
    """The stream with its settings; a letter that a terminal cannot show does not end a run."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Output):
        return stream
    wrapped: Any = kind(
        stream.buffer,
        encoding=stream.encoding,
        errors="replace" if kind is _Output else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    wrapped.replaced = stream  # kept, for it would close the buffer with itself
    return wrapped


# ------------------------------------------------------------------------------------------------- launchers


def _watch_launcher() -> None:
    """End this process when its launcher has died: that of `--num_processes`, torchrun or accelerate."""
    launcher = int(os.environ.pop(LAUNCHER_VARIABLE, 0))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = launcher or os.getppid()
    if launcher:
        threading.Thread(target=_end_with, args=(launcher,), daemon=True, name="launcher").start()


def _end_with(launcher: int) -> None:
    """Wait until the launcher is gone; send SIGTERM, on which a training saves, and later SIGKILL."""
    while os.getppid() == launcher:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_WITHOUT_LAUNCHER)
    os.kill(os.getpid(), signal.SIGKILL)


if is_command():
    prepare_command()
