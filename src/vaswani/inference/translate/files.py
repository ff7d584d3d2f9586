"""Translate a file or a stream in bounded memory.

Each line, or row of a table, gives one output line; only a line feed ends a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from vaswani.errors import UserError
from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.inputs import LineReport, TextLines, Texts, on_one_line
from vaswani.inference.streaming import check_lines, write_pieces
from vaswani.inference.translate.phrases import Line
from vaswani.inference.translate.results import Translation
from vaswani.inference.translate.translation import Translator


def translate_lines(
    translator: Translator,
    texts: Texts,
    write: Callable[[str], None],
    *,
    n_best: int | None = None,
    buffer_size: int = BUFFERED_TEXTS,
    warn: Callable[[str], None],
    progress: Callable[[int], object] | None = None,
    output_field: str = "translation",
    prefix: str = "",
    columns: Sequence[str] = (),
) -> LineReport:
    """Translate each text of an input.

    Args:
        translator: the model with its options.
        texts: the texts of the input (see `open_texts`).
        write: receives each output line, in input order. For a line, this is the text of the best hypothesis
            or, with `n_best`, a JSON object with the `source`, its `hypotheses` (as in `Translation`) and, if
            they apply, `problem` and `source_cut_off`. For a row of a table, it is the row with
            `output_field` or, with `n_best`, with these fields except `source`.
        n_best: number of hypotheses of each text, written as JSON; None writes only the best text.
        buffer_size: number of texts to read ahead; smaller at the beginning.
        warn: is called with a message for each text that cannot be translated.
        progress: is called with the number of texts of each finished batch.
        output_field: field of the translation in a row.
        prefix: text that all translations begin with; empty for none.
        columns: the columns of a table besides the texts: "prefix" or "required" (see `Line`).

    Raises:
        UserError: `n_best` or `buffer_size` is out of range, a line is too long, or a row is unreadable.
    """
    report = texts.report
    if prefix:
        translator.prefix_tokens(prefix)  # raises if no translation can begin with it
    lines_of = (_as_line(cells, columns, prefix) for cells in texts)
    translations = translator.translate(
        lines_of if prefix or columns else texts,
        n_best=1 if n_best is None else n_best,
        with_scores=n_best is not None,
        buffer_size=buffer_size,
        progress=progress,
    )
    for translation in translations:
        texts.take()
        report.empty += not translation.source.strip()
        report.source_cut_off += translation.source_cut_off
        report.cut_off += translation.cut_off
        if translation.problem:
            report.left_empty += 1
            warn(f"{texts.place} is left empty: {translation.problem}")
        write(_line(texts, translation, n_best, output_field))
    return report


def stream_lines(
    translator: Translator,
    texts: Texts,
    write: Callable[[str], None],
    *,
    warn: Callable[[str], None],
    prefix: str = "",
) -> LineReport:
    """Translate one line after the other, and write each word as soon as it is found.

    Args:
        translator: a translator with greedy search or sampling.
        texts: the texts of the input, which must be lines.
        write: receives the pieces of each translation (see `Translator.stream`) and then a line feed.
        warn: is called with a message for each line that cannot be translated.
        prefix: text that all translations begin with; empty for none.

    Raises:
        UserError: the translator cannot stream, no translation can begin with the prefix, or the input is a
            table.
    """
    check_lines(texts)
    translator.check_stream()
    if prefix:
        translator.prefix_tokens(prefix)
    report = texts.report
    for number, text in enumerate(texts):
        texts.take()
        report.empty += not text.strip()
        report.source_cut_off += translator.sides.encode_sources([text])[0].cut_off
        try:
            pieces = translator.stream(text, prefix=prefix, number=number)
        except UserError as error:
            report.left_empty += 1
            warn(f"{texts.place} is left empty: {error}")
        else:
            report.cut_off += not write_pieces(pieces, write)
        write("\n")
    return report


def _as_line(cells: Any, columns: Sequence[str], prefix: str) -> Line:
    """Return a text, or the cells of a table, as a line to translate."""
    text, *others = cells if columns else (cells,)
    given = dict(zip(columns, others, strict=True))
    required = given.get("required", ())
    phrases = (required,) if isinstance(required, str) else required  # a list in JSON and Parquet
    return Line(text, given.get("prefix", prefix), tuple(phrase for phrase in phrases if phrase))


def _line(texts: Texts, translation: Translation, n_best: int | None, output_field: str) -> str:
    """Return the output line of a translation."""
    if n_best is None:
        is_line = isinstance(texts, TextLines)
        return as_text(translation) if is_line else texts.record(**{output_field: translation.text})
    fields = asdict(translation)
    if texts.row is not None:
        del fields["source"]  # the row has it
    for name in ("problem", "source_cut_off"):
        if not fields[name]:
            del fields[name]
    for hypothesis in fields["hypotheses"]:
        for name in ("alignment", "reverse_log_prob"):
            if hypothesis[name] is None:
                del hypothesis[name]
    return texts.record(**fields)


def as_text(translation: Translation) -> str:
    """Return the translation as one line."""
    return on_one_line(translation.text)  # byte models can write line feeds
