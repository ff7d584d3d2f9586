"""Prepare the process of the command `vaswani` before it imports its libraries.

`prepare_process` runs first in `main`. It does the following, in this order:

1. Ctrl-C ends the process with one line. The imports of torch and transformers take seconds, and libraries
   turn an exception in the middle of an import into errors of their own. After its imports a command calls
   `begin_work` (`screen.py`). From then on Ctrl-C raises `KeyboardInterrupt`, so that work can be saved.
2. Closed standard streams are opened on the null device. Otherwise the next file that is opened would take
   their descriptor, and messages would be written into it.
3. Python processes that the command starts do not import from the current folder (from Python 3.11).
4. A deleted current folder ends the command; libraries fail there with tracebacks.
5. A process that a launcher started ends with its launcher.
6. Warnings about changes in later versions of libraries (`FutureWarning`) are hidden, because users of a
   command cannot act on them. Python's own options (`-W`, PYTHONWARNINGS) show them again.
"""

import errno
import io
import os
import signal
import sys
import threading
import time
import warnings
from typing import Any, NoReturn

from vaswani.bootstrap import LAUNCHER_VARIABLE
from vaswani.errors import OutputError, PipeClosedError, UserError
from vaswani.files.line_files import give_up

SECONDS_WITHOUT_LAUNCHER = 60  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.2


def prepare_process() -> None:
    """Prepare this process for the libraries that the command imports (see above)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a background job ignores it
        signal.signal(signal.SIGINT, _end_at_once)
    prepare_streams()
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    _check_current_folder()
    _watch_launcher()
    if not sys.warnoptions:
        warnings.simplefilter("ignore", FutureWarning)


def rank() -> int:
    """Return the rank of this process among those that run the command together; 0 for a single process."""
    number = os.environ.get("RANK", "")
    return int(number) if number.isdecimal() else 0


def _check_current_folder() -> None:
    """End the command if the current folder was deleted."""
    try:
        os.getcwd()
    except OSError:
        _end("the current folder was deleted; change into another one (cd)", UserError.exit_status)


def _end(message: str, status: int) -> NoReturn:
    """End this process with one line, which rank 0 writes for all processes."""
    try:
        if rank() == 0:
            os.write(2, f"vaswani: {message}\n".encode())
    finally:  # standard error may be closed
        os._exit(status)


# --------------------------------------------------------------------------------------------------- Ctrl-C


def _end_at_once(*_: object) -> None:
    _end("interrupted", 1)


def restore_ctrl_c() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def let_ctrl_c_kill() -> None:
    """Let Ctrl-C end the process without a message: the work is done."""
    if signal.getsignal(signal.SIGINT) in (_end_at_once, signal.default_int_handler):
        signal.signal(signal.SIGINT, signal.SIG_DFL)


# -------------------------------------------------------------------------------------------------- streams


class _Output(io.TextIOWrapper):
    """Standard output. A failed write ends the command with one line and is not retried."""

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
        if error.errno == errno.EBADF:  # closed from the start; `LineWriter` reports it if results are lost
            return
        give_up(self)
        if error.errno == errno.EPIPE:
            raise PipeClosedError("nobody reads standard output any more") from error
        raise OutputError(f"cannot write standard output: {error.strerror}") from error


class _Messages(_Output):
    """Standard error. A message that cannot be written is dropped."""

    def _give_up(self, error: OSError) -> None:
        give_up(self)


def prepare_streams() -> None:
    """Open closed standard streams on the null device, and report write errors of the others in one line.

    Reading closed standard input and writing results to closed standard output still fail.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            _open_null(descriptor, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115
    sys.stdout = _wrapped(sys.stdout, _Output)
    sys.stderr = _wrapped(sys.stderr, _Messages)


def _open_null(descriptor: int, flags: int) -> None:
    opened = os.open(os.devnull, flags)
    if opened != descriptor:
        os.dup2(opened, descriptor)
        os.close(opened)
    os.set_inheritable(descriptor, True)


def _wrapped(stream: Any, stream_class: type[_Output]) -> Any:
    """Return the stream with the same settings, except that it replaces characters it cannot encode."""
    if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Output):
        return stream
    wrapped: Any = stream_class(
        stream.buffer,
        encoding=stream.encoding,
        errors="replace" if stream_class is _Output else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
    wrapped.replaced = stream  # keep it: a deleted stream closes its buffer
    return wrapped


# ------------------------------------------------------------------------------------------------- launchers


def _watch_launcher() -> None:
    """End this process when its launcher (`--num_processes`, torchrun or accelerate) has died."""
    launcher = int(os.environ.pop(LAUNCHER_VARIABLE, 0))
    if "TORCHELASTIC_RUN_ID" in os.environ:
        launcher = launcher or os.getppid()
    if launcher:
        threading.Thread(target=_end_with, args=(launcher,), daemon=True, name="launcher").start()


def _end_with(launcher: int) -> None:
    """Wait until the launcher has ended; then send SIGTERM, on which a training saves, and later SIGKILL."""
    while os.getppid() == launcher:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(SECONDS_WITHOUT_LAUNCHER)
    os.kill(os.getpid(), signal.SIGKILL)
