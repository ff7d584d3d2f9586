"""A teacher's outputs on disk: computed once, in shards, and never mixed with those of another teacher.

A cache is a folder with a `manifest.json`, which names all that the outputs depend on, and one file for every
`rows_per_shard` rows of the data. A shard appears when it is complete, and depends on no other shard. So a
killed run loses only the shards in progress, and leaves the same bytes when it is resumed. A line of JSON at
the start of a shard holds the SHA-256 of the rest, which detects any damage.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from accelerate import PartialState
from tqdm import tqdm

from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import discard_unfinished, remove, write_whole

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
HEADER_SIZE = 80  # bytes
LONGEST_SHOWN = 40  # characters of a value in a message; hashes are longer


class OutputCache:
    """A folder of outputs of one kind, in shards of `rows_per_shard` rows of the data.

    Args:
        folder: created if it does not exist.
        kind: name of the kind of outputs.
        identity: everything that the outputs depend on, as plain JSON values with readable names, such as
            `{"teacher": fingerprint_model(model), "temperature": 2.0}`.
        num_rows: number of rows of the data.
        rows_per_shard: number of rows in a shard, and so the most that a killed process computes again.
        process_index: number of this process among those that compute the outputs together.
        num_processes: number of these processes.

    Raises:
        UserError: the folder holds other outputs (the message tells what differs), is damaged, or cannot be
            created.
    """

    def __init__(
        self,
        folder: str | Path,
        kind: str,
        identity: dict[str, Any],
        num_rows: int,
        rows_per_shard: int = 1024,
        process_index: int = 0,
        num_processes: int = 1,
    ) -> None:
        self.folder = Path(folder)
        self.num_rows = num_rows
        self.rows_per_shard = rows_per_shard
        self.num_shards = -(-num_rows // rows_per_shard)  # number of shards of a complete cache
        # All shards are dealt out, not only the missing ones: these become fewer while other processes work,
        # so a shard could go to two processes or to none.
        self._own_shards = range(process_index, self.num_shards, num_processes)
        manifest = {
            "kind": kind,
            "format_version": FORMAT_VERSION,
            "identity": identity,
            "num_rows": num_rows,
            "rows_per_shard": rows_per_shard,
        }
        self._open(json.dumps(manifest, indent=2))

    def _open(self, manifest: str) -> None:
        """Write the manifest into a new folder; compare it with that of an existing one."""
        path = self.folder / MANIFEST
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            discard_unfinished(self.folder)
            # In this order: another process writes its manifest before its first shard.
            has_shards = any(self.folder.glob("shard-*"))
            if not path.exists() and not has_shards:
                write_whole(path, manifest.encode())
            if path.exists() and not path.is_file():
                raise ValueError("not a file")
            found = json.loads(path.read_bytes())
        except OSError as error:
            raise UserError(
                f"cannot use {path}: {error.strerror}; give another teacher_cache folder, or delete this one"
            ) from error
        except ValueError as error:
            raise UserError(f"{path} is damaged; delete {self.folder} to compute its outputs anew") from error
        if differences := ", ".join(_differences(found, json.loads(manifest))):
            raise UserError(
                f"{self.folder} was computed with other settings ({differences}); "
                "give another teacher_cache folder, or delete this one"
            )

    def rows_of(self, shard: int) -> range:
        """The rows of the data whose outputs a shard holds."""
        start = shard * self.rows_per_shard
        return range(start, min(start + self.rows_per_shard, self.num_rows))

    def path(self, shard: int) -> Path:
        """The file of a shard: a header of `HEADER_SIZE` bytes, then the content."""
        return self.folder / f"shard-{shard:06}"

    def missing_shards(self) -> list[int]:
        """The shards that this process has to compute; damaged ones are deleted first."""
        return [shard for shard in self._own_shards if not self._has(shard)]

    def _has(self, shard: int) -> bool:
        path = self.path(shard)
        if not os.path.lexists(path):
            return False
        if path.is_file() and self._content(shard) is not None:
            return True
        logger.warning("%s is damaged and is computed again.", path)
        remove(path)
        return False

    def write(self, shard: int, content: bytes) -> None:
        """Write a shard atomically.

        Raises:
            RunError: it cannot be written, for example because the disk is full.
        """
        try:
            write_whole(self.path(shard), _header(content) + content)
        except OSError as error:
            raise RunError(
                f"cannot write {self.path(shard)}: {error.strerror}; the shards before it are kept"
            ) from error

    def write_lines(self, shard: int, values: Iterable[Any]) -> None:
        """Write a shard as lines of JSON, one for each row (see `write`)."""
        lines = (json.dumps(value, ensure_ascii=False) for value in values)
        self.write(shard, "".join(f"{line}\n" for line in lines).encode())

    def read_all(self) -> Iterator[bytes]:
        """The contents of all shards, in the order of the rows.

        Raises:
            UserError: at once if shards are missing; during iteration if one is damaged or cannot be read.
        """
        if missing := [shard for shard in range(self.num_shards) if not self.path(shard).is_file()]:
            raise UserError(
                f"{self.folder} is not complete: it lacks {len(missing)} of {self.num_shards} shards; "
                "run the teacher again, and it will compute those"
            )
        return map(self.read, range(self.num_shards))

    def read_lines(self) -> Iterator[Any]:
        """The values of all rows, in order, from shards written by `write_lines` (see `read_all`)."""
        return (json.loads(line) for content in self.read_all() for line in content.decode().split("\n")[:-1])

    def read(self, shard: int) -> bytes:
        """The content of a shard; raise `UserError` if it is damaged or cannot be read."""
        content = self._content(shard)
        if content is None:
            raise UserError(f"{self.path(shard)} is truncated or damaged; delete it and run again")
        return content

    def _content(self, shard: int) -> bytes | None:
        """The content of a shard; None if it does not match its hash."""
        try:
            data = self.path(shard).read_bytes()
        except OSError as error:
            raise UserError(
                f"cannot read {self.path(shard)} ({error.strerror}); make it readable, or give another "
                "teacher_cache folder"
            ) from error
        header, content = data[:HEADER_SIZE], data[HEADER_SIZE:]
        return content if header == _header(content) else None


def shared_cache(
    folder: str | Path | None, output_dir: Path, kind: str, identity: dict[str, Any], num_rows: int
) -> OutputCache:
    """Return the cache for one kind of outputs; all processes of a run fill it together.

    Args:
        folder: the parent folder of all kinds of outputs; default `teacher_cache` in `output_dir`.
    """
    state = PartialState()
    shares = {"process_index": state.process_index, "num_processes": state.num_processes}
    return OutputCache(
        Path(folder or output_dir / "teacher_cache") / kind, kind, identity, num_rows, **shares
    )


def progress_of_rows(total: int, description: str) -> tqdm:
    """A progress bar on the terminal of the main process."""
    hidden = None if PartialState().is_main_process else True  # None: hidden unless on a terminal
    return tqdm(total=total, desc=description, unit=" rows", disable=hidden)


def _header(content: bytes) -> bytes:
    line = json.dumps({"sha256": hashlib.sha256(content).hexdigest()})
    return f"{line:{HEADER_SIZE - 1}}\n".encode()


def _differences(found: Any, asked: dict[str, Any]) -> Iterator[str]:
    """Describe each difference between two manifests."""
    found = found if isinstance(found, dict) else {}
    for name in {**asked, **found}:
        there, here = found.get(name), asked.get(name)
        if isinstance(here, dict):
            yield from _differences(there, here)
        elif there != here:
            short = max(len(str(there)), len(str(here))) <= LONGEST_SHOWN
            yield f"{name}={there}, now {here}" if short else f"different {name}"
