"""Confidence intervals of scores by bootstrap resampling of rows (Koehn, 2004, W04-3250).

A seed draws the same rows for every model and metric, so that differences and ratios of scores are paired:
rows that are easy or hard for all models do not widen their intervals.

S rows · K statistics of a row, whose sums determine a score · R resamples
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_all_char_ngrams

from vaswani.data.text.bleu import bleu_metric
from vaswani.evaluation.text_metrics import rouge_f1

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)  # a 95 % confidence interval
BETA_SQUARED = CHRF.BETA**2  # the weight of chrF2's recall


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

    @property
    def interval(self) -> str:
        """The interval as text."""
        return f"(95 % interval {self.low:.2f} to {self.high:.2f})"


def resampled_rows(count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield the rows of each resample of `count` rows: int64 [S]."""
    generator = np.random.default_rng(seed)
    return (generator.integers(count, size=count) for _ in range(RESAMPLES))


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
    pairs = list(zip(predictions, references, strict=True))
    statistics = {
        "bleu": _bleu_statistics(pairs),
        "chrf": [_chrf_statistics(*pair) for pair in pairs],
        "exact_match": [[prediction == reference, 1] for prediction, reference in pairs],
        "bleu_lowercased": _bleu_statistics(pairs, lowercase=True),
    }
    return {name: np.array(rows, dtype=np.int64) for name, rows in statistics.items()}


def _bleu_statistics(pairs: list[tuple[str, str]], lowercase: bool = False) -> list[list[int]]:
    """Return the counts of each pair: predicted and reference tokens, matched and all n-grams by order."""
    bleu = bleu_metric([reference for _, reference in pairs], lowercase)
    scores = (bleu.corpus_score([prediction], [[reference]]) for prediction, reference in pairs)
    return [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]


def _chrf_statistics(prediction: str, reference: str) -> list[int]:
    """Return, for each order, the counts of predicted, reference and shared character n-grams."""
    statistics = []
    for found, wanted in zip(
        *(extract_all_char_ngrams(text, CHRF.CHAR_ORDER) for text in (prediction, reference)), strict=True
    ):
        # sacreBLEU does not count predicted n-grams of an order for which the reference has no n-grams.
        statistics += [found.total() if wanted else 0, wanted.total(), (found & wanted).total()]
    return statistics


def score_of_sum(metric: str, total: np.ndarray) -> float:
    """Return the score, 0 to 100, of rows whose statistics sum to `total` [K]."""
    return _SCORES.get(metric, _mean)(total.tolist())


def _bleu(total: list[int]) -> float:
    system_length, reference_length, *ngrams = total
    order = len(ngrams) // 2
    return BLEU.compute_bleu(
        *(ngrams[:order], ngrams[order:], system_length, reference_length), smooth_method="exp"
    ).score


def _chrf(total: list[int]) -> float:
    """Return chrF2: the F-score of precision and recall, each averaged over the orders of both sides."""
    orders = [total[place : place + 3] for place in range(0, len(total), 3)]
    orders = [counts for counts in orders if counts[0] and counts[1]]
    precision = sum(both / found for found, _, both in orders) / max(len(orders), 1)
    recall = sum(both / wanted for _, wanted, both in orders) / max(len(orders), 1)
    if not precision + recall:
        return 0.0
    return 100 * ((1 + BETA_SQUARED) * precision * recall / (BETA_SQUARED * precision + recall))


def _mean(total: list[float]) -> float:
    points, rows = total
    return 100.0 * points / rows


_SCORES: dict[str, Callable[[list[int]], float]] = {"bleu": _bleu, "bleu_lowercased": _bleu, "chrf": _chrf}


def bootstrap_scores(metric: str, statistics_of_rows: np.ndarray, seed: int) -> np.ndarray:
    """Return scores of resampled rows, float64 [R], from statistics [S, K]."""
    draws = resampled_rows(len(statistics_of_rows), seed)
    return np.array([score_of_sum(metric, statistics_of_rows[rows].sum(axis=0)) for rows in draws])
