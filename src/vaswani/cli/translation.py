"""`vaswani translate` and `vaswani summarize`."""

from functools import partial
from typing import Annotated, Any

import typer

from vaswani.bounds import MOST_BEAMS
from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    InputName,
    ModelNames,
    OutputName,
    number,
    table_field,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, progress_of_texts, warn
from vaswani.errors import UserError

NBest = Annotated[
    int | None,
    number(
        "--n_best",
        help="Number of hypotheses per text; written with their scores as JSONL.",
        at_least=1,
        at_most=MOST_BEAMS,
    ),
]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Every output begins with this text.")]
PrefixField = Annotated[
    str | None, table_field("prefix_field", "text that the row's output begins with", "none")
]
RequireField = Annotated[
    str | None, table_field("require_field", "text, or list of texts, that the row's output contains", "none")
]
Scores = Annotated[bool, typer.Option("--scores", help="Same as --n_best 1.")]
Replace = Annotated[
    bool,
    typer.Option("--replace", help="Let --output_field replace an existing field of the table."),
]
Alignments = Annotated[
    bool,
    typer.Option(
        "--alignments",
        help="Write JSONL as --scores does, with pairs of a source word and an output word, counted from 0.",
    ),
]

Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Write each word as soon as it is found: lines of text, with --num_beams 1 or --temperature.",
    ),
]


@app.command()
@takes_translator_options()
def translate(
    model: ModelNames,
    input_name: InputName = "-",
    output_name: OutputName = "-",
    source_field: Annotated[str | None, table_field("source_field", "source text", "source")] = None,
    output_field: Annotated[
        str | None, typer.Option("--output_field", help="Field to add to the rows of a table. [translation]")
    ] = None,
    replace: Replace = False,
    n_best: NBest = None,
    scores: Scores = False,
    alignments: Alignments = False,
    stream: Stream = False,
    prefix: Prefix = None,
    prefix_field: PrefixField = None,
    require_field: RequireField = None,
    buffer_size: BufferSize = None,
    **options: Any,
) -> None:
    """Translate text line by line, or a field of a table: standard streams or files.

    Each input line gives one output line. Each row of a table gives a line of
    JSON: the row with its translation.
    """
    if stream:
        whole = {
            "--n_best": n_best,
            "--scores": scores,
            "--alignments": alignments,
            "--buffer_size": buffer_size,
        }
        if unfit := [name for name, value in whole.items() if value]:
            raise UserError(f"--stream and {unfit[0]} exclude each other; leave one out")
    _translate(
        model,
        (input_name, source_field, {"default": "source"}),
        (output_name, output_field, "translation", "translated"),
        replace=replace,
        n_best=1 if (scores or alignments) and n_best is None else n_best,
        alignments=alignments,
        stream=stream,
        prefix=prefix,
        fields={"prefix": prefix_field, "required": require_field},
        buffer_size=buffer_size,
        **options,
    )


@app.command()
@takes_translator_options(max_length=512, no_repeat_ngram_size=3, too_long="cut")
def summarize(
    model: ModelNames,
    input_name: InputName = "-",
    output_name: OutputName = "-",
    documents: Annotated[
        str | None,
        typer.Option(
            "--documents",
            metavar="file|blank_line|line",
            help="What a document is in plain text: the whole file, the lines between blank lines, or each "
            "line. [file]",
        ),
    ] = None,
    source_field: Annotated[str | None, table_field("source_field", "documents", "text")] = None,
    output_field: Annotated[
        str | None, typer.Option("--output_field", help="Field to add to the rows of a table. [summary]")
    ] = None,
    replace: Replace = False,
    n_best: NBest = None,
    scores: Scores = False,
    prefix: Prefix = None,
    prefix_field: PrefixField = None,
    require_field: RequireField = None,
    buffer_size: BufferSize = None,
    **options: Any,
) -> None:
    """Summarize documents from plain text or a table: standard streams or files.

    Each document gives one output line. Each row of a table gives a line of
    JSON: the row with its summary. Documents that are too long are truncated,
    and counted.
    """
    _translate(
        model,
        (input_name, source_field, {"default": "text", "documents": documents, "default_documents": "file"}),
        (output_name, output_field, "summary", "summarized"),
        replace=replace,
        n_best=1 if scores and n_best is None else n_best,
        prefix=prefix,
        fields={"prefix": prefix_field, "required": require_field},
        buffer_size=buffer_size,
        **options,
    )


def _translate(
    models: list[str],
    source: tuple[str, str | None, dict[str, Any]],
    target: tuple[str, str | None, str, str],
    *,
    replace: bool,
    n_best: int | None,
    prefix: str | None,
    fields: dict[str, str | None],
    buffer_size: int | None,
    stream: bool = False,
    **options: Any,
) -> None:
    """Write the outputs of an encoder-decoder for each text.

    Args:
        models: folders or names on the Hub; several predict together.
        source: name of the input, table field that was given, and how to read it (see `open_texts`).
        target: name of the output, output field that was given, its default, and the verb of the report.
        replace: allow the rows of the table to have the output field already.
        n_best: as in `translate_lines`.
        prefix: text with which all outputs begin.
        fields: table fields with a "prefix" or "required" texts; None if not given.
        buffer_size: texts to read ahead.
        stream: write each word as soon as it is found.
        options: options of `Translator`.
    """
    from vaswani.files.line_files import LineWriter, check_not_input, check_not_json
    from vaswani.inference.inputs import Column, for_tables, open_texts

    if prefix is not None and (given := fields["prefix"]) is not None:
        raise UserError(f"--prefix {prefix} and --prefix_field {given} exclude each other; give one")
    if replace and n_best is not None:
        raise UserError(
            "--replace replaces a field by one text, without scores or alternatives; leave it out"
        )
    (input_name, field, how), (output_name, given_field, default_field, done) = source, target
    output_field = given_field or default_field
    if n_best is not None and given_field is not None:
        raise UserError(
            f"--output_field {given_field} has no effect with scores or alternatives; leave it out"
        )
    columns = {name: field for name, field in fields.items() if field is not None}
    options_of = {"prefix": "prefix_field", "required": "require_field"}
    others = [Column(each, options_of[name], name == "required") for name, each in columns.items()]
    check_not_input(output_name, input_name)
    added = [output_field] if n_best is None else ["hypotheses", "problem", "source_cut_off"]
    added = [] if replace else added
    where: dict[str, Any] = {"option": "source_field", **how}
    where["remedy"] = "choose another with --output_field, or --replace it" if n_best is None else "rename it"
    with open_texts(input_name, field, added=added, others=others, **where) as texts:
        from vaswani.inference.batches import BUFFERED_TEXTS
        from vaswani.inference.translate.files import stream_lines, translate_lines
        from vaswani.inference.translate.phrases import check_prefix
        from vaswani.inference.translate.translation import Translator

        if prefix is not None:
            check_prefix(prefix, options["banned_phrases"] or ())
        if texts.row is None and (replace or given_field is not None):
            option = "--replace" if replace else "--output_field"
            raise for_tables(option, input_name)
        if texts.row is None and n_best is None:
            check_not_json(output_name, "add --scores or --n_best for lines of JSON")
        begin_work()
        with LineWriter(output_name) as writer:
            translator = Translator.from_pretrained(models, **options)
            common: dict[str, Any] = {"warn": warn, "prefix": prefix or ""}
            if stream:
                report = stream_lines(translator, texts, partial(writer.write, end=""), **common)
            else:
                with progress_of_texts(texts, output_name) as bar:
                    report = translate_lines(
                        translator,
                        texts,
                        writer.write,
                        n_best=n_best,
                        buffer_size=buffer_size or (1 if texts.typed else BUFFERED_TEXTS),
                        progress=bar.update,
                        output_field=output_field,
                        columns=[*columns],
                        **common,
                    )
    warn(f"{done} {report}")
