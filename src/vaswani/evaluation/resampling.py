"""Scores of texts on resampled rows, for the confidence intervals of `estimates`.

S rows · K statistics of a row, whose sums determine a score · R resamples
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from vaswani.data.text.ngram_scores import (
    Counts,
    bleu_metric,
    bleu_score,
    character_ngrams,
    chrf_score,
    counts_of_pair,
    word_ngrams,
)
from vaswani.evaluation.estimates import resampled_rows
from vaswani.evaluation.text_metrics import rouge_f1


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
        "chrf": [_chrf_statistics(pair) for pair in pairs],
        "exact_match": [[prediction == reference, 1] for prediction, reference in pairs],
        "bleu_lowercased": _bleu_statistics(pairs, lowercase=True),
    }
    return {name: np.array(rows, dtype=np.int64).reshape(len(pairs), -1) for name, rows in statistics.items()}


def _bleu_statistics(pairs: list[tuple[str, str]], lowercase: bool = False) -> list[Counts]:
    metric = bleu_metric([reference for _, reference in pairs], lowercase)
    return [counts_of_pair(*(word_ngrams(metric, text) for text in pair)) for pair in pairs]


def _chrf_statistics(pair: tuple[str, str]) -> Counts:
    counts = counts_of_pair(*map(character_ngrams, pair))
    # sacreBLEU does not count predicted n-grams of an order for which the reference has no n-grams.
    return [(found if wanted else 0, wanted, both) for found, wanted, both in counts]


def score_of_sum(metric: str, total: np.ndarray) -> float:
    """Return the score, 0 to 100, of rows whose statistics sum to `total` [K]."""
    if metric in _SCORES:
        return _SCORES[metric](total.reshape(-1, 3).tolist())
    points, rows = total.tolist()
    return 100.0 * points / rows


# Scores of metrics whose row statistics are n-gram counts.
_SCORES: dict[str, Callable[[Counts], float]] = {
    "bleu": bleu_score,
    "bleu_lowercased": bleu_score,
    "chrf": chrf_score,
}


def bootstrap_scores(metric: str, statistics_of_rows: np.ndarray, seed: int) -> np.ndarray:
    """Return scores of resampled rows, float64 [R], from statistics [S, K]."""
    draws = resampled_rows(len(statistics_of_rows), seed)
    return np.array([score_of_sum(metric, statistics_of_rows[rows].sum(axis=0)) for rows in draws])
