"""Errors that end a command with one line on standard error, and what led to them."""

import errno
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

# transformers and safetensors report a full disk as errors of their own, with these words in them.
_FULL_DISK = ("No space left on device", "os error 28", "PytorchStreamWriter failed", "iostream error")


# What the system says of a folder that cannot be made or written to.
_UNWRITABLE = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EISDIR),
    *(errno.ENOTEMPTY,),
)


# What is said in the place of errors that advise to set these options.
_NO_FOREIGN_CODE = {
    "trust_remote_code=True": "it needs code that comes with it, and such code is not run",
    "weights_only": "it is pickled and holds more than tensors, which could be code, and is not loaded",
}


class UserError(ValueError):
    """What was given, what was expected and what to do, in one line; the exit status is 2."""

    exit_status = 2


class RunError(RuntimeError):
    """What stopped a run that was given nothing wrong, and what is saved, in one line; exit status 1."""

    exit_status = 1


class OutputError(RunError):
    """Standard output cannot be written: its disk is full, or nobody reads it."""


class PipeClosedError(OutputError):
    """Nobody reads standard output any more, as after `| head -1`: the command ends and says nothing."""

    exit_status = 128 + 13  # of SIGPIPE, as shells show it


class StoppedError(RunError):
    """A run that SIGTERM asked to stop has saved its state; the exit status is as shells tell it."""

    exit_status = 128 + signal.SIGTERM


def check_positive(**values: int) -> None:
    """Raise a UserError unless each of these options is 1 or more."""
    for name, value in values.items():
        if value < 1:
            raise UserError(f"{name}={value} must be at least 1")


def listing(names: Iterable[str]) -> str:
    """Names for a message, not too many of them."""
    shown = [f"'{name}'" for name in names]
    return ", ".join(shown[:30]) + (f" and {len(shown) - 30} more" if len(shown) > 30 else "")


def one_line(text: object) -> str:
    """A text, or what an error says, on one line; a library's advice to run foreign code is left out."""
    line = " ".join(str(text).split())
    return next((reason for option, reason in _NO_FOREIGN_CODE.items() if option in line), line)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def is_full_disk(error: BaseException) -> bool:
    """Whether an error, or one that led to it, tells of a disk or a quota that is full."""
    return any(
        (isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT))
        or any(words in str(link) for words in _FULL_DISK)
        for link in causes(error)
    )


def describe_system_failure(error: BaseException) -> str | None:
    """What to tell when a disk or the memory is full; None for other errors."""
    named = next((link for link in causes(error) if isinstance(link, OSError) and link.filename), None)
    place = f" of {os.fsdecode(named.filename)}" if named and isinstance(named.filename, str | bytes) else ""
    if is_full_disk(error):
        return f"no space left on the disk{place}: free some, or write to another"
    if isinstance(error, MemoryError):
        return "out of memory: end other programs, or give less at once"
    return None


def describe_cache_failure(error: BaseException, cache: Path, variables: str) -> str | None:
    """What to tell when a cache cannot be written; None if the error is about something else.

    Args:
        error: that came while files were written there.
        cache: the folder.
        variables: of the environment, that put it elsewhere.
    """
    if is_full_disk(error):
        return (
            f"no space left on the disk of the cache {cache}: free some, or set {variables} to a folder on "
            "another disk"
        )
    for link in causes(error):
        if isinstance(link, OSError) and link.errno in _UNWRITABLE and _concerns(link.filename, cache):
            return (
                f"cannot write to the cache {cache} ({link.strerror}): set {variables} to a folder that you "
                "can write to"
            )
    return None


def _concerns(file: object, folder: Path) -> bool:
    """Whether an error about a file or folder tells that another folder cannot be written to."""
    if not isinstance(file, str | Path):
        return False
    path = Path(file)
    return path.is_relative_to(folder) or folder.is_relative_to(path)
