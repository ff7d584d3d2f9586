"""Statistics against the metrics, and the bootstrap against scoring resampled texts."""

import random
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from vaswani.evaluation import estimates
from vaswani.evaluation.estimates import Difference, Estimate
from vaswani.evaluation.resampling import bootstrap_scores, resampled_scores, row_statistics, score_of_sum
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
    monkeypatch.setattr(estimates, "RESAMPLES", 5)
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


@pytest.mark.parametrize("damage", [0.0, 0.02, 0.04, 0.3])
def test_the_p_value_is_that_of_sacrebleu(damage: float) -> None:
    """Up to the noise of 1,000 resamples, which are other rows in sacreBLEU."""
    references, (one, other) = some_systems(damage)
    scores = {"bleu": BLEU(), "chrf": CHRF()}
    _, tested = PairedTest([("one", one), ("other", other)], scores, [references], test_type="bs")()
    resampled = [resampled_scores(texts, references) for texts in (one, other)]
    for metric, name in (("bleu", "BLEU"), ("chrf", "chrF2")):
        first, second = (score_of_texts(metric, texts, references) for texts in (one, other))
        difference = Difference.between(second, resampled[1][metric], first, resampled[0][metric])
        assert difference.value == pytest.approx(tested[name][1].score - tested[name][0].score)
        assert difference.low <= difference.value <= difference.high
        assert difference.p_value == pytest.approx(tested[name][1].p_value, abs=0.06)


def some_systems(damage: float) -> tuple[list[str], tuple[list[str], list[str]]]:
    """References, and two outputs whose words are wrong at random, the second's more often."""
    chance = random.Random(0)
    words = [f"word{number}" for number in range(50)]
    rows = [chance.choices(words, k=12) for _ in range(100)]

    def output(error: float) -> list[str]:
        return [" ".join("wrong" if chance.random() < error else word for word in row) for row in rows]

    return [" ".join(row) for row in rows], (output(0.2), output(0.2 + damage))


def test_equal_scores_are_no_significant_difference() -> None:
    scores = np.linspace(10, 20, 1000)
    assert Difference.between(15.0, scores, 15.0, scores) == Difference(0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("affected", ["all", "one resample"])
@pytest.mark.filterwarnings("error")
def test_scores_that_are_not_finite_have_no_p_value(value: float, affected: str) -> None:
    """They would count as significant: no comparison with NaN is true."""
    scores = np.linspace(10, 20, 1000)
    damaged = (
        np.where(np.arange(1000) == 500, value, scores) if affected == "one resample" else scores + value
    )
    for others in (scores, damaged):
        difference = Difference.between(15.0, damaged, 15.0, others)
        assert np.isnan(difference.p_value)
    assert np.isnan(Difference.between(value, scores, 15.0, scores).p_value)


@pytest.mark.parametrize("task", METRICS_OF_TASK)
def test_all_metrics_are_resampled_by_the_same_rows(task: str) -> None:
    predictions, references = some_texts(seed=1)
    scores = resampled_scores(predictions, references, task, seed=3)
    assert list(scores) == list(METRICS_OF_TASK[task])
    for metric, statistics in row_statistics(predictions, references, task).items():
        assert scores[metric].tolist() == bootstrap_scores(metric, statistics, seed=3).tolist()
        assert scores[metric].tolist() != bootstrap_scores(metric, statistics, seed=4).tolist()
