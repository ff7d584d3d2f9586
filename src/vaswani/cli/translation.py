"""`vaswani translate` and `vaswani summarize`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.bounds import MAX_BEAMS
from vaswani.cli.app import app
from vaswani.cli.options import (
    BufferSize,
    InputName,
    ModelNames,
    OutputName,
    added_field,
    check_stream_options,
    number,
    table_field,
    takes_translator_options,
    trained_field,
)
from vaswani.cli.screen import warn
from vaswani.cli.splits import columns_of_training
from vaswani.cli.text_jobs import check_kind, check_line_options, stream_results, write_results
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.inference.inputs import LineReport, Texts
    from vaswani.inference.translate.translation import Translator

NBest = Annotated[
    int | None,
    number(
        "--n_best",
        help="Number of hypotheses per text; written with their scores as JSONL.",
        at_least=1,
        at_most=MAX_BEAMS,
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
    source_field: Annotated[str | None, trained_field("source_field", "source text", "source")] = None,
    output_field: Annotated[str | None, added_field("translation")] = None,
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
        check_stream_options(
            {
                "--n_best": n_best,
                "--scores": scores,
                "--alignments": alignments,
                "--buffer_size": buffer_size,
            }
        )
    (default,) = columns_of_training(model[0], source_field="source")
    job = _Job(
        input_name,
        source_field,
        {"default": default},
        output_name,
        output_field,
        default_field="translation",
        replace=replace,
        n_best=_num_hypotheses(n_best, scores, alignments),
        prefix=prefix,
        fields={"prefix": prefix_field, "required": require_field},
        buffer_size=buffer_size,
        stream=stream,
    )
    report = _translate(job, model, alignments=alignments, **options)
    warn(f"translated {report}")


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
    source_field: Annotated[str | None, trained_field("source_field", "documents", "text")] = None,
    output_field: Annotated[str | None, added_field("summary")] = None,
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
    (default,) = columns_of_training(model[0], source_field="text")
    job = _Job(
        input_name,
        source_field,
        {"default": default, "documents": documents, "default_documents": "file"},
        output_name,
        output_field,
        default_field="summary",
        replace=replace,
        n_best=_num_hypotheses(n_best, scores),
        prefix=prefix,
        fields={"prefix": prefix_field, "required": require_field},
        buffer_size=buffer_size,
    )
    report = _translate(job, model, **options)
    warn(f"summarized {report}")


def _num_hypotheses(n_best: int | None, scores: bool, alignments: bool = False) -> int | None:
    """Return the number of hypotheses to write with their scores; None for the best without its score.

    Raises:
        UserError: `--scores` is given beside an option that writes scores too.
    """
    others = {f"--n_best {n_best}": n_best is not None, "--alignments": alignments}
    if scores and (other := next((option for option, is_given in others.items() if is_given), None)):
        raise UserError(f"--scores has no effect with {other}, which writes scores too; leave it out")
    return 1 if (scores or alignments) and n_best is None else n_best


@dataclass(frozen=True)
class _Job:
    """What a command reads and writes.

    Args:
        input_name: name of the input.
        source_field: table field of the texts, as given.
        reading: how the texts are read (see `open_texts`).
        output_name: name of the output.
        output_field: table field of the outputs, as given.
        default_field: table field of the outputs if none is given.
        replace: allow the rows of the table to have the output field already.
        n_best: as in `translate_lines`.
        prefix: text with which all outputs begin.
        fields: table fields with a "prefix" or "required" texts; None if not given.
        buffer_size: texts to read ahead.
        stream: write each word as soon as it is found.
    """

    input_name: str
    source_field: str | None
    reading: dict[str, Any]
    output_name: str
    output_field: str | None
    default_field: str
    replace: bool
    n_best: int | None
    prefix: str | None
    fields: dict[str, str | None]
    buffer_size: int | None
    stream: bool = False

    def check(self) -> None:
        """Raise `UserError` for options that exclude each other."""
        if self.prefix is not None and (given := self.fields["prefix"]) is not None:
            raise UserError(f"--prefix {self.prefix} and --prefix_field {given} exclude each other; give one")
        if self.replace and self.n_best is not None:
            raise UserError(
                "--replace replaces a field by one text, without scores or alternatives; leave it out"
            )
        if self.n_best is not None and self.output_field is not None:
            raise UserError(
                f"--output_field {self.output_field} has no effect with scores or alternatives; leave it out"
            )

    def texts(self) -> "AbstractContextManager[Texts]":
        """Open the texts."""
        from vaswani.inference.inputs import Column, open_texts

        options = {"prefix": "prefix_field", "required": "require_field"}
        others = [
            Column(field, options[name], words=name == "required")
            for name, field in self.fields.items()
            if field is not None
        ]
        if self.n_best is not None:
            added, remedy = ["hypotheses", "problem", "source_cut_off"], "rename it"
        else:
            added = [] if self.replace else [self.output_field or self.default_field]
            remedy = "choose another with --output_field, or --replace it"
        return open_texts(
            self.input_name,
            self.source_field,
            option="source_field",
            added=added,
            remedy=remedy,
            others=others,
            **self.reading,
        )

    def check_lines(self, texts: "Texts") -> None:
        """Raise `UserError` for an option of tables, or the name of a table, if the texts are lines."""
        of_tables = {"--replace": self.replace, "--output_field": self.output_field is not None}
        option = next((name for name, is_given in of_tables.items() if is_given), None)
        remedy = "add --scores or --n_best for lines of JSON" if self.n_best is None else None
        check_line_options(texts, self.input_name, self.output_name, option, remedy)

    def write(self, load: "Callable[[], Translator]", texts: "Texts") -> "LineReport":
        """Load a translator, and write the output of each text."""
        from vaswani.inference.translate.files import stream_lines, translate_lines

        common: dict[str, Any] = {"warn": warn, "prefix": self.prefix or ""}
        if self.stream:
            return stream_results(load, texts, stream_lines, self.output_name, **common)
        return write_results(
            load,
            texts,
            translate_lines,
            self.output_name,
            self.buffer_size,
            n_best=self.n_best,
            output_field=self.output_field or self.default_field,
            columns=[name for name, field in self.fields.items() if field is not None],
            **common,
        )


def _translate(job: _Job, models: list[str], **options: Any) -> "LineReport":
    """Write the output of an encoder-decoder, or of several together, for each text of a job."""
    from vaswani.files.line_files import check_not_input

    job.check()
    check_not_input(job.output_name, job.input_name)
    if options["engine"] != "ctranslate2":
        check_kind(models[0], "AutoModelForSeq2SeqLM")
    with job.texts() as texts:
        from vaswani.inference.translate.phrases import check_prefix
        from vaswani.inference.translate.translation import Translator, check_search

        check_search(options, None if job.stream else job.n_best or 1)
        if job.prefix is not None:
            check_prefix(job.prefix, options["banned_phrases"] or ())
        job.check_lines(texts)
        return job.write(partial(Translator.from_pretrained, models, **options), texts)
