"""Metrics of labels: classification, multi-label classification, regression and tagging.

Each class is an `evaluate.Metric` that needs no network: instantiate it, then `compute`, `add_batch` or
`combine`. Labels are given by name. Accuracy, precision, recall and F1 run from 0 to 100.

A metric computes a table of row statistics once and scores it with a weight for each row: 1 for the score
itself; for a bootstrap resample, the number of times that the row was drawn.

S rows · K statistics of a row · L labels · R resamples
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np
import numpy.typing as npt

from vaswani.evaluation import score_names
from vaswani.evaluation.estimates import Estimate, resampled_rows
from vaswani.evaluation.spans import mark_spans, spans_of

Floats = npt.NDArray[np.float64]


class LabelMetric(evaluate.Metric):
    """The metrics of a task, computed from a table of statistics and the weights of its rows."""

    names: ClassVar[dict[str, str]]  # display names of the scores
    description: ClassVar[str]
    of_a_row: ClassVar[Any]  # the feature of a prediction or reference

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.description,
            citation="",
            inputs_description="predictions and references, one of each for a row.",
            features=datasets.Features({"predictions": self.of_a_row, "references": self.of_a_row}),
        )

    def _compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        return self.scores_of(predictions, references)

    def scores_of(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        """Return the scores of rows; unlike `compute`, do not copy the rows."""
        table = self.table(predictions, references)
        return self.scores(table, np.ones(len(table)))

    def table(self, predictions: Sequence[Any], references: Sequence[Any]) -> Floats:
        """Return the statistics of each row: float64 [S, K]."""
        raise NotImplementedError

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return the scores of a table [S, K] with weights [S], non-negative whole numbers."""
        raise NotImplementedError

    def items_of(self, rows: Sequence[Any]) -> list[set[tuple[str, Any]]]:
        """Return what each prediction or reference contains, with its label first; nothing by default."""
        return [set()] * len(rows)

    def by_label(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, dict[str, float]]:
        """Return the scores of each label, sorted: `precision`, `recall`, `f1`, and `support`.

        The support of a label is how often it occurs in the references.
        """
        right, predicted, true = Counter[str](), Counter[str](), Counter[str]()
        items = self.items_of([*predictions, *references])
        for found, sought in zip(items[: len(references)], items[len(references) :], strict=True):
            for counter, some in ((right, found & sought), (predicted, found), (true, sought)):
                counter.update(name for name, _ in some)
        return {
            name: {**_precision_recall_f1(right[name], predicted[name], true[name]), "support": true[name]}
            for name in sorted(predicted | true)
        }

    def estimates(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, Estimate]:
        """Return each score with its 95 % confidence interval, from bootstrap resamples of the rows."""
        scores = self.scores_with_resamples(predictions, references)
        return {name: Estimate.from_resamples(*score) for name, score in scores.items()}

    def scores_with_resamples(
        self, predictions: Sequence[Any], references: Sequence[Any]
    ) -> dict[str, tuple[float, Floats]]:
        """Return each score with its values on bootstrap resamples of the rows, float64 [R]."""
        table = self.table(predictions, references)
        resampled = self.resampled_scores(table)
        scores = self.scores(table, np.ones(len(table)))
        return {name: (score, resampled[name]) for name, score in scores.items()}

    def resampled_scores(self, table: Floats, seed: int = 0) -> dict[str, Floats]:
        """Return scores of bootstrap resamples, float64 [R]; a seed draws the same rows for all metrics."""
        count = len(table)
        draws = resampled_rows(count, seed)
        scores = [self.scores(table, np.bincount(rows, minlength=count).astype(float)) for rows in draws]
        return {name: np.array([score[name] for score in scores]) for name in scores[0]}


class ClassificationMetric(LabelMetric):
    """Accuracy, the unweighted mean F1 of the labels that occur, and Matthews' correlation, −1 to 1.

    The correlation is Gorodkin's R_K (2004, doi:10.1016/j.compbiolchem.2004.09.006). It is 0 if predictions
    or references are all the same.
    """

    names = score_names.CLASSIFICATION
    description = "Accuracy and macro F1, 0 to 100, and Matthews' correlation of one label for each text."
    of_a_row = datasets.Value("string")

    def items_of(self, rows: Sequence[str]) -> list[set[tuple[str, Any]]]:
        """Return the label of each row."""
        return [{(name, None)} for name in rows]

    def table(self, predictions: Sequence[str], references: Sequence[str]) -> Floats:
        """Return the numbers of the predicted and true labels [S, 2]."""
        numbers = np.unique([*predictions, *references], return_inverse=True)[1]
        return numbers.reshape(2, -1).T.astype(float)

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return `accuracy`, `macro_f1` and `matthews`."""
        numbers = table.T.astype(int)
        size = int(table.max()) + 1
        predicted, true = (np.bincount(of_rows, weights, size) for of_rows in numbers)
        right = np.bincount(numbers[1], weights * (numbers[0] == numbers[1]), size)
        total = weights.sum()
        covariance = total * right.sum() - predicted @ true
        variances = (total**2 - predicted @ predicted) * (total**2 - true @ true)
        return {
            "accuracy": percent(right.sum(), total),
            "macro_f1": _macro_f1(right, predicted + true),
            "matthews": float(covariance / np.sqrt(variances)) if variances else 0.0,
        }


class MultiLabelMetric(LabelMetric):
    """Micro F1, macro F1 over the labels that occur, and the share of texts with all labels right."""

    names = score_names.MULTI_LABEL
    description = "Micro and macro F1, and subset accuracy, of sets of labels, 0 to 100."
    of_a_row = datasets.List(datasets.Value("string"))

    def items_of(self, rows: Sequence[Sequence[str]]) -> list[set[tuple[str, Any]]]:
        """Return the labels of each row."""
        return [{(name, None) for name in row} for row in rows]

    def table(self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Floats:
        """Return hits and counts of each label, and whether all labels are right: [S, 2L + 1]."""
        names = sorted({name for row in (*predictions, *references) for name in row})
        predicted, true = (
            np.array([[name in row for name in names] for row in map(set, rows)], dtype=bool)
            for rows in (predictions, references)
        )
        right, counts = predicted & true, predicted.astype(float) + true
        return np.column_stack([right, counts, (predicted == true).all(axis=1)]).astype(float)

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return `micro_f1`, `macro_f1` and `subset_accuracy`."""
        *both, all_right = weights @ table
        right, counts = np.array(both).reshape(2, -1)
        return {
            "micro_f1": percent(2 * right.sum(), counts.sum()),
            "macro_f1": _macro_f1(right, counts),
            "subset_accuracy": percent(all_right, weights.sum()),
        }


class RegressionMetric(LabelMetric):
    """Pearson's and Spearman's correlation, −1 to 1, and the mean squared error.

    A correlation is 0 if predictions or references are constant.
    """

    names = score_names.REGRESSION
    description = "Pearson's and Spearman's correlation, and the mean squared error, of numbers."
    of_a_row = datasets.Value("float64")

    def table(self, predictions: Sequence[float], references: Sequence[float]) -> Floats:
        """Return predictions and references [S, 2]."""
        return np.column_stack([predictions, references]).astype(float)

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return `pearson`, `spearman` and `mse`."""
        predicted, true = table.T
        return {
            "pearson": _correlation(predicted, true, weights),
            "spearman": _correlation(_ranks(predicted, weights), _ranks(true, weights), weights),
            "mse": float(np.average((predicted - true) ** 2, weights=weights)),
        }


class TaggingMetric(LabelMetric):
    """Accuracy of word tags and, if tags mark spans, precision, recall and F1 of whole spans.

    A span is right if its first word, last word and type are, as in CoNLL's shared tasks (see `spans_of`).
    """

    names = score_names.TAGGING
    description = "Accuracy of words' tags, and precision, recall and F1 of the spans they mark, 0 to 100."
    of_a_row = datasets.List(datasets.Value("string"))

    def items_of(self, rows: Sequence[Sequence[str]]) -> list[set[tuple[str, Any]]]:
        """Return the spans of each row by their types; if tags mark no spans, the words by their tags."""
        if mark_spans({tag for tags in rows for tag in tags}):
            return [{(span.type, span) for span in spans_of(tags)} for tags in rows]
        return [{(tag, place) for place, tag in enumerate(tags)} for tags in rows]

    def table(self, predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Floats:
        """Return right words, words and, if tags mark spans, right, predicted and true spans: [S, 2 or 5]."""
        pairs = list(zip(predictions, references, strict=True))
        words = [
            (sum(tag == other for tag, other in zip(*pair, strict=True)), len(pair[1])) for pair in pairs
        ]
        if not mark_spans({tag for pair in pairs for row in pair for tag in row}):
            return np.array(words, dtype=float)
        spans = [(set(spans_of(predicted)), set(spans_of(true))) for predicted, true in pairs]
        counts = [(len(predicted & true), len(predicted), len(true)) for predicted, true in spans]
        return np.column_stack([words, counts]).astype(float)

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return `token_accuracy` and, if tags mark spans, `precision`, `recall` and `f1`."""
        right, words, *spans = weights @ table
        accuracy = {"token_accuracy": percent(right, words)}
        return accuracy | (_precision_recall_f1(*spans) if spans else {})


METRICS_OF_TASK: dict[str, type[LabelMetric]] = {
    "classification": ClassificationMetric,
    "multi_label": MultiLabelMetric,
    "regression": RegressionMetric,
    "tagging": TaggingMetric,
}


def percent(part: float, whole: float) -> float:
    """Return `part` as a percentage of `whole`; 0 if `whole` is 0."""
    return 100.0 * float(part) / float(whole) if whole else 0.0


def _precision_recall_f1(right: float, predicted: float, true: float) -> dict[str, float]:
    return {
        "precision": percent(right, predicted),
        "recall": percent(right, true),
        "f1": percent(2 * right, predicted + true),
    }


def _macro_f1(right: npt.NDArray, counts: npt.NDArray) -> float:
    """Return the mean F1 of labels from their hits [L] and their predicted plus true counts [L]."""
    occur = counts > 0
    return float(100.0 * np.mean(2 * right[occur] / counts[occur])) if occur.any() else 0.0


def _correlation(first: Floats, second: Floats, weights: Floats) -> float:
    if min(np.ptp(values[weights > 0]) for values in (first, second)) == 0:
        return 0.0
    first, second = (values - np.average(values, weights=weights) for values in (first, second))
    return float(weights @ (first * second) / np.sqrt((weights @ first**2) * (weights @ second**2)))


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Return ranks from 1; equal values share their mean rank, and a row of weight w counts as w rows."""
    numbers = np.unique(values, return_inverse=True)[1]
    rows = np.bincount(numbers, weights)
    return (np.cumsum(rows) - (rows - 1) / 2)[numbers]
