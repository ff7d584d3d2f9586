"""Exact match and F1 of answers, as in SQuAD, and the best threshold for giving no answer.

The scores are those of Rajpurkar et al. (2016, arXiv:1606.05250). For questions that the text does not
answer, they follow Rajpurkar et al. (2018, arXiv:1806.03822): the empty answer is right. Scores run from 0
to 100.

S questions
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import datasets
import evaluate
import numpy as np

from vaswani.evaluation import score_names
from vaswani.evaluation.label_metrics import Floats, LabelMetric, percent

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Return an answer in lower case, without punctuation and articles, and with single spaces."""
    bare = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 for answers that are the same after normalization, else 0."""
    return float(normalized(prediction) == normalized(reference))


def f1(prediction: str, reference: str) -> float:
    """Return the F1 of shared words, 0 to 1. If an answer is empty, return 1 if both are empty, else 0."""
    predicted, true = (normalized(answer).split() for answer in (prediction, reference))
    if not predicted or not true:
        return float(predicted == true)
    both = (Counter(predicted) & Counter(true)).total()
    return 2 * both / (len(predicted) + len(true))


def best_scores(prediction: str, references: Sequence[str]) -> tuple[float, float]:
    """Return the best exact match and the best F1 over the references; without any, compare with ""."""
    usable = [reference for reference in references if normalized(reference)] or [""]
    return (
        max(exact_match(prediction, reference) for reference in usable),
        max(f1(prediction, reference) for reference in usable),
    )


class AnswerMetric(LabelMetric):
    """Exact match and F1 of answers; also per kind if only some of the questions are answerable."""

    names = score_names.ANSWERS
    description = "Exact match and F1 of answers to questions, as in SQuAD, 0 to 100."

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=self.description,
            citation="",
            inputs_description="predictions, and a list of references for each, empty for no answer.",
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
        )

    def table(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Floats:
        """Return exact match, F1, and 1 for answerable or 0 for unanswerable, for each question: [S, 3]."""
        rows = [
            (*best_scores(prediction, answers), float(len(answers) > 0))
            for prediction, answers in zip(predictions, references, strict=True)
        ]
        return np.array(rows, dtype=float).reshape(-1, 3)

    def scores(self, table: Floats, weights: Floats) -> dict[str, float]:
        """Return `exact_match` and `f1`; if only some questions are answerable, all scores of `names`."""
        exact, overlap, has_answer = table.T
        scores = {
            "exact_match": percent(weights @ exact, weights.sum()),
            "f1": percent(weights @ overlap, weights.sum()),
        }
        if has_answer.all() or not has_answer.any():
            return scores
        answered, unanswered = weights * has_answer, weights * (1 - has_answer)
        return scores | {
            "has_answer_exact_match": percent(answered @ exact, answered.sum()),
            "has_answer_f1": percent(answered @ overlap, answered.sum()),
            "no_answer_accuracy": percent(unanswered @ exact, unanswered.sum()),
        }


def best_threshold(
    predictions: Sequence[str], null_odds: Sequence[float], references: Sequence[Sequence[str]]
) -> float:
    """Return the threshold with the highest F1; above it, no answer replaces the predicted answer.

    Args:
        predictions: the best non-empty answer to each question.
        null_odds: for each question, the score of no answer minus the score of the prediction.
        references: the right answers to each question; empty for an unanswerable question.

    Returns:
        The midpoint between two neighbouring odds, or a number beyond all odds; 0 if no odds are finite.
    """
    odds = np.asarray(null_odds, dtype=float)
    finite = np.isfinite(odds)  # a text without tokens has no spans and infinite odds
    if not finite.any():
        return 0.0
    pairs = [
        pair for pair, kept in zip(zip(predictions, references, strict=True), finite, strict=True) if kept
    ]
    gains = np.array([best_scores(text, right)[1] - best_scores("", right)[1] for text, right in pairs])
    order = np.argsort(odds[finite], kind="stable")
    steps, gains = odds[finite][order], gains[order]
    bounds = np.concatenate([[steps[0] - 2], steps, [steps[-1] + 2]])
    total = np.concatenate([[0.0], np.cumsum(gains)])  # gain from answering the first k questions
    possible = bounds[:-1] < bounds[1:]  # questions with equal odds are answered together
    best = int(np.argmax(np.where(possible, total, -np.inf)))
    return float((bounds[best] + bounds[best + 1]) / 2)
