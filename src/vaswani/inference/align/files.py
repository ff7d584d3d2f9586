"""Align the pairs of an input in bounded memory; write Pharaoh's lines, or table rows with a new field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import tee

from vaswani.errors import UserError
from vaswani.files.line_files import open_lines
from vaswani.inference.align.aligner import Aligner, SymmetricAligner
from vaswani.inference.align.links import AlignmentErrors, GoldLinks, check_inside, read_gold, to_pharaoh
from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.inputs import LineReport, decoded
from vaswani.inference.pair_inputs import Pairs


@dataclass(frozen=True)
class Aligned:
    """The result of aligning an input.

    Args:
        report: counts of the pairs.
        errors: alignment errors against gold links; None without gold links.
    """

    report: LineReport
    errors: AlignmentErrors | None = None

    def __str__(self) -> str:
        return f"{self.report}" + ("" if self.errors is None else f": {self.errors}")


def align_pairs(
    aligner: Aligner | SymmetricAligner,
    pairs: Pairs,
    write: Callable[[str], None],
    *,
    gold: Iterable[tuple[str, GoldLinks]] | None = None,
    output_field: str = "alignment",
    buffer_size: int = BUFFERED_TEXTS,
    warn: Callable[[str], None],
    progress: Callable[[int], object] | None = None,
) -> Aligned:
    """Align each pair of an input.

    Args:
        aligner: the model, or the models of both directions, with its options.
        pairs: the pairs of the input (see `open_pairs`).
        write: receives the links of each pair, in order, such as `0-0 1-2`; for a table, the row with the
            links in `output_field`. A pair that is not aligned has no links.
        gold: the annotated links of each pair, with their places (see `load_gold`).
        output_field: see `write`.
        buffer_size: number of pairs to read ahead; smaller at the beginning.
        warn: is called with a message for each pair that is not aligned.
        progress: is called with the number of pairs of each finished batch.

    Raises:
        UserError: the gold links have more or fewer lines than there are pairs, or a link names a word that
            its pair does not have.
    """
    report, errors = pairs.report, None if gold is None else AlignmentErrors()
    waiting = iter(gold or ())
    given, kept = tee(pairs)
    found = aligner.stream(given, buffer_size=buffer_size, progress=progress)
    for alignment, (source, target) in zip(found, kept, strict=True):
        pairs.take()
        report.empty += not (source.strip() and target.strip())
        if alignment.problem:
            report.not_aligned += 1
            warn(f"{pairs.place} is not aligned: {alignment.problem}")
        report.source_cut_off += alignment.source_cut_off
        if errors is not None:
            place, links = _next_gold(waiting, pairs.place)
            check_inside(links, len(source.split()), len(target.split()), place)
            errors.add(alignment.links, links)
        line = to_pharaoh(alignment.links)
        write(line if pairs.row is None else pairs.record(**{output_field: line}))
    if surplus := next(waiting, None):
        raise UserError(f"the input ends before {surplus[0]}; give gold links for these pairs, one per line")
    return Aligned(report, errors)


def _next_gold(gold: Iterator[tuple[str, GoldLinks]], place: str) -> tuple[str, GoldLinks]:
    found = next(gold, None)
    if found is None:
        raise UserError(f"the gold links end before {place}; give a line for each pair, empty without links")
    return found


def load_gold(name: str, total: int | None) -> list[tuple[str, GoldLinks]]:
    """Return the place and the gold links of each line of a file (see `read_gold`).

    Args:
        name: name of the file.
        total: number of pairs, if known.

    Raises:
        UserError: the file cannot be read, holds something other than links, or does not have `total` lines.
    """
    gold = []
    with open_lines(name) as lines:
        for number, line in enumerate(decoded(lines, LineReport()), start=1):
            place = f"line {number:,} of {name}"
            gold.append((place, read_gold(line, place)))
    if total is not None and len(gold) != total:
        raise UserError(
            f"{name} has {len(gold):,} lines, and there are {total:,} pairs; give a line per pair, empty "
            "without links"
        )
    return gold
