"""Files of one process at a time: a lock that the kernel releases when its owner ends, however it ends."""

import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)


def open_locked(path: Path) -> int:
    """Open a file, which is made if it does not exist, and lock it until it is closed.

    A file system without locks causes a warning.

    Returns:
        The descriptor. Delete or rename the file before it is closed: nobody else has it until then.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError as error:
            logger.warning(f"{path} cannot be locked ({error.strerror}): see that nobody else writes there.")
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # its owner has just ended, and deleted or renamed it


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
