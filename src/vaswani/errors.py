"""Errors that end a command with one line on standard error, and their causes."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# transformers and safetensors report a full disk as their own errors, which contain these words.
_FULL_DISK = ("No space left on device", "os error 28", "PytorchStreamWriter failed", "iostream error")


# Error numbers for folders that cannot be created or written to.
_UNWRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EISDIR),
    *(errno.ENOTEMPTY,),
)


# Replacements for error messages that advise setting these options.
_NO_FOREIGN_CODE = {
    "trust_remote_code=True": "it needs its own code, which is not run",
    "weights_only": "it is pickled with more than tensors, which could be code, and is not loaded",
}


class UserError(ValueError):
    """Invalid input: what was given, what was expected and what to do, in one line; exits with 2."""

    exit_status = 2


class RunError(RuntimeError):
    """A failure with valid input, and what was saved, in one line; exits with 1."""

    exit_status = 1


class OutputError(RunError):
    """Standard output cannot be written: the disk is full, or the pipe is closed."""


class PipeClosedError(OutputError):
    """Standard output is a closed pipe, as after `| head -1`: the command ends without a message."""

    exit_status = 128 + 13  # of SIGPIPE, as shells show it


class StoppedError(RunError):
    """Stopped by SIGTERM or Ctrl-C after saving; exits with 143 or 130, as shells show these signals.

    Args:
        message: the message for the user.
        number: number of the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGTERM):
        super().__init__(message)
        self.exit_status = 128 + number


def check_positive(**values: int | None) -> None:
    """Raise a UserError unless each of these options is 1 or more, or None."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def listing(names: Iterable[str]) -> str:
    """Return names for a message, at most 30."""
    shown = [f"'{name}'" if name.isprintable() else repr(name) for name in names]
    return ", ".join(shown[:30]) + (f" and {len(shown) - 30} more" if len(shown) > 30 else "")


def names_of_files(names: Sequence[str]) -> str:
    """Return the names of files for a message; of more than three, the first and the number of others."""
    return " and ".join(names if len(names) <= 3 else [names[0], f"{len(names) - 1:,} more files"])


def one_line(text: object) -> str:
    """Return a text or error message on one line, without advice to run untrusted code."""
    line = " ".join(str(text).split())
    return next((reason for option, reason in _NO_FOREIGN_CODE.items() if option in line), line)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def is_full_disk(error: BaseException) -> bool:
    """Return whether an error or one of its causes is a full disk or quota."""
    return any(
        (isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT))
        or any(words in str(link) for words in _FULL_DISK)
        for link in causes(error)
    )


def describe_system_failure(error: BaseException) -> str | None:
    """Describe a full disk or memory; return None for other errors."""
    named = next((link for link in causes(error) if isinstance(link, OSError) and link.filename), None)
    place = f" of {os.fsdecode(named.filename)}" if named and isinstance(named.filename, str | bytes) else ""
    if is_full_disk(error):
        return f"no space left on the disk{place}: free some space, or write to another disk"
    if isinstance(error, MemoryError):
        return "out of memory: end other programs, or process less at once"
    return None


def describe_cache_failure(error: BaseException, cache: Path, variables: str) -> str | None:
    """Describe why a cache cannot be written; return None if the error has another cause.

    Args:
        error: raised while writing to the cache.
        cache: the folder.
        variables: the environment variables that move it.
    """
    if is_full_disk(error):
        return (
            f"no space left on the disk of the cache {cache}: free some space, or set {variables} to a "
            "folder on another disk"
        )
    for link in causes(error):
        if isinstance(link, OSError) and link.errno in _UNWRITABLE and _concerns(link.filename, cache):
            return (
                f"cannot write to the cache {cache} ({link.strerror}): set {variables} to a writable folder"
            )
    return None


def _concerns(file: object, folder: Path) -> bool:
    """Return whether an error about a file concerns a folder: one path contains the other."""
    if not isinstance(file, str | Path):
        return False
    path = Path(file)
    return path.is_relative_to(folder) or folder.is_relative_to(path)
