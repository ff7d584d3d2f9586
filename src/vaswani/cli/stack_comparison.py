"""The part of `vaswani compare` for models that are no translators."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.cli.evaluation import (
    EvaluationRequest,
    how_to_evaluate_texts,
    load_answerer,
    load_classifier,
    load_labelled_rows,
    load_question_rows,
    naming_max_length,
)
from vaswani.cli.evaluation_options import NAMES, kind_of
from vaswani.cli.screen import progress_bar
from vaswani.errors import UserError

if TYPE_CHECKING:
    from vaswani.distillation.stack_report import StackComparison


def task_of_all(models: Sequence[str], folders: Sequence[Path], options: dict[str, Any]) -> tuple[str, str]:
    """Return the kind of the models, a key of `NAMES`, and their task.

    Args:
        models: their names, for the message.
        folders: their folders.
        options: options of the command.

    Raises:
        UserError: a model is of another task than the first.
    """
    first, *others = [_task_of(folder, options) for folder in folders]
    for model, other in zip(models[1:], others, strict=True):
        if other != first:
            raise UserError(
                f"{models[0]} is {_in_words(*first)}, and {model} is {_in_words(*other)}; compare models of "
                "one task" + (", or give its --metric" if first[0] == other[0] == "seq2seq" else "")
            )
    return first


def _task_of(folder: Path, options: dict[str, Any]) -> tuple[str, str]:
    from vaswani.evaluation.text_metrics import METRICS_OF_TASK
    from vaswani.files.run_settings import read_settings
    from vaswani.hub.run_metadata import read_config
    from vaswani.inference.classify.classification import task_of

    kind, settings = kind_of(folder, options), read_settings(folder)
    if kind == "labels":
        return kind, str(task_of(read_config(folder)))
    if kind == "seq2seq":
        trained = settings.get("task")
        return kind, options["task"] or (trained if trained in METRICS_OF_TASK else "translation")
    return kind, settings["objective"] if kind == "denoising" else kind


def _in_words(kind: str, task: str) -> str:
    return NAMES[kind] if task == kind else f"{NAMES[kind]} ({task})"


def compare_stacks_of(
    requests: Sequence[EvaluationRequest],
    trained: EvaluationRequest,
    task: str,
    names: Sequence[str],
    roles: Sequence[str],
    *,
    metric: str | None,
    data: str,
) -> "StackComparison":
    """Compare classifiers, taggers, question answerers or language models.

    Args:
        requests: the evaluation of each model, the first first.
        trained: the one whose training says how to read the rows.
        task: the task of the models (see `task_of_all`).
        names: names of the models in the report.
        roles: their roles.
        metric: the metric of the conclusions; None means the first of the task.
        data: name of the data, without the split.
    """
    from vaswani.distillation.comparison import sentences_to_decode
    from vaswani.distillation.task_comparison import (
        Entry,
        compare_answerers,
        compare_classifiers,
        compare_language_models,
        metrics_of,
    )
    from vaswani.hub.checkpoint import local_folder
    from vaswani.training.runs.evaluation import prepared_alike

    kind, metrics = trained.kind, metrics_of(trained.kind, task)
    metric = metric or metrics[0]
    if metric not in metrics:
        raise UserError(
            f"metric={metric} is not for {_in_words(kind, task)}; choose one of {', '.join(metrics)}"
        )
    folders = [local_folder(request.models[0]) for request in requests]
    entries = [Entry(*each) for each in zip(names, roles, folders, strict=True)]
    if kind not in ("labels", "questions"):
        split, how = how_to_evaluate_texts(trained)
        how["stride"] = trained.options["stride"]
        objective = task if kind == "denoising" else kind
        with naming_max_length(), prepared_alike(folders, trained.folder, objective, split, **how) as ready:
            told: dict[str, Any] = {"metric": metric, "data": f"{split} of {data}", "options": ready[1]}
            return compare_language_models(entries, ready[0], **told)
    split, rows = (load_labelled_rows if kind == "labels" else load_question_rows)(trained)
    with progress_bar(sentences_to_decode(len(requests), len(rows)), " rows") as bar:
        told = {"metric": metric, "data": f"{split} of {data}", "progress": bar.update}
        if kind == "labels":
            classifiers = [load_classifier(request, split, rows) for request in requests]
            return compare_classifiers(entries, classifiers, rows, **told)
        answerers = [load_answerer(request) for request in requests]
        return compare_answerers(entries, answerers, rows, **told)
