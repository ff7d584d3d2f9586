"""Text files and standard streams, line by line and in bounded memory."""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import logging
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from vaswani.errors import PipeClosedError, RunError, UserError
from vaswani.files.file_locks import open_locked

logger = logging.getLogger(__name__)

STANDARD_STREAM = "-"
COLUMN_ENDINGS = (".conll", ".conll.gz")  # a word and its tags in each line, as in CoNLL's shared tasks
OTHER_FORMATS = (".csv", ".tsv", ".parquet", ".gz")  # not for outputs of lines
LONGEST_LINE = 1 << 22  # bytes; tokenizing takes up to 400 times as much memory, and /dev/zero never ends
BEGINNING = 1 << 20  # bytes of a file by which its line ends are recognized


_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PACKED = {  # the first bytes of compressed files
    "gzip": rb"\x1f\x8b",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "bzip2": rb"BZh[1-9]1AY&SY",
    "xz": rb"\xfd7zXZ\x00",
    "zip": rb"PK\x03\x04",
}


@contextmanager
def open_lines(name: str) -> Iterator[BinaryIO]:
    """Open a file, gzipped if its name ends with .gz, or standard input for "-", for reading lines of bytes.

    Raises:
        UserError: the file cannot be opened.
    """
    if name == STANDARD_STREAM:
        yield _standard_buffer(sys.stdin, "read standard input")
        return
    try:
        stream = open(name, "rb")  # noqa: SIM115 - closed below
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise UserError(f"cannot read {name}: {reason(error)}") from error
    with stream:
        if not name.lower().endswith(".gz"):
            yield stream
            return
        with gzip.open(stream) as unpacked:
            yield cast(BinaryIO, unpacked)


def read_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream with their line feeds, or carriage returns; the last line may lack them.

    Lines end as `has_old_line_ends` says.

    Raises:
        UserError: a line is longer than `LONGEST_LINE` bytes, or the text is UTF-16 or compressed.
        RunError: the stream cannot be read.
    """
    number, lines = 0, _lines_of(stream)
    while True:
        number += 1
        try:
            line = next(lines, b"")
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"the input is damaged or not gzip ({error}); write or download it again"
            ) from error
        except OSError as error:
            raise RunError(f"cannot read line {number:,} of the input: {reason(error)}") from error
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"line {number:,} of the input has more than {LONGEST_LINE >> 20} MiB; "
                "expected text, with a line feed after each sentence or paragraph"
            )
        if not line:
            return
        yield line


def _lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a stream; one that is longer than `LONGEST_LINE` is cut, but longer still."""
    read = partial(stream.readline, LONGEST_LINE + 1)
    first = read()
    if problem := not_utf8(first[:200]):
        raise UserError(f"the input {problem}")
    if has_old_line_ends(first[:BEGINNING]):
        yield from _split_at_returns(first, stream)
    else:
        yield from chain([first], iter(read, b""))


def _split_at_returns(block: bytes, stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a block and of the rest of its stream, which end with carriage returns."""
    held = b""
    while block:
        *lines, held = (held + block).split(b"\r")
        for line in lines:
            yield line + b"\r"
        if len(held) > LONGEST_LINE:
            break
        block = stream.read(BEGINNING)
    if held:
        yield held


def has_old_line_ends(start: bytes) -> bool:
    r"""Return True if lines end with "\r", as old Macs wrote, and not with "\n" or "\r\n".

    Args:
        start: the first `BEGINNING` bytes of a file.
    """
    return b"\n" not in start and b"\r" in start[:-1]


def not_utf8(start: bytes) -> str | None:
    """Return why a file with these first bytes is not UTF-8 text, with the remedy; None if it may be."""
    if _is_utf16(start):
        return "is UTF-16, not UTF-8; convert it (iconv -f UTF-16 -t UTF-8)"
    packer = next((name for name, mark in _PACKED.items() if re.match(mark, start)), None)
    return packer and f"is packed by {packer}; unpack it" + (", or name it .gz" if packer == "gzip" else "")


def _is_utf16(start: bytes) -> bool:
    """Return True for UTF-16: with a byte order mark, or with a NUL in almost every second byte."""
    nuls = [start[place::2].count(0) for place in (0, 1)]
    return start.startswith(_UTF16) or (len(start) >= 8 and min(nuls) == 0 and max(nuls) > 0.4 * len(start))


def count_lines(name: str, unpack: bool = False) -> int | None:
    """Count the lines of a file; None for pipes and streams, which are read once, and for gzip.

    Args:
        name: name of the file.
        unpack: count the lines of gzip too, although it must be unpacked once more to be read.

    Raises:
        UserError, RunError: as `read_lines`.
    """
    if not os.path.isfile(name) or (name.lower().endswith(".gz") and not unpack):
        return None
    with open_lines(name) as stream:
        return sum(1 for _ in read_lines(stream))


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yield the texts between blank lines; newlines inside a text stay."""
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        if line.strip():
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []


def check_not_input(output: str, *inputs: str | Path | None) -> None:
    """Raise a UserError if the output would replace an input file."""
    for name in inputs:
        if name and os.path.isfile(output) and os.path.isfile(name) and os.path.samefile(output, name):
            raise UserError(f"--output {output} would replace the input {name}; give another file")


def check_not_json(output: str, remedy: str) -> None:
    """Raise a UserError if an output for lines of text has a name that ends in .jsonl."""
    if output.lower().endswith(".jsonl"):
        raise UserError(f"--output {output} would hold lines of text, not JSON; end it in .txt, or {remedy}")


class LineWriter:
    """Writes lines to a file, which appears when it is complete, or to standard output for "-".

    Until then, and after a failure, the lines are in the file NAME.partial. The next writer moves them to
    NAME.partial.old, unless that file has more.

    Raises:
        UserError: the file cannot be opened, or its name has the ending of another format.
        PipeClosedError: standard output is a closed pipe.
        RunError: a line cannot be written, for example because the disk is full.
    """

    def __init__(self, name: str):
        self._final: Path | None = None
        self._is_standard = name == STANDARD_STREAM
        self._name, self._is_empty = name, True
        if self._is_standard:
            self._name = "standard output"
            self._stream: Any = _standard_buffer(sys.stdout, "write standard output")
            self._check_open()
            return
        if name.lower().endswith(OTHER_FORMATS):
            raise UserError(
                f"{name} would hold lines of text or JSON, not what its name ends in; "
                "end it in .txt or .jsonl"
            )
        try:
            if os.path.isfile(name) or not os.path.exists(name):  # not /dev/null or a named pipe
                self._final = Path(os.path.realpath(name))  # the target of a link
                self._name = f"{self._final}.partial"
            self._stream = self._open()
        except (OSError, ValueError) as error:
            folder = Path(name).absolute().parent
            advice = "" if os.path.exists(folder) else f"; create the folder {folder} first"
            # Only what is already at NAME.partial can be its own problem.
            blamed = self._name if os.path.lexists(self._name) else name
            raise UserError(f"cannot write {blamed}: {reason(error)}{advice}") from error

    def _open(self) -> BinaryIO:
        """Open and empty the file, locked for this process."""
        if self._final is None:
            return open(self._name, "wb")
        path = Path(self._name)
        try:
            stream = os.fdopen(open_locked(path), "wb")
            if _moved_aside(path):
                stream.close()
                stream = os.fdopen(open_locked(path), "wb")
        except BlockingIOError as error:
            raise UserError(
                f"another process writes {self._name}; wait for its end, or give another --output"
            ) from error
        stream.truncate(0)
        return stream

    def write(self, line: str, end: str = "\n") -> None:
        """Write one line in UTF-8, or a part of a line with another `end`, and flush it."""
        try:
            self._stream.write((line + end).encode("utf-8", errors="replace"))
            self._stream.flush()
        except OSError as error:
            give_up(self._stream)
            raise self._failure(error) from error
        self._is_empty = False

    def _check_open(self) -> None:
        """Raise now, not after hours of work, if standard output is closed or its disk is full."""
        try:
            os.write(self._stream.fileno(), b"")
        except io.UnsupportedOperation:  # a stream in memory
            return
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> RunError:
        if self._is_standard and error.errno == errno.EPIPE:
            return PipeClosedError("nobody reads standard output any more")
        return RunError(f"cannot write {self._name}: {reason(error)}")

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._is_standard:
            return
        with self._stream:  # keeps the lock until the file is renamed or deleted
            if self._final is None:
                return
            if error is None:
                self._rename()
            elif self._is_empty:
                with suppress(OSError):
                    os.unlink(self._name)

    def _rename(self) -> None:
        try:
            os.replace(self._name, str(self._final))
        except OSError as error:
            raise RunError(
                f"cannot rename {self._name}, which is complete, to {self._final}: {reason(error)}"
            ) from error


def _moved_aside(partial: Path) -> bool:
    """Move what an earlier writer left to PARTIAL.old, unless that has more; return whether it was moved."""
    old = partial.with_name(f"{partial.name}.old")
    kept = old.stat().st_size if old.exists() else 0
    if partial.stat().st_size <= kept:
        return False
    os.replace(partial, old)
    logger.warning("%s was not complete; its lines are in %s now.", partial, old)
    return True


def give_up(stream: Any) -> None:
    """Discard what a stream could not write: Python would try again, and complain, at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def reason(error: Exception) -> str:
    """Return the system's message for an error, without Python's number and quotes."""
    if getattr(error, "errno", None) == errno.EBADF:
        return "it is closed"
    return getattr(error, "strerror", None) or str(error)


def _standard_buffer(stream: Any, purpose: str) -> Any:
    if stream is None:
        raise UserError(f"cannot {purpose}: it is closed")
    return stream.buffer
