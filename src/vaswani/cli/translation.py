"""`vaswani translate` and `vaswani evaluate`."""

import os
import sys
from functools import partial
from typing import Annotated, Any

import typer

from vaswani.bounds import MOST_BEAMS
from vaswani.cli.app import app
from vaswani.cli.options import (
    DatasetConfig,
    ModelName,
    SourceField,
    Split,
    TargetField,
    number,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, check_standard_output, progress_bar, say, warn
from vaswani.cli.splits import load_split
from vaswani.files.json_files import finite_json


@app.command()
@takes_translator_options()
def translate(
    model: ModelName,
    input_name: Annotated[
        str, typer.Option("--input", metavar="FILE|-", help="UTF-8 text, one sentence or paragraph per line.")
    ] = "-",
    output_name: Annotated[
        str,
        typer.Option("--output", metavar="FILE|-", help="Lines go to FILE.partial until all are translated."),
    ] = "-",
    n_best: Annotated[
        int | None,
        number(
            "--n_best",
            help="Number of hypotheses per line; written with their scores as JSONL.",
            at_least=1,
            at_most=MOST_BEAMS,
        ),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Same as --n_best 1.")] = False,
    buffer_size: Annotated[
        int | None,
        number("--buffer_size", help="Lines to read ahead. Default: 4096, or 1 from a terminal.", at_least=1),
    ] = None,
    **options: Any,
) -> None:
    """Translate text line by line: standard input to standard output, or files."""
    from vaswani.files.line_files import STANDARD_STREAM, LineWriter, check_not_input, count_lines, open_lines

    check_not_input(output_name, input_name)
    with open_lines(input_name) as lines:
        from vaswani.inference.batches import BUFFERED_TEXTS
        from vaswani.inference.translate.files import translate_lines
        from vaswani.inference.translate.translation import Translator

        begin_work()
        with LineWriter(output_name) as writer:
            translator = Translator.from_pretrained(model, **options)
            shares_terminal = output_name == STANDARD_STREAM and sys.stdout.isatty()
            typed = lines.isatty()
            with progress_bar(count_lines(input_name), " lines", hidden=shares_terminal, typed=typed) as bar:
                report = translate_lines(
                    translator,
                    lines,
                    writer.write,
                    n_best=1 if scores and n_best is None else n_best,
                    buffer_size=buffer_size or (1 if typed else BUFFERED_TEXTS),
                    warn=warn,
                    progress=bar.update,
                )
    warn(f"translated {report}")


@app.command()
@takes_translator_options()
def evaluate(
    model: ModelName,
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="Test data: dates (built in); a JSONL, JSON, CSV, TSV or Parquet file; a text file of "
            "sources, with TARGET_FILE after it; the folder or Hub name of a data set.",
        ),
    ],
    target_file: Annotated[str | None, typer.Argument(help="Text file of targets, line by line.")] = None,
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: SourceField = "source",
    target_field: TargetField = "target",
    task: Annotated[
        str, typer.Option(help="translation (BLEU, chrF, exact match) or summarization (ROUGE).")
    ] = "translation",
    output_name: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Write the outputs, one per line.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the scores as one JSON object on the last line.")
    ] = False,
    **options: Any,
) -> None:
    """Translate or summarize a corpus, and score the outputs."""
    from vaswani.evaluation.text_metrics import check_task, score_texts
    from vaswani.evaluation.translator import evaluate as evaluate_translator
    from vaswani.files.line_files import LineWriter, check_not_input
    from vaswani.inference.translate.files import as_text
    from vaswani.inference.translate.translation import Translator

    check_task(task)
    check_standard_output()
    begin_work()
    files = [data] if target_file is None else [data, target_file]
    check_not_input(output_name or os.devnull, *files)
    fields = {"dataset_config": dataset_config, "source_field": source_field, "target_field": target_field}
    with LineWriter(output_name or os.devnull) as writer:
        split, rows = load_split(files, split, **fields)
        translator = Translator.from_pretrained(model, **options)
        with progress_bar(len(rows), " rows") as bar:
            evaluation = evaluate_translator(translator, rows, partial(score_texts, task=task), bar.update)
        for translation in evaluation.translations:
            writer.write(as_text(translation))
    say(str(evaluation))
    if as_json:
        names = ("num_beams", "length_penalty", "max_source_length", "max_length")
        search = {name: options[name] for name in names}
        search["max_source_length"] = translator.max_source_length
        record = {"model": model, "data": files, "split": split, **search, **evaluation.to_dict()}
        say(finite_json(record))
