"""One run at a time in a folder, by a locked file."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vaswani.errors import UserError
from vaswani.files.file_locks import open_locked

LOCK_FILE = ".lock"

_held: set[int] = set()  # descriptors of this process; a fork of it, such as a data loader, holds no lock


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. A missing folder is created, and removed again if it stays empty.

    A lock file of a dead process does not block. A file system without locks causes a warning.

    Raises:
        UserError: another process holds the lock.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    descriptor = _open_locked(folder)
    try:
        yield
    finally:
        (folder / LOCK_FILE).unlink(missing_ok=True)  # while locked, so that no other run's is deleted
        _held.discard(descriptor)
        os.close(descriptor)
        with suppress(OSError):  # not empty
            for parent in made:
                parent.rmdir()


def _open_locked(folder: Path) -> int:
    """Return the descriptor of the lock file, which holds the name of this process."""
    path = folder / LOCK_FILE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = open_locked(path)
            break
        except FileNotFoundError:  # its owner has just removed the folder
            continue
        except FileExistsError as error:  # the owner removed the folder during mkdir
            if _is_other_than_a_folder(error.filename):
                raise
        except BlockingIOError:
            owner = _owner(path) or "another process"
            raise UserError(
                f"output_dir={folder} is in use by {owner}: wait until that run ends, stop it, or choose "
                "another --output_dir"
            ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    _held.add(descriptor)
    return descriptor


def _is_other_than_a_folder(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISDIR(mode) and not os.path.isdir(path)


def _owner(path: Path) -> str:
    """Return the content of a lock file; empty if the file is gone."""
    with suppress(OSError):
        return path.read_bytes().decode(errors="replace").strip()
    return ""


def _release_after_fork() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_after_fork)
