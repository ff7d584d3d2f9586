"""Evaluate a classifier, regressor or tagger as at the end of fine-tuning: predict labels and score them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from vaswani.errors import UserError
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.final import metric_entries
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.evaluation.summary import label_lines, score_fields, score_lines, speed_line
from vaswani.inference.classify.classification import Classifier, Prediction, Text


@dataclass(frozen=True)
class LabelEvaluation:
    """The result of an evaluation.

    Args:
        predictions: one for each row, in order.
        references: the labels of the scored rows.
        scores: the scores with their 95 % confidence intervals, by metric.
        names: the display names of the scores.
        labels: precision, recall, F1 and number of each label or type of span; empty for regression.
        left_out: number of rows that are not scored: rows without tokens and, for a tagger, too long rows.
        cut_off: number of scored rows that were truncated.
        seconds: time spent on predicting.
    """

    predictions: list[Prediction]
    references: list[Any]
    scores: dict[str, Estimate]
    names: dict[str, str]
    labels: dict[str, dict[str, float]]
    left_out: int
    cut_off: int
    seconds: float

    def __str__(self) -> str:
        rows = [*score_lines(self.names, self.scores), *label_lines(self.labels)]
        rows.append(speed_line(len(self.references), "rows", self.seconds))
        if self.left_out:
            rows.append(f"too long or empty, left out: {self.left_out:,}")
        if self.cut_off:
            rows.append(f"cut off: {self.cut_off:,}")
        return "\n".join(rows)

    def metrics(self) -> dict[str, Any]:
        """Return the scores with their intervals as in `evaluation.json`."""
        return metric_entries(self.names, self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the predictions as plain JSON values."""
        return {
            "rows": len(self.references),
            "left_out_rows": self.left_out,
            "cut_off_rows": self.cut_off,
            **score_fields(self.scores),
            **({"labels": self.labels} if self.labels else {}),
            "seconds": round(self.seconds, 3),
        }


def evaluate_labels(
    classifier: Classifier,
    rows: Dataset | Sequence[Mapping[str, Any]],
    progress: Callable[[int], object] | None = None,
) -> LabelEvaluation:
    """Predict the labels of rows and score them.

    Args:
        classifier: the model with its options.
        rows: mappings with `text` (for a tagger, a list of words), optionally `text_pair`, and `label`.
        progress: is called with the number of rows of each finished batch.

    Raises:
        UserError: no row can be scored.
    """
    texts, labels = texts_of(rows), [row["label"] for row in rows]
    start = time.perf_counter()
    predictions = list(classifier.stream(texts, progress=progress))
    seconds = time.perf_counter() - start
    scored = rows_to_score(predictions, task=classifier.task)
    found = [predictions[number].label for number in scored]
    references = [labels[number] for number in scored]
    metric = METRICS_OF_TASK[classifier.task](keep_in_memory=True)
    return LabelEvaluation(
        predictions=predictions,
        references=references,
        scores=metric.estimates(found, references),
        names=metric.names,
        labels=metric.by_label(found, references),
        left_out=len(predictions) - len(scored),
        cut_off=sum(predictions[number].cut_off for number in scored),
        seconds=seconds,
    )


def texts_of(rows: Dataset | Sequence[Mapping[str, Any]]) -> list[Text]:
    """Return the text of each row, or its pair of texts."""
    return [(row["text"], row["text_pair"]) if "text_pair" in row else row["text"] for row in rows]


def rows_to_score(*predictions: Sequence[Prediction], task: str) -> list[int]:
    """Return the numbers of the rows that can be scored, for several models those of all of them.

    Raises:
        UserError: no row can be scored.
    """
    # A tagger is scored on every word, so truncated rows cannot be scored.
    scored = [
        number
        for number, of_row in enumerate(zip(*predictions, strict=True))
        if all(one.label is not None and not (one.cut_off and task == "tagging") for one in of_row)
    ]
    if not scored:
        raise UserError("no row can be scored: all are empty or too long; check the data and their split")
    return scored
