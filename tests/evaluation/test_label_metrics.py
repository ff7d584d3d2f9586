"""Label metrics compared with slow references, and their bootstrap with scoring resampled rows."""

import random
import socket
from typing import Any

import evaluate
import numpy as np
import pytest

from vaswani.evaluation import estimates
from vaswani.evaluation.label_metrics import (
    ClassificationMetric,
    LabelMetric,
    MultiLabelMetric,
    RegressionMetric,
    TaggingMetric,
)
from vaswani.evaluation.spans import spans_of

ROWS = 40
TAGS = ["O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
PARTS_OF_SPEECH = ["NOUN", "VERB", "ADJ"]


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("a metric opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", tmp_path)


def some_rows(metric: type[LabelMetric], seed: int) -> tuple[list, list]:
    """Predictions that are half right."""
    generator = random.Random(seed)

    def one() -> object:
        if metric is ClassificationMetric:
            return generator.choice(["good", "bad", "good", "so so", "rare"])
        if metric is MultiLabelMetric:
            return generator.sample(["funny", "sad", "long", "old"], k=generator.randint(0, 3))
        if metric is RegressionMetric:
            return generator.choice([-1.5, 0.0, 0.5, 2.0, generator.gauss(0, 3)])  # with ties
        return generator.choices(TAGS, k=6)

    references = [one() for _ in range(ROWS)]
    predictions = [one() if generator.random() < 0.5 else reference for reference in references]
    return predictions, references


def f1(right: int, predicted: int, true: int) -> float:
    return 200 * right / (predicted + true)


def slow_scores(metric: type[LabelMetric], predictions: list, references: list) -> dict[str, float]:
    """By counting, row by row and label by label."""
    pairs = list(zip(predictions, references, strict=True))
    if metric is RegressionMetric:
        return slow_correlations(predictions, references)
    if metric is TaggingMetric:
        words = [words for pair in pairs for words in zip(*pair, strict=True)]
        spans = [(set(spans_of(predicted)), set(spans_of(true))) for predicted, true in pairs]
        right = sum(len(predicted & true) for predicted, true in spans)
        found, sought = (sum(len(pair[side]) for pair in spans) for side in (0, 1))
        return {
            "token_accuracy": 100 * sum(tag == other for tag, other in words) / len(words),
            "precision": 100 * right / found,
            "recall": 100 * right / sought,
            "f1": f1(right, found, sought),
        }
    several = metric is MultiLabelMetric
    sets = [(set(predicted), set(true)) if several else ({predicted}, {true}) for predicted, true in pairs]
    counts = []
    for name in sorted(set().union(*(predicted | true for predicted, true in sets))):
        right = sum(name in predicted and name in true for predicted, true in sets)
        counts.append((right, *(sum(name in pair[side] for pair in sets) for side in (0, 1))))
    equal = 100 * sum(predicted == true for predicted, true in sets) / len(sets)
    macro = float(np.mean([f1(*count) for count in counts]))
    if not several:
        names = sorted({*predictions, *references})
        columns = [[[row == name for name in names] for row in rows] for rows in (predictions, references)]
        x, y = (np.array(each) - np.mean(each, axis=0) for each in columns)
        matthews = (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
        return {"accuracy": equal, "macro_f1": macro, "matthews": matthews}
    return {"micro_f1": f1(*np.sum(counts, axis=0)), "macro_f1": macro, "subset_accuracy": equal}


def slow_correlations(predictions: list[float], references: list[float]) -> dict[str, float]:
    def rank(value: float, values: list[float]) -> float:
        below, same = (sum(map(test, values)) for test in (lambda v: v < value, lambda v: v == value))
        return below + (same + 1) / 2

    ranks = [[rank(value, values) for value in values] for values in (predictions, references)]
    return {
        "pearson": float(np.corrcoef(predictions, references)[0, 1]),
        "spearman": float(np.corrcoef(*ranks)[0, 1]),
        "mse": sum((a - b) ** 2 for a, b in zip(predictions, references, strict=True)) / len(references),
    }


METRICS = [ClassificationMetric, MultiLabelMetric, RegressionMetric, TaggingMetric]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_what_counting_gives(metric, seed):
    predictions, references = some_rows(metric, seed)
    scores = metric(keep_in_memory=True).compute(predictions=predictions, references=references)
    assert list(scores) == list(metric.names)
    assert scores == pytest.approx(slow_scores(metric, predictions, references))


@pytest.mark.parametrize("metric", METRICS)
def test_perfect_rows_have_perfect_scores(metric):
    _, references = some_rows(metric, seed=0)
    scores = metric(keep_in_memory=True).compute(predictions=references, references=references)
    best = {"matthews": 1.0, "pearson": 1.0, "spearman": 1.0, "mse": 0.0}
    assert scores == pytest.approx({name: best.get(name, 100.0) for name in metric.names})


@pytest.mark.parametrize("metric", METRICS)
def test_batches_add_up_and_metrics_combine(metric):
    predictions, references = some_rows(metric, seed=1)
    batched = metric()
    batched.add_batch(predictions=predictions[:7], references=references[:7])
    batched.add_batch(predictions=predictions[7:], references=references[7:])
    scores = batched.compute()
    assert scores == metric().compute(predictions=predictions, references=references)
    assert evaluate.combine([metric()]).compute(predictions=predictions, references=references) == scores


@pytest.mark.parametrize("metric", METRICS)
def test_the_bootstrap_scores_resampled_rows(metric, monkeypatch):
    monkeypatch.setattr(estimates, "RESAMPLES", 5)
    predictions, references = some_rows(metric, seed=2)
    scorer = metric(keep_in_memory=True)
    generator, expected = np.random.default_rng(7), []
    for _ in range(5):
        rows = generator.integers(ROWS, size=ROWS)
        drawn = ([side[row] for row in rows] for side in (predictions, references))
        expected.append(slow_scores(metric, *drawn))
    found = scorer.resampled_scores(scorer.table(predictions, references), seed=7)
    for name in metric.names:
        assert found[name].tolist() == pytest.approx([scores[name] for scores in expected])
        assert len(set(found[name])) > 1


def test_labels_that_are_never_predicted_or_never_true_count_in_macro_f1():
    scores = ClassificationMetric(keep_in_memory=True).compute(predictions="aac", references="aab")
    expected = {"accuracy": 200 / 3, "macro_f1": (100 + 0 + 0) / 3, "matthews": 0.5}
    assert scores == pytest.approx(expected)


def test_rows_without_labels():
    metric = MultiLabelMetric(keep_in_memory=True)
    none = {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 100.0}
    assert metric.compute(predictions=[[], []], references=[[], []]) == none
    scores = metric.compute(predictions=[["a"], []], references=[[], ["b"]])
    assert scores == {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 0.0}


@pytest.mark.parametrize("constant", [0.1, 3.0])
def test_constant_predictions_have_zero_correlation(constant):
    scores = RegressionMetric(keep_in_memory=True).compute(
        predictions=[constant] * 7, references=[1, 2, 3, 4, 5, 6, 7]
    )
    assert (scores["pearson"], scores["spearman"]) == (0.0, 0.0)
    assert scores["mse"] > 0


def test_a_correlation_does_not_see_the_scale():
    scores = RegressionMetric(keep_in_memory=True).compute(predictions=[1, 8, 27], references=[-1, -2, -3])
    assert scores["spearman"] == pytest.approx(-1)
    assert -1 < scores["pearson"] < -0.9


def test_parts_of_speech_have_an_accuracy_alone():
    scores = TaggingMetric(keep_in_memory=True).compute(
        predictions=[["NOUN", "VERB"], ["ADJ"]], references=[["NOUN", "NOUN"], ["ADJ"]]
    )
    assert scores == pytest.approx({"token_accuracy": 200 / 3})


def test_only_whole_spans_count_as_correct():
    predictions = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    references = [["B-PER", "I-PER", "I-PER", "B-LOC"], ["B-PER", "O"]]
    scores = TaggingMetric(keep_in_memory=True).compute(predictions=predictions, references=references)
    assert scores == pytest.approx(
        {"token_accuracy": 400 / 6, "precision": 100 / 3, "recall": 100 / 3, "f1": 100 / 3}
    )
    assert TaggingMetric(keep_in_memory=True).by_label(predictions, references) == {
        "LOC": {"precision": 50.0, "recall": 100.0, "f1": pytest.approx(200 / 3), "support": 1},
        "PER": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2},
    }


def slow_pairs(metric: type[LabelMetric], row: Any) -> set[tuple[int, str]]:
    """A label is counted once for each row, a tag once for each word."""
    if metric is ClassificationMetric:
        return {(0, row)}
    return set(enumerate(row)) if metric is TaggingMetric else {(0, name) for name in row}


@pytest.mark.parametrize("metric", [ClassificationMetric, MultiLabelMetric, TaggingMetric])
def test_scores_of_each_label(metric):
    """Tags that mark no spans are labels of words."""
    predictions, references = some_rows(metric, seed=3)
    if metric is TaggingMetric:  # in one row, all tags could also mark spans
        of_words = {"B-PER": "NOUN", "I-PER": "VERB", "O": "B", "B-LOC": "I"}
        predictions, references = (
            [[of_words.get(tag, "ADJ") for tag in row] for row in rows] for rows in (predictions, references)
        )
    found = metric(keep_in_memory=True).by_label(predictions, references)
    both = [[slow_pairs(metric, row) for row in rows] for rows in (predictions, references)]
    names = {name for rows in both for row in rows for _, name in row}
    assert found.keys() == names
    for name in names:
        pairs = [[{item for item in row if item[1] == name} for row in rows] for rows in both]
        right = sum(len(one & other) for one, other in zip(*pairs, strict=True))
        predicted, true = (sum(map(len, rows)) for rows in pairs)
        expected = {"precision": 100 * right / predicted, "recall": 100 * right / true}
        expected |= {"f1": f1(right, predicted, true), "support": true}
        assert found[name] == pytest.approx(expected)


def test_numbers_have_no_labels():
    assert RegressionMetric(keep_in_memory=True).by_label([1.0], [2.0]) == {}


@pytest.mark.parametrize("rows", [("aaa", "aab"), ("ab", "bb"), ("aa", "aa")])
def test_a_single_label_correlates_with_nothing(rows):
    scores = ClassificationMetric(keep_in_memory=True).compute(predictions=rows[0], references=rows[1])
    assert scores["matthews"] == 0.0
