"""`vaswani student` and `vaswani compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani.cli.app import app
from vaswani.cli.evaluation import EvaluationRequest
from vaswani.cli.evaluation_options import check_options, declare_rows
from vaswani.cli.options import (
    TRANSLATOR_DEFAULTS,
    AllowMismatch,
    OutputFolder,
    Split,
    check_models,
    model_option,
    takes_options_of,
    takes_translator_options,
)
from vaswani.cli.screen import begin_work, print_line, progress_bar, warn
from vaswani.cli.splits import check_columns
from vaswani.cli.stack_comparison import compare_stacks_of, task_of_all
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.distillation.comparison import Comparison


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
        typer.Option("--target_file", metavar="FILE", help="Text file of targets, line by line."),
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
    from vaswani.distillation.comparison import names_in_report, roles_of, were_distilled
    from vaswani.distillation.report import as_markdown, write_report, write_texts
    from vaswani.distillation.stack_report import stack_markdown
    from vaswani.evaluation.text_metrics import METRICS, METRICS_OF_TASK, task_of_metric
    from vaswani.files.run_settings import read_settings
    from vaswani.hub.checkpoint import local_folder
    from vaswani.training.trainer.checkpoints import check_writable

    models, files = [first, *others, *filter(None, [baseline])], [data, *filter(None, [target_file])]
    begin_work()
    names = names_in_report(models)
    folders = [local_folder(model, weights=False) for model in models]
    search = {name: options[name] for name in TRANSLATOR_DEFAULTS if name in options}
    options |= {"engine": "torch", "quantization": None, "revision": None, "output_name": None}
    text_task = task_of_metric(metric) if metric in METRICS else None
    kind, task = task_of_all(models, folders, {**options, "task": text_task})
    check_options(kind, options)
    if output is None and not Path(others[0]).is_dir():
        raise UserError(
            f"{others[0]} is not a local folder that the report can go into; give --output FOLDER"
        )
    folder = output or Path(others[0])
    check_writable(folder, "output")
    requests = [
        EvaluationRequest([model], of_model, kind, files, split, options)
        for model, of_model in zip(models, folders, strict=True)
    ]
    trained = requests[1] if read_settings(folders[1]) else requests[0]
    is_distillation = bool(baseline) or were_distilled(folders[1:])
    described = " and ".join(map(_without_folders, files))
    if (config := options["dataset_config"]) is not None:
        described += f" ({config})"
    if kind == "seq2seq":
        metric = metric or next(iter(METRICS_OF_TASK[task]))
        texts = _compare_translators(
            requests,
            trained,
            search,
            len(others),
            metric=metric,
            data=described,
            is_distillation=is_distillation,
        )
        write_report(texts, folder)
        markdown = as_markdown(texts)
    else:
        roles = roles_of(len(others), bool(baseline), is_distillation)
        stacks = compare_stacks_of(requests, trained, task, names, roles, metric=metric, data=described)
        markdown = stack_markdown(stacks)
        write_texts(stacks, markdown, folder)
    warn(f"wrote the report into {folder}")
    print_line(markdown.rstrip("\n"))


def _compare_translators(
    requests: Sequence[EvaluationRequest],
    trained: EvaluationRequest,
    search: dict[str, Any],
    others: int,
    *,
    metric: str,
    data: str,
    is_distillation: bool,
) -> "Comparison":
    """Compare encoder-decoders on pairs.

    Args:
        requests: the evaluation of the first model, of the others, and of a baseline if there is one.
        trained: the one whose training says how to read the rows.
        search: options of the translators.
        others: number of other models, without the baseline.
        metric: the metric of the conclusions.
        data: name of the data, without the split.
        is_distillation: whether the report calls the models teacher and students.
    """
    from vaswani.data.sources.corpus import load_corpus
    from vaswani.data.sources.corpus_spec import CorpusSpec
    from vaswani.distillation.comparison import compare as compare_models
    from vaswani.distillation.comparison import load_candidates, sentences_to_decode
    from vaswani.evaluation.text_metrics import check_task, task_of_metric
    from vaswani.files.run_settings import read_settings

    check_task(task_of_metric(metric))
    check_columns(trained.files, trained.fields)
    candidates = load_candidates([request.models[0] for request in requests], **search)
    split, rows = trained.load_rows(load_corpus, CorpusSpec, read_settings(trained.folder))
    with progress_bar(sentences_to_decode(len(candidates), len(rows)), " sentences") as bar:
        return compare_models(
            candidates[0],
            candidates[1 : 1 + others],
            rows,
            data=f"{split} of {data}",
            baseline=candidates[-1] if len(candidates) > 1 + others else None,
            metric=metric,
            progress=bar.update,
            is_distillation=is_distillation,
        )


def _without_folders(data: str) -> str:
    """Return a local path without its folders, because others read the report; keep a name on the Hub."""
    return Path(data).name if Path(data).exists() else data
