"""Exact match and F1 of answers against a slow reference, and the threshold for answering nothing."""

import itertools
import random
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaswani.evaluation.answer_metrics import (
    AnswerMetric,
    best_scores,
    best_threshold,
    exact_match,
    f1,
    normalized,
)

WORDS = ["the", "A", "an", "ann", "Ann.", "saw", "rome", "rome", "-", "the-rome"]
ANSWERS = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)


def plain_words(answer: str) -> list[str]:
    """The words that count, letter by letter and word by word."""
    kept = "".join(letter for letter in answer.lower() if letter not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def plain_f1(prediction: str, reference: str) -> float:
    predicted, true = plain_words(prediction), plain_words(reference)
    if not predicted and not true:
        return 1.0
    left, right = list(true), 0
    for word in predicted:
        if word in left:
            left.remove(word)
            right += 1
    if right == 0:
        return 0.0
    precision, recall = right / len(predicted), right / len(true)
    return 2 * precision * recall / (precision + recall)


@given(prediction=ANSWERS, reference=ANSWERS)
def test_scores_are_those_of_a_slow_reference(prediction, reference):
    assert normalized(prediction) == " ".join(plain_words(prediction))
    assert exact_match(prediction, reference) == (plain_words(prediction) == plain_words(reference))
    assert f1(prediction, reference) == pytest.approx(plain_f1(prediction, reference))
    assert f1(prediction, reference) == f1(reference, prediction)


@pytest.mark.parametrize(
    ("prediction", "reference", "exact", "overlap"),
    [
        ("The Rome!", "rome", 1, 1),
        ("in Rome", "Rome", 0, 2 / 3),
        ("another", "other", 0, 0),
        ("", "", 1, 1),
        ("the", "", 1, 1),
        ("Rome", "", 0, 0),
        ("rome rome", "rome", 0, 2 / 3),
    ],
)
def test_known_scores(prediction, reference, exact, overlap):
    assert exact_match(prediction, reference) == exact
    assert f1(prediction, reference) == pytest.approx(overlap)


def test_the_best_reference_counts_and_no_references_mean_an_empty_answer():
    assert best_scores("in rome", ["ann", "rome", "in rome"]) == (1, 1)
    assert best_scores("in rome", ["ann", "rome"]) == (0, pytest.approx(2 / 3))
    assert best_scores("", []) == (1, 1)
    assert best_scores("rome", []) == (0, 0)
    assert best_scores("", ["the", "rome"]) == (0, 0)  # a reference that is empty after all is not one


PREDICTIONS = ["ann", "in rome", "", "oslo", "the york"]
REFERENCES = [["ann"], ["rome", "york"], [], [], ["york"]]


def test_scores_are_reported_overall_and_for_each_kind_of_question():
    metric = AnswerMetric(keep_in_memory=True)
    scores = metric.compute(predictions=PREDICTIONS, references=REFERENCES)
    points = [plain_f1("ann", "ann"), plain_f1("in rome", "rome"), 1, 0, 1]
    assert scores == pytest.approx(
        {
            "exact_match": 60,
            "f1": 100 * sum(points) / 5,
            "has_answer_exact_match": 200 / 3,
            "has_answer_f1": 100 * (points[0] + points[1] + points[4]) / 3,
            "no_answer_accuracy": 50,
        }
    )
    assert scores.keys() == metric.names.keys()


def test_without_unanswerable_questions_there_are_two_scores():
    metric = AnswerMetric(keep_in_memory=True)
    scores = metric.compute(predictions=["ann", "rome"], references=[["ann"], ["oslo"]])
    assert scores == {"exact_match": 50, "f1": 50}


def test_without_answerable_questions_there_are_two_scores_too():
    metric = AnswerMetric(keep_in_memory=True)
    assert metric.compute(predictions=["", "rome"], references=[[], []]) == {"exact_match": 50, "f1": 50}


def test_weights_are_repeated_rows():
    metric = AnswerMetric(keep_in_memory=True)
    weights = [2, 0, 1, 3, 1]
    repeated = [
        [value for value, count in zip(column, weights, strict=True) for _ in range(count)]
        for column in (PREDICTIONS, REFERENCES)
    ]
    table = metric.table(PREDICTIONS, REFERENCES)
    expected = metric.compute(predictions=repeated[0], references=repeated[1])
    assert metric.scores(table, np.array(weights, dtype=float)) == pytest.approx(expected)
    resampled = metric.resampled_scores(table)
    assert resampled["f1"].std() > 0
    assert resampled.keys() == expected.keys()


def f1_at(threshold: float, texts: list[str], odds: list[float], references: list[list[str]]) -> float:
    chosen = ["" if odd > threshold else text for text, odd in zip(texts, odds, strict=True)]
    return sum(best_scores(text, right)[1] for text, right in zip(chosen, references, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_a_higher_f1(seed):
    generator = random.Random(seed)
    references = [generator.choice([[], ["ann"], ["in rome"]]) for _ in range(12)]
    texts = [generator.choice(["ann", "rome", "oslo"]) for _ in references]
    odds = [float(generator.randint(-4, 4)) for _ in references]  # some are equal
    found = f1_at(best_threshold(texts, odds, references), texts, odds, references)
    tried = [*odds, *(odd - 0.5 for odd in odds), -99.0, 99.0]
    assert found == pytest.approx(max(f1_at(threshold, texts, odds, references) for threshold in tried))


def test_a_threshold_lies_between_what_it_divides():
    threshold = best_threshold(["ann", "oslo"], [-3.0, 1.0], [["ann"], []])
    assert threshold == -1
    assert best_threshold(["ann"], [5.0], [["ann"]]) > 5
    assert best_threshold(["ann"], [5.0], [[]]) < 5
    assert best_threshold([""], [float("inf")], [[]]) == 0
    assert best_threshold(["", "ann"], [float("inf"), 5.0], [[], ["ann"]]) > 5


def test_all_orders_of_the_questions_have_the_same_threshold():
    rows = [("ann", -2.0, ["ann"]), ("rome", 0.0, []), ("oslo", 0.0, ["oslo"]), ("york", 3.0, [])]
    found = {best_threshold(*map(list, zip(*order, strict=True))) for order in itertools.permutations(rows)}
    assert len(found) == 1
