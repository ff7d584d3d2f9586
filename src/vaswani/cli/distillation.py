"""`vaswani student` and `vaswani compare`."""

from pathlib import Path
from typing import Annotated

import typer

from vaswani.cli.app import app
from vaswani.cli.options import (
    AllowMismatch,
    DatasetConfig,
    Device,
    DType,
    LengthPenalty,
    MaxLength,
    MaxSourceLength,
    MaxTokensPerBatch,
    NumBeams,
    SourceField,
    Split,
    TargetField,
    TooLong,
)
from vaswani.cli.screen import hide_library_progress, progress_bar, say, warn
from vaswani.cli.splits import load_split
from vaswani.errors import UserError


@app.command()
def student(
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The student's folder; empty, or a new one.")],
    teacher: Annotated[
        str,
        typer.Option("--teacher", help="Folder of a trained model, or an encoder-decoder's name on the Hub."),
    ],
    encoder_layers: Annotated[
        str | None,
        typer.Option(
            "--encoder_layers",
            "--encoder-layers",
            help='So many ("6"), evenly spaced, or these ("0,2,5"; one: "5,"). Default: all.',
        ),
    ] = None,
    decoder_layers: Annotated[
        str | None, typer.Option("--decoder_layers", "--decoder-layers", help="Likewise.")
    ] = None,
    allow_mismatch: AllowMismatch = False,
) -> None:
    """Make a student of some of a teacher's layers, to be trained on.

    For translation keep a deep encoder and a shallow decoder, such as
    6 layers and 1: the decoder runs once for each generated token, the
    encoder once for a sentence.
    """
    from vaswani.distillation.student import parse_layers, save_student

    hide_library_progress()
    before, after = save_student(
        teacher,
        output,
        parse_layers(encoder_layers, "encoder_layers"),
        parse_layers(decoder_layers, "decoder_layers"),
        allow_mismatch,
    )
    fewer = 100 * (1 - after / before)
    say(f"saved {output}: teacher {before:,} parameters, student {after:,} ({fewer:.1f} % fewer)")


@app.command()
def compare(
    teacher: Annotated[str, typer.Argument(help="Folder of the model to measure against, or its name.")],
    students: Annotated[
        list[str], typer.Argument(metavar="STUDENT...", help="Likewise, of those distilled from it.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="dates|FILE|FOLDER|NAME",
            help="The built-in dates; a JSONL, JSON, CSV, TSV or Parquet file; a data set's folder or its "
            "name on the Hub.",
        ),
    ],
    split: Split = "test",
    dataset_config: DatasetConfig = None,
    source_field: SourceField = "source",
    target_field: TargetField = "target",
    baseline: Annotated[
        str | None, typer.Option(help="The same student, trained without distillation.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="Of retention: bleu, chrf, exact_match; of summaries rouge1, rouge2, rougeL.")
    ] = "bleu",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Of report.md, report.json and quality_speed.png. Default: the first student's.",
        ),
    ] = None,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    max_source_length: MaxSourceLength = None,
    too_long: TooLong = None,
    max_length: MaxLength = 1024,
    max_tokens_per_batch: MaxTokensPerBatch = 8192,
    device: Device = None,
    dtype: DType = None,
    allow_mismatch: AllowMismatch = False,
) -> None:
    """Measure students against their teacher: size, quality, retention and decoding speed."""
    from vaswani.distillation.comparison import compare as compare_models
    from vaswani.distillation.comparison import load_candidates, sentences_to_decode
    from vaswani.distillation.report import as_markdown, prepare_folder, write_report
    from vaswani.evaluation.text_metrics import check_task, task_of_metric

    check_task(task_of_metric(metric))
    hide_library_progress()
    candidates = load_candidates(
        [teacher, *students, *([baseline] if baseline else [])],
        device=device,
        dtype=dtype,
        allow_mismatch=allow_mismatch,
        num_beams=num_beams,
        length_penalty=length_penalty,
        max_source_length="auto" if max_source_length is None else max_source_length,
        too_long=too_long,
        max_length=max_length,
        max_tokens_per_batch=max_tokens_per_batch,
    )
    if output is None and not Path(students[0]).is_dir():
        raise UserError(f"{students[0]} is not a folder here to write the report into; give --output FOLDER")
    folder = output or Path(students[0])
    prepare_folder(folder)
    split, rows = load_split(
        [data], split, dataset_config=dataset_config, source_field=source_field, target_field=target_field
    )
    with progress_bar(sentences_to_decode(len(candidates), len(rows)), " sentences") as bar:
        comparison = compare_models(
            candidates[0],
            candidates[1 : 1 + len(students)],
            rows,
            data=f"{split} of {_without_folders(data)}" + (f" ({dataset_config})" if dataset_config else ""),
            baseline=candidates[-1] if baseline else None,
            metric=metric,
            progress=bar.update,
        )
    write_report(comparison, folder)
    warn(f"wrote the report into {folder}")
    say(as_markdown(comparison).rstrip("\n"))


def _without_folders(data: str) -> str:
    """For a report that others read: what is called `owner/name` and is no path here is a name on the Hub."""
    return Path(data).name if Path(data).exists() else data
