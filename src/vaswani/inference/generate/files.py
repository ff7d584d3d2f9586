"""Continue the prompts of a file or a stream, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from vaswani.errors import UserError
from vaswani.inference.batches import BUFFERED_TEXTS
from vaswani.inference.generate.generation import Generation, TextGenerator
from vaswani.inference.inputs import LineReport, TextLines, Texts, on_one_line
from vaswani.inference.streaming import check_lines, write_pieces


def generate_texts(
    generator: TextGenerator,
    texts: Texts,
    write: Callable[[str], None],
    *,
    num_samples: int | None = None,
    output_field: str = "continuation",
    buffer_size: int = BUFFERED_TEXTS,
    warn: Callable[[str], None],
    progress: Callable[[int], object] | None = None,
) -> LineReport:
    """Continue each prompt of an input.

    Args:
        generator: the model with its options.
        texts: the prompts (see `open_texts`).
        write: receives an output line for each prompt, in order. For a line, this is the continuation, with
            spaces in place of line breaks; for a row of a table, the row with `output_field`. With
            `num_samples`, it is a JSON object: the `prompt` or the row, its `continuations` (as in
            `GeneratedText`) and, if they apply, `problem` and `prompt_cut_off`.
        num_samples: number of continuations of each prompt, with scores; None writes only the text of one.
        output_field: field of the continuation in a row.
        buffer_size: number of prompts to read ahead; smaller at the beginning.
        warn: is called with a message for each prompt that cannot be continued.
        progress: is called with the number of prompts that a batch has finished.
    """
    report = texts.report
    generations = generator.generate(
        texts,
        num_samples=num_samples or 1,
        with_scores=num_samples is not None,
        buffer_size=buffer_size,
        progress=progress,
    )
    for generation in generations:
        texts.take()
        report.prompt_cut_off += generation.prompt_cut_off
        report.cut_off += generation.cut_off
        if generation.problem:
            report.not_continued += 1
            warn(f"{texts.place} is left empty: {generation.problem}")
        if num_samples is not None:
            write(texts.record(**_fields(generation, texts)))
        elif isinstance(texts, TextLines):
            line = on_one_line(generation.text)
            report.line_breaks += line != generation.text
            write(line)
        else:
            write(texts.record(**{output_field: generation.text}))
    return report


def stream_texts(
    generator: TextGenerator,
    texts: Texts,
    write: Callable[[str], None],
    *,
    warn: Callable[[str], None],
) -> LineReport:
    """Continue each line of an input, and write each word as soon as it is found.

    Args:
        generator: the model with its options.
        texts: the lines (see `open_texts`); they are read one by one.
        write: receives the pieces of each continuation, with spaces in place of line breaks, and then a line
            feed.
        warn: is called with a message for each prompt that cannot be continued.

    Raises:
        UserError: the input is a table.
    """
    check_lines(texts)
    report = texts.report
    for number, text in enumerate(texts):
        texts.take()
        try:
            pieces = generator.stream(text, number=number)
        except UserError as error:
            report.not_continued += 1
            warn(f"{texts.place} is left empty: {error}")
        else:
            generation = write_pieces(pieces, write)
            report.prompt_cut_off += generation.prompt_cut_off
            report.cut_off += generation.cut_off
            report.line_breaks += on_one_line(generation.text) != generation.text
        write("\n")
    return report


def _fields(generation: Generation, texts: Texts) -> dict[str, Any]:
    fields = asdict(generation)
    if texts.row is not None:
        del fields["prompt"]  # the row has it
    return {name: value for name, value in fields.items() if value or name in ("prompt", "continuations")}
