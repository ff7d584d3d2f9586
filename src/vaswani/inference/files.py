"""Translating a file or a stream, line by line, in bounded memory.

One line in is one line out, whatever is in it; only a line feed ends a line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from vaswani.errors import RunError, UserError
from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.translation import Translation, Translator

STANDARD_STREAM = "-"


@dataclass
class LineReport:
    """What became of the lines of one input."""

    lines: int = 0
    empty: int = 0
    too_long: int = 0
    not_utf8: int = 0
    source_cut_off: int = 0
    cut_off: int = 0

    def __str__(self) -> str:
        counts = {
            "empty": self.empty,
            "too long for the model and left empty": self.too_long,
            "not UTF-8 (their bad bytes were read as U+FFFD)": self.not_utf8,
            "of which only the beginning was read": self.source_cut_off,
            "cut off at the length limit": self.cut_off,
        }
        problems = "; ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        return f"{self.lines:,} line{'s' * (self.lines != 1)}" + (f"; {problems}" if problems else "")


def translate_lines(
    translator: Translator,
    lines: BinaryIO,
    write: Callable[[str], None],
    *,
    n_best: int | None = None,
    buffer_size: int = BUFFERED_TEXTS,
    warn: Callable[[str], None],
    progress: Callable[[int], object] | None = None,
) -> LineReport:
    """Translate each line of a stream.

    Args:
        translator: the model with its options.
        lines: UTF-8 text; bytes that are not become U+FFFD.
        write: takes one line after the other, in the order of the input: the text of the best hypothesis or,
            with `n_best`, a JSON object with the `source`, its `hypotheses` (as in `Translation`) and, where
            they say something, the `problem` and `source_cut_off`.
        n_best: hypotheses in JSON of each line; None means the text of the best alone.
        buffer_size: lines read before the first is translated.
        warn: is told of each line that cannot be translated.
        progress: is told of so many more lines done.

    Raises:
        UserError: `n_best` or `buffer_size` out of its range.
    """
    report = LineReport()
    translations = translator.translate(
        decoded(lines, report),
        n_best=1 if n_best is None else n_best,
        with_scores=n_best is not None,
        buffer_size=buffer_size,
        progress=progress,
    )
    for translation in translations:
        report.lines += 1
        report.empty += not translation.source.strip()
        report.source_cut_off += translation.source_cut_off
        report.cut_off += any(not best.complete for best in translation.hypotheses[:1])
        if translation.problem:
            report.too_long += 1
            warn(f"line {report.lines} is left empty: {translation.problem}")
        write(as_text(translation) if n_best is None else _as_json(translation))
    return report


def decoded(lines: BinaryIO, report: LineReport) -> Iterator[str]:
    """Lines of UTF-8 without their ends; other bytes are replaced, and the line is counted."""
    for number, line in enumerate(lines):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            report.not_utf8 += 1
            text = line.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 0 else text  # a byte order mark is no text


def as_text(translation: Translation) -> str:
    """The translation as one line."""
    return re.sub(r"[\r\n]+", " ", translation.text)  # a model of bytes can write line feeds


def _as_json(translation: Translation) -> str:
    record = asdict(translation)
    for name in ("problem", "source_cut_off"):
        if not record[name]:
            del record[name]
    return json.dumps(record, ensure_ascii=False)


@contextmanager
def open_lines(name: str) -> Iterator[BinaryIO]:
    """Open a file, or standard input for "-", for reading lines of bytes.

    Raises:
        UserError: the file cannot be opened.
    """
    if name == STANDARD_STREAM:
        yield sys.stdin.buffer
        return
    try:
        stream = open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}") from error
    with stream:
        yield stream


def count_lines(name: str) -> int | None:
    """The number of lines of a file; None where counting would use them up."""
    if not Path(name).is_file():
        return None
    with open_lines(name) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b""))


class LineWriter:
    """Writes lines to a file, which appears when it is complete, or to standard output for "-".

    Until then, and after a failure, what was written is in the file's name + ".partial".

    Raises:
        UserError: the file cannot be opened.
        RunError: a line cannot be written: the disk is full, the reader of the pipe has gone.
    """

    def __init__(self, name: str):
        path = Path(name)
        self._final: Path | None = None
        self._name, self._is_empty = name, True
        if name == STANDARD_STREAM:
            self._name, self._stream = "standard output", sys.stdout.buffer
            return
        if path.is_file() or not path.exists():  # not so /dev/null or a named pipe
            self._final = path.resolve()  # of a link, what it points to
            self._name = f"{self._final}.partial"
        try:
            self._stream = open(self._name, "wb")  # noqa: SIM115 - closed in __exit__
        except OSError as error:
            raise UserError(f"cannot write {self._name}: {error.strerror}") from error

    def write(self, line: str) -> None:
        """Write one line, in UTF-8, and pass it on at once."""
        try:
            self._stream.write(line.encode("utf-8", errors="replace") + b"\n")
            self._stream.flush()
        except OSError as error:
            self._give_up()
            raise RunError(f"cannot write {self._name}: {error.strerror}") from error
        self._is_empty = False

    def _give_up(self) -> None:
        """Drop what could not be written, or Python would try it again, and complain, at the end."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is sys.stdout.buffer:
            return
        self._stream.close()
        if self._final is None:
            return
        if error is None:
            os.replace(self._name, self._final)
        elif self._is_empty:
            with suppress(OSError):
                os.unlink(self._name)
