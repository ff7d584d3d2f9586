"""Translate a file or a stream line by line in bounded memory.

Each input line gives one output line; only a line feed ends a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import BinaryIO

from vaswani.files.json_files import finite_json
from vaswani.files.line_files import read_lines
from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.translate.translation import Translation, Translator


@dataclass
class LineReport:
    """Counts of the lines of one input."""

    lines: int = 0
    empty: int = 0
    too_long: int = 0
    not_utf8: int = 0
    source_cut_off: int = 0
    cut_off: int = 0

    def __str__(self) -> str:
        counts = {
            "empty": self.empty,
            "too long and left empty": self.too_long,
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
        lines: UTF-8 text; invalid bytes become U+FFFD.
        write: receives each line in input order: the text of the best hypothesis or, with `n_best`, a JSON
            object with the `source`, its `hypotheses` (as in `Translation`) and, where they apply, `problem`
            and `source_cut_off`.
        n_best: hypotheses of each line in JSON; None means the text of the best one.
        buffer_size: lines read ahead; fewer at the beginning.
        warn: is called with a message for each line that cannot be translated.
        progress: is called with the number of lines of each finished batch.

    Raises:
        UserError: `n_best` or `buffer_size` is out of range, or a line is too long.
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
    """Yield lines of UTF-8 without their ends; replace invalid bytes and count their lines."""
    for number, line in enumerate(read_lines(lines)):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            report.not_utf8 += 1
            text = line.decode("utf-8", errors="replace")
        yield text.removeprefix("\ufeff") if number == 0 else text  # drop a byte order mark


def as_text(translation: Translation) -> str:
    """Return the translation as one line."""
    return re.sub(r"[\r\n]+", " ", translation.text)  # byte models can write line feeds


def _as_json(translation: Translation) -> str:
    record = asdict(translation)
    for name in ("problem", "source_cut_off"):
        if not record[name]:
            del record[name]
    return finite_json(record, ensure_ascii=False)
