"""Compare classifiers, taggers, question answerers or language models with the first of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from vaswani.distillation.stack_report import StackCandidate, StackComparison, compare_stacks
from vaswani.errors import UserError, listing
from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.evaluation.answers import evaluate_answers
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.evaluation.labels import rows_to_score, texts_of
from vaswani.evaluation.score_names import is_lower_better
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.classify.classification import Classifier
from vaswani.training.runs.language_modelling import SCORE_NAMES, scores_with_resamples

Progress = Callable[[int], object]
LANGUAGE_MODEL_METRICS = ("accuracy",)


@dataclass(frozen=True)
class Entry:
    """A model of a comparison, before it is loaded."""

    name: str  # name in the report
    role: str
    folder: Path


def metrics_of(kind: str, task: str) -> list[str]:
    """Return the metrics of retention and gains that can be chosen for a task; the first is the default.

    Args:
        kind: kind of the models, as `vaswani evaluate` distinguishes them.
        task: for the kind "labels", the task of the models.
    """
    names: Mapping[str, str] | Sequence[str] = LANGUAGE_MODEL_METRICS
    if kind == "labels":
        names = METRICS_OF_TASK[task].names
    elif kind == "questions":
        names = AnswerMetric.names
    return [name for name in names if not is_lower_better(name)]


def compare_classifiers(
    entries: Sequence[Entry],
    classifiers: Sequence[Classifier],
    rows: Dataset,
    *,
    metric: str,
    data: str,
    progress: Progress | None = None,
) -> StackComparison:
    """Predict the labels of rows with models of one task; score the rows that all of them can read.

    Args:
        entries: the models; the first is the one that the others are compared with.
        classifiers: the same models, loaded.
        rows: as from `load_labelled`.
        metric: the metric of retention and gains.
        data: name of the data, for the report.
        progress: called with the number of rows of each finished batch.
    """
    task = classifiers[0].task
    labels = METRICS_OF_TASK[task](keep_in_memory=True)
    _check_defined(metric, labels.scores_of(rows["label"][:], rows["label"][:]))

    def predict(classifier: Classifier, rows: Dataset) -> list[Any]:
        return list(classifier.stream(texts_of(rows), progress=progress))

    predictions = [predict(one, rows) for one in classifiers]
    scored = rows_to_score(*predictions, task=task)
    kept = rows.select(scored)
    references = kept["label"][:]
    scores = [
        labels.scores_with_resamples([of_model[row].label for row in scored], references)
        for of_model in predictions
    ]
    candidates = [
        StackCandidate(
            name=entry.name,
            role=entry.role,
            model=one.model,
            # A tagger whose tags do not all mark spans has no scores of spans.
            scores={name: of_model[name] for name in scores[0] if all(name in each for each in scores)},
            predict=partial(predict, one),
            folder=entry.folder,
            cut_off_rows=sum(predicted[row].cut_off for row in scored),
        )
        for entry, one, of_model, predicted in zip(entries, classifiers, scores, predictions, strict=True)
    ]
    options = _of_all(
        [
            {"max_length": one.max_length, "threshold": one.threshold if task == "multi_label" else None}
            for one in classifiers
        ]
    )
    left_out = len(rows) - len(kept)
    return _compared(
        candidates, kept, metric, names=labels.names, data=data, options=options, left_out_rows=left_out
    )


def compare_answerers(
    entries: Sequence[Entry],
    answerers: Sequence[QuestionAnswerer],
    rows: Dataset,
    *,
    metric: str,
    data: str,
    progress: Progress | None = None,
) -> StackComparison:
    """Answer questions with several models, and score the answers; arguments as in `compare_classifiers`."""
    found = [evaluate_answers(one, rows, progress) for one in answerers]
    answers = AnswerMetric(keep_in_memory=True)
    candidates = [
        StackCandidate(
            name=entry.name,
            role=entry.role,
            model=one.model,
            scores=answers.scores_with_resamples(result.predictions, result.references),
            predict=partial(evaluate_answers, one, progress=progress),  # computes no scores yet
            folder=entry.folder,
            cut_off_rows=result.cut_off,
        )
        for entry, one, result in zip(entries, answerers, found, strict=True)
    ]
    options = _of_all([one.options for one in answerers])
    names, unit = answers.names, "questions"
    return _compared(candidates, rows, metric, names=names, data=data, unit=unit, options=options)


def compare_language_models(
    entries: Sequence[Entry],
    prepared: Sequence[tuple[Any, Dataset]],
    *,
    metric: str,
    data: str,
    unit: str,
    options: Mapping[str, Any],
) -> StackComparison:
    """Score language models on the same sequences or completions.

    Args:
        entries: the models; the first is the one that the others are compared with.
        prepared: a trainer of each model, and the tokenized rows (see `prepared_alike`).
        metric: the metric of retention and gains.
        data: name of the data, for the report.
        unit: what is scored: "sequences", or "rows" of completions.
        options: options that the scores depend on, for the report.
    """
    candidates = []
    for entry, (trainer, rows) in zip(entries, prepared, strict=True):
        trainer.predict(rows)
        scores = scores_with_resamples(trainer)
        candidates.append(
            StackCandidate(entry.name, entry.role, trainer.model, scores, trainer.predict, entry.folder)
        )
    rows = prepared[0][1]
    return _compared(candidates, rows, metric, names=SCORE_NAMES, data=data, unit=unit, options=options)


def _compared(
    candidates: Sequence[StackCandidate],
    rows: Dataset,
    metric: str,
    **told: Any,
) -> StackComparison:
    """Compare the models (see `compare_stacks`) in a metric that these rows have."""
    _check_defined(metric, candidates[0].scores)
    return compare_stacks(candidates, rows, metric=metric, **told)


def _check_defined(metric: str, scores: Mapping[str, Any]) -> None:
    """Raise `UserError` unless the rows have this score: tags that mark no spans have no F1."""
    if metric not in scores:
        raise UserError(f"metric={metric} is not defined for these rows; choose one of {listing(scores)}")


def _of_all(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the options that are set; where models differ, those of all, in a list."""
    found = {name: [of_model[name] for of_model in options] for name in options[0]}
    return {
        name: values[0] if len(set(values)) == 1 else values
        for name, values in found.items()
        if any(value is not None for value in values)
    }
