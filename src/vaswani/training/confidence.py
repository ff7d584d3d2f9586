"""How sure a score is: bootstrap resamples of the rows it was computed from (Koehn, 2004, W04-3250).

One seed draws the same rows for every model and metric, so that differences and ratios of scores are paired:
what makes a row easy or hard for all models does not widen their intervals.

S rows · K statistics of a row, whose sums determine a score · R resamples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from vaswani.training.metrics import METRICS_OF_TASK, rouge_f1

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)  # of the resamples: the ends of a 95 % confidence interval

_SACREBLEU: dict[str, Any] = {"bleu": BLEU(), "chrf": CHRF()}  # with the options of `METRICS`


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval, `low` to `high`."""

    value: float
    low: float
    high: float

    @classmethod
    def from_resamples(cls, value: float, resampled: np.ndarray) -> Estimate:
        """A value, and the interval of its resamples [R]."""
        low, high = np.percentile(resampled, PERCENTILES)
        return cls(value, float(low), float(high))


def resampled_scores(
    predictions: Sequence[str], references: Sequence[str], task: str = "translation", seed: int = 0
) -> dict[str, np.ndarray]:
    """Scores of resampled rows, float64 [R], of each metric of a task."""
    return {
        metric: bootstrap_scores(metric, row_statistics(metric, predictions, references), seed)
        for metric in METRICS_OF_TASK[task]
    }


def row_statistics(metric: str, predictions: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """What a score needs to know of each row: [S, K], int64, of ROUGE float64."""
    if metric == "exact_match":
        pairs = zip(predictions, references, strict=True)
        return np.array([[prediction == reference, 1] for prediction, reference in pairs], dtype=np.int64)
    if metric not in _SACREBLEU:
        f1 = rouge_f1(metric, predictions, references)
        return np.stack([f1, np.ones_like(f1)], axis=1)
    # sacreBLEU's public functions score texts only, which would take minutes for each interval.
    return np.array(_SACREBLEU[metric]._extract_corpus_statistics(predictions, [references]), dtype=np.int64)


def score_of_sum(metric: str, total: np.ndarray) -> float:
    """The metric's score, 0 to 100, of rows whose statistics sum up to `total` [K]."""
    if metric not in _SACREBLEU:  # a mean over the rows
        points, rows = total.tolist()
        return 100.0 * points / rows
    return _SACREBLEU[metric]._compute_score_from_stats(total.tolist()).score


def bootstrap_scores(metric: str, statistics_of_rows: np.ndarray, seed: int) -> np.ndarray:
    """Scores of resampled rows, float64 [R], from statistics [S, K]; a seed draws the same rows for all."""
    generator = np.random.default_rng(seed)
    count = len(statistics_of_rows)
    draws = (generator.integers(count, size=count) for _ in range(RESAMPLES))
    return np.array([score_of_sum(metric, statistics_of_rows[rows].sum(axis=0)) for rows in draws])
