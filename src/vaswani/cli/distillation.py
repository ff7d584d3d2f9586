"""`vaswani student` and `vaswani compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.comparison import compare_others, compare_translators, comparison_request
from vaswani.cli.evaluation_options import declare_rows
from vaswani.cli.options import (
    AllowMismatch,
    OutputFolder,
    Split,
    check_models,
    check_text_file,
    model_option,
    takes_options_of,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, print_line, warn
from vaswani.errors import UserError


@app.command()
def student(
    output: Annotated[Path, OutputFolder],
    teacher: Annotated[
        str,
        model_option("--teacher", help="Folder of a trained model, or the Hub name of an encoder-decoder."),
    ],
    encoder_layers: Annotated[
        str | None,
        typer.Option(
            "--encoder_layers",
            help='Layers to keep: a number, evenly spaced ("6"), or a list ("0,2,5"; one layer: "5,"). '
            "Default: all.",
        ),
    ] = None,
    decoder_layers: Annotated[
        str | None,
        typer.Option("--decoder_layers", help="Layers to keep, written as for the encoder."),
    ] = None,
    allow_mismatch: AllowMismatch = False,
) -> None:
    """Make a smaller student from some of a teacher's layers.

    Train it afterwards, for example with vaswani distill. For translation,
    keep a deep encoder and a shallow decoder, such as 6 layers and 1: the
    decoder runs once per generated token, the encoder once per sentence.
    """
    from vaswani.distillation.student import parse_layers, save_student

    begin_work()
    before, after = save_student(
        teacher,
        output,
        parse_layers(encoder_layers, "encoder_layers"),
        parse_layers(decoder_layers, "decoder_layers"),
        allow_mismatch,
    )
    fewer = 100 * (1 - after / before)
    print_line(f"saved {output}: teacher {before:,} parameters, student {after:,} ({fewer:.1f} % fewer)")


@app.command()
@takes_translator_options(  # left out: options that would apply to all models
    "revision", "engine", "quantization", "ensemble_weights", "ensemble_average"
)
@takes_options_of(declare_rows)
def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="Folder or Hub name of the model to compare with, such as a teacher.", callback=check_models
        ),
    ],
    others: Annotated[
        list[str],
        typer.Argument(
            metavar="OTHER...",
            help="Folders or Hub names of the other models, such as students.",
            callback=check_models,
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="Test data: dates (built in); a JSONL, JSON, CSV, TSV or Parquet file; a text file of "
            "sources, beside --target_file; the folder or Hub name of a data set.",
        ),
    ],
    target_file: Annotated[
        str | None,
        typer.Option(
            "--target_file",
            metavar="FILE",
            help="Text file of targets, line by line.",
            callback=check_text_file,
        ),
    ] = None,
    split: Split = "test",
    baseline: Annotated[
        str | None,
        model_option(
            "--baseline",
            help="The same student, trained without distillation; the other models are then a teacher and "
            "students.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="Metric of the conclusions, such as bleu, chrf, rougeL, accuracy or macro_f1. Default: the "
            "first of the task, in the order of vaswani evaluate; accuracy for language models."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for report.md, report.json and, for translators, quality_speed.png. Default: the "
            "second model's.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare models of one task with the first: size, quality, significance, speed.

    Each model's difference from the first in each metric has a 95 % interval
    and the p-value of the paired bootstrap (Koehn, 2004). If the other models
    were distilled, the report calls them students and the first their teacher.
    The models are those of vaswani evaluate, and so are the metrics. Columns
    and texts are read as in the second model's training, or the first's.
    """
    from vaswani.distillation.report import as_markdown, write_report, write_texts
    from vaswani.distillation.stack_report import stack_markdown
    from vaswani.training.trainer.checkpoints import check_writable

    begin_work()
    models, files = [first, *others, *filter(None, [baseline])], [data, *filter(None, [target_file])]
    request = comparison_request(models, files, split, metric, bool(baseline), options)
    if output is None and not Path(others[0]).is_dir():
        raise UserError(
            f"{others[0]} is not a local folder that the report can go into; give --output FOLDER"
        )
    folder = output or Path(others[0])
    check_writable(folder, "output")
    if request.kind == "seq2seq":
        translators = compare_translators(request)
        markdown = as_markdown(translators)
        write_report(translators, folder)
    else:
        stacks = compare_others(request)
        markdown = stack_markdown(stacks)
        write_texts(stacks, markdown, folder)
    warn(f"wrote the report into {folder}")
    print_line(markdown.rstrip("\n"))
