"""Files that appear once they are complete, and how to tell that they still are."""

import hashlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once or not at all: what was there stays till then. Processes may do so side by side.

    Raises:
        OSError: it cannot be written.
    """
    unfinished = path.with_name(f"unfinished-{path.name}-{os.getpid()}")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """The hash of a file, of any size, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
