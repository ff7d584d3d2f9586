"""`vaswani student` and `vaswani compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    AllowMismatch,
    DatasetConfig,
    OutputFolder,
    Split,
    check_models,
    column,
    model_option,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, print_line, progress_bar, warn
from vaswani.cli.splits import as_in_training, check_columns, load_split
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
        typer.Option("--target_file", metavar="FILE", help="Text file of targets, line by line."),
    ] = None,
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: Annotated[
        str | None,
        column(
            "source_field",
            "Source column; a dot selects a nested one",
            "as in the second model's training, or the first's, or source",
        ),
    ] = None,
    target_field: Annotated[
        str | None,
        column(
            "target_field",
            "Target column; a dot selects a nested one",
            "as in the second model's training, or the first's, or target",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        model_option(
            "--baseline",
            help="The same student, trained without distillation; the other models are then a teacher and "
            "students.",
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Metric of the conclusions: bleu, chrf or exact_match; for summaries rouge1, rouge2, rougeL "
            "or rougeLsum."
        ),
    ] = "bleu",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for report.md, report.json and quality_speed.png. Default: the second model's.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Compare models with the first: size, quality, significance and decoding speed.

    Each model's difference from the first in each metric has a 95 % interval
    and the p-value of the paired bootstrap (Koehn, 2004). If the other models
    were distilled, the report calls them students and the first their teacher.
    """
    from vaswani.data.sources.corpus import load_corpus
    from vaswani.data.sources.corpus_spec import CorpusSpec
    from vaswani.distillation.comparison import compare as compare_models
    from vaswani.distillation.comparison import load_candidates, sentences_to_decode, were_distilled
    from vaswani.distillation.report import as_markdown, write_report
    from vaswani.evaluation.text_metrics import check_task, task_of_metric
    from vaswani.files.run_settings import read_settings
    from vaswani.training.trainer.checkpoints import check_writable

    check_task(task_of_metric(metric))
    files = [data] if target_file is None else [data, target_file]
    columns = {"source_field": source_field, "target_field": target_field}
    check_columns(files, columns)
    begin_work()
    candidates = load_candidates([first, *others, *([baseline] if baseline else [])], **options)
    if output is None and not Path(others[0]).is_dir():
        raise UserError(
            f"{others[0]} is not a local folder that the report can go into; give --output FOLDER"
        )
    folder = output or Path(others[0])
    check_writable(folder, "output")
    trained = read_settings(Path(others[0])) or read_settings(Path(first))
    named = as_in_training(columns, trained)
    split, rows = load_split(load_corpus, CorpusSpec, files, split, dataset_config=dataset_config, **named)
    with progress_bar(sentences_to_decode(len(candidates), len(rows)), " sentences") as bar:
        comparison = compare_models(
            candidates[0],
            candidates[1 : 1 + len(others)],
            rows,
            data=f"{split} of {' and '.join(map(_without_folders, files))}"
            + (f" ({dataset_config})" if dataset_config else ""),
            baseline=candidates[-1] if baseline else None,
            metric=metric,
            progress=bar.update,
            is_distillation=bool(baseline) or were_distilled(candidates[1:]),
        )
    write_report(comparison, folder)
    warn(f"wrote the report into {folder}")
    print_line(as_markdown(comparison).rstrip("\n"))


def _without_folders(data: str) -> str:
    """Return a local path without its folders, because others read the report; keep a name on the Hub."""
    return Path(data).name if Path(data).exists() else data
