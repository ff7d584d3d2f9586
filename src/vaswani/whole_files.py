"""Files that appear once they are complete."""

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
