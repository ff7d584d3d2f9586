"""Confidence intervals of scores by bootstrap resampling of rows (Koehn, 2004, W04-3250).

A seed draws the same rows for every model and metric, so that differences and ratios of scores are paired:
rows that are easy or hard for all models do not widen their intervals.

S rows · K statistics of a row, whose sums determine a score · R resamples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from vaswani.evaluation.text_metrics import rouge_f1

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)  # a 95 % confidence interval

_SACREBLEU: dict[str, Any] = {"bleu": BLEU(), "chrf": CHRF()}  # with the options of `METRICS`


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def from_resamples(cls, value: float, resampled: np.ndarray) -> Estimate:
        """Return a value with the interval of its resamples [R]."""
        low, high = np.percentile(resampled, PERCENTILES)
        return cls(value, float(low), float(high))


def resampled_scores(
    predictions: Sequence[str], references: Sequence[str], task: str = "translation", seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the scores of resampled rows, float64 [R], for each metric of a task."""
    statistics = row_statistics(predictions, references, task)
    return {metric: bootstrap_scores(metric, rows, seed) for metric, rows in statistics.items()}


def row_statistics(predictions: Sequence[str], references: Sequence[str], task: str) -> dict[str, np.ndarray]:
    """Return the statistics of each row for each metric of a task: int64 [S, K] (float64 for ROUGE)."""
    if task == "summarization":
        f1 = rouge_f1(predictions, references)
        return {variant: np.stack([rows, np.ones_like(rows)], axis=1) for variant, rows in f1.items()}
    # sacreBLEU's public functions score only texts, which would take minutes for each interval.
    ngrams = {
        name: metric._extract_corpus_statistics(predictions, [references])
        for name, metric in _SACREBLEU.items()
    }
    pairs = zip(predictions, references, strict=True)
    statistics = {**ngrams, "exact_match": [[prediction == reference, 1] for prediction, reference in pairs]}
    return {name: np.array(rows, dtype=np.int64) for name, rows in statistics.items()}


def score_of_sum(metric: str, total: np.ndarray) -> float:
    """Return the score, 0 to 100, of rows whose statistics sum to `total` [K]."""
    if metric not in _SACREBLEU:  # a mean over the rows
        points, rows = total.tolist()
        return 100.0 * points / rows
    return _SACREBLEU[metric]._compute_score_from_stats(total.tolist()).score


def bootstrap_scores(metric: str, statistics_of_rows: np.ndarray, seed: int) -> np.ndarray:
    """Return scores of resampled rows, float64 [R], from statistics [S, K]."""
    generator = np.random.default_rng(seed)
    count = len(statistics_of_rows)
    draws = (generator.integers(count, size=count) for _ in range(RESAMPLES))
    return np.array([score_of_sum(metric, statistics_of_rows[rows].sum(axis=0)) for rows in draws])
