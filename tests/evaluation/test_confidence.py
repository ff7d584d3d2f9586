"""Statistics against the metrics, and the bootstrap against scoring resampled texts."""

import random
from typing import Any

import numpy as np
import pytest

from vaswani.evaluation import confidence as module
from vaswani.evaluation.confidence import (
    Estimate,
    bootstrap_scores,
    resampled_scores,
    row_statistics,
    score_of_sum,
)
from vaswani.evaluation.text_metrics import METRICS, METRICS_OF_TASK, task_of_metric


def some_texts(seed: int) -> tuple[list[str], list[str]]:
    """Predictions that are right, nearly right, wrong and empty."""
    generator = random.Random(seed)
    words = ["Ein", "Hund,", "läuft", "über", "(die)", "Wiese.", "u.s.w.", "3,5"]
    references = [" ".join(generator.choices(words, k=generator.randint(1, 9))) for _ in range(30)]
    changes = [lambda text: text, lambda text: text[2:], lambda text: text + " Hund", lambda _: ""]
    return [generator.choice(changes)(text) for text in references], references


def score_of_texts(metric: str, predictions: list[str], references: list[str]) -> float:
    result = METRICS[metric](keep_in_memory=True).compute(predictions=predictions, references=references)
    return result[metric]


def equal_to(score: Any, metric: str) -> Any:
    """Exactly, where whole numbers are summed; ROUGE sums fractions, which depends on their order."""
    return pytest.approx(score, rel=1e-14 if metric.startswith("rouge") else 0, abs=0)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_the_statistics_has_exactly_the_score_of_the_metric(metric: str, seed: int) -> None:
    predictions, references = some_texts(seed)
    total = row_statistics(predictions, references, task_of_metric(metric))[metric].sum(axis=0)
    score = score_of_sum(metric, total)
    assert score == equal_to(score_of_texts(metric, predictions, references), metric)
    assert 0 < score < 100


@pytest.mark.parametrize("metric", METRICS)
def test_the_bootstrap_scores_resampled_texts(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESAMPLES", 5)
    predictions, references = some_texts(seed=0)
    generator = np.random.default_rng(7)
    expected = []
    for _ in range(5):
        rows = generator.integers(30, size=30)
        expected.append(
            score_of_texts(metric, [predictions[row] for row in rows], [references[row] for row in rows])
        )
    statistics = row_statistics(predictions, references, task_of_metric(metric))
    scores = bootstrap_scores(metric, statistics[metric], seed=7)
    assert scores.tolist() == equal_to(expected, metric)
    assert len(set(expected)) > 1


def test_an_interval_holds_95_of_100_resamples() -> None:
    """Of right and wrong rows, whose number right is binomial."""
    right = [row % 4 == 0 for row in range(400)]
    scores = bootstrap_scores("exact_match", np.array([right, [1] * 400]).T, seed=0)
    estimate = Estimate.from_resamples(25.0, scores)
    assert np.mean((scores >= estimate.low) & (scores <= estimate.high)) == pytest.approx(0.95, abs=0.01)
    deviation = 100 * (0.25 * 0.75 / 400) ** 0.5
    assert estimate.low == pytest.approx(25 - 1.96 * deviation, abs=1)
    assert estimate.high == pytest.approx(25 + 1.96 * deviation, abs=1)


@pytest.mark.parametrize("task", METRICS_OF_TASK)
def test_all_metrics_are_resampled_by_the_same_rows(task: str) -> None:
    predictions, references = some_texts(seed=1)
    scores = resampled_scores(predictions, references, task, seed=3)
    assert list(scores) == list(METRICS_OF_TASK[task])
    for metric, statistics in row_statistics(predictions, references, task).items():
        assert scores[metric].tolist() == bootstrap_scores(metric, statistics, seed=3).tolist()
        assert scores[metric].tolist() != bootstrap_scores(metric, statistics, seed=4).tolist()
