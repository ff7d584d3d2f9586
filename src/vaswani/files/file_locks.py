"""Lock a file for one process at a time; the kernel releases the lock when the process ends in any way."""

import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


def open_locked(path: Path) -> int:
    """Open a file, create it if needed, and lock it until it is closed.

    A warning is logged if the file system has no locks.

    Returns:
        The descriptor. Delete or rename the file before closing it, while no other process can lock it.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened, or is a symbolic link.
    """
    while True:
        # The name can be guessed: somebody who may write in the folder could link it to another file.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError as error:
            logger.warning(f"{path} cannot be locked ({error.strerror}): see that nobody else writes there.")
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # the former owner has just deleted or renamed the file


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
