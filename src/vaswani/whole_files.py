"""Files that appear once they are complete, where they may, and how to tell that they still are."""

import hashlib
import os
from pathlib import Path

from vaswani.errors import UserError


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


def check_empty(output: Path, what: str) -> None:
    """Whether a folder may be written into.

    Args:
        output: the folder, which need not exist yet.
        what: is to be written, such as "the student".

    Raises:
        UserError: there is something in it.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"output {output} is not an empty folder; give another one for {what}")


def sha256_of(path: Path) -> str:
    """The hash of a file, of any size, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
