"""A cache of compiled libraries on disk, used only by the user who compiled them.

Code is loaded from the cache, so the folder and its files must belong to the user and be writable by nobody
else. A file's name ends with the SHA-256 of its content, which reveals any damage.
"""

import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LARGEST = 1 << 26  # bytes; a library has less than 100,000
SECONDS_OF_A_WRITE = 3600  # an older unfinished file is left from a process that died


def cache_folder() -> Path:
    """Return the folder of libraries: `vaswani` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vaswani")


class LibraryCache:
    """The folder of libraries, open for the duration of a `with` block.

    If the folder cannot be used, one warning says why; reading finds nothing and writing keeps nothing.
    """

    def __init__(self) -> None:
        self.folder = cache_folder()
        self._descriptor: int | None = None

    def __enter__(self) -> "LibraryCache":
        try:
            self._descriptor = _open_private(self.folder)
        except OSError as error:
            self._warn(error)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the stored contents of a library; delete files that are damaged or not the user's."""
        if self._descriptor is None:
            return
        for file in sorted(os.listdir(self._descriptor)):
            if not re.fullmatch(rf"{re.escape(name)}-[0-9a-f]{{64}}\.so", file):
                continue
            try:
                content = _read_private(file, self._descriptor)
            except OSError as error:
                logger.warning(
                    "%s is not loaded and is compiled again: %s.", self.folder / file, _reason(error)
                )
                self._delete(file)
            else:
                yield content

    def write(self, name: str, content: bytes) -> None:
        """Store a library, atomically and durably; safe with concurrent writers."""
        if self._descriptor is None:
            return
        file = f"{name}-{sha256(content).hexdigest()}.so"
        try:
            _write_private(file, content, self._descriptor)
        except OSError as error:
            self._warn(error)
        for other in os.listdir(self._descriptor):
            if other.startswith("unfinished-") and self._age(other) > SECONDS_OF_A_WRITE:
                self._delete(other)

    def _age(self, file: str) -> float:
        try:
            return time.time() - os.stat(file, dir_fd=self._descriptor, follow_symlinks=False).st_mtime
        except OSError:  # another process has deleted it
            return 0

    def _delete(self, file: str) -> None:
        with suppress(OSError):
            os.unlink(file, dir_fd=self._descriptor)
        shutil.rmtree(self.folder / file, ignore_errors=True)  # a folder in its place

    def _warn(self, error: OSError) -> None:
        logger.warning(
            "Compiled code is not kept in %s: %s. Every process compiles it anew; set XDG_CACHE_HOME to a "
            "folder that you alone can write.",
            self.folder,
            _reason(error),
        )


def _open_private(folder: Path) -> int:
    """Create a folder if it does not exist, and open it; the folder itself must not be a link.

    Raises:
        OSError: it cannot be created, does not belong to the user, or others can write to it.
    """
    if not folder.is_absolute():
        raise OSError("the user has no home folder")
    for path in [*reversed(folder.parents), folder]:
        if not path.exists():
            with suppress(FileExistsError):  # a dangling link, or another process was faster
                path.mkdir(mode=0o700)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check_private(status)
        if status.st_mode & 0o077:
            with suppress(OSError):  # on a read-only disk
                os.fchmod(descriptor, 0o700)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_private(status: os.stat_result) -> None:
    """Raise a PermissionError unless the user owns a file or a folder, and nobody else can write to it."""
    if status.st_uid != os.geteuid():
        raise PermissionError(f"it belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022:
        raise PermissionError(f"other users can write to it (mode {stat.S_IMODE(status.st_mode):04o})")


def _read_private(file: str, folder: int) -> bytes:
    """Return the content of a file whose name contains its hash.

    Raises:
        OSError: the file is damaged, or other users own it or can write to it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(file, flags, dir_fd=folder), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a file")
        _check_private(status)
        content = opened.read(LARGEST)
    if not file.endswith(f"-{sha256(content).hexdigest()}.so"):
        raise OSError("it is damaged")
    return content


def _write_private(file: str, content: bytes, folder: int) -> None:
    unfinished = f"unfinished-{secrets.token_hex(4)}-{file}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(unfinished, flags, 0o600, dir_fd=folder), "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.rename(unfinished, file, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=folder)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
