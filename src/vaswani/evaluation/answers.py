"""Evaluate answers to questions: their scores with confidence intervals, and examples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from datasets import Dataset

from vaswani.data.evenly_spread import evenly_spread
from vaswani.errors import UserError
from vaswani.evaluation.answer_metrics import AnswerMetric, best_threshold
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.final import NUM_EXAMPLES, metric_entries
from vaswani.evaluation.summary import score_fields, score_lines, speed_line
from vaswani.inference.answer.answering import QuestionAnswerer
from vaswani.inference.answer.spans import Answer


@dataclass(frozen=True)
class AnswerEvaluation:
    """Predicted answers to questions, with the right answers.

    Args:
        answers: one for each question.
        references: the texts of the right answers to each question; empty for an unanswerable question.
        seconds: time spent on answering.
    """

    answers: list[Answer]
    references: list[list[str]]
    seconds: float = 0.0

    def __str__(self) -> str:
        rows = [*score_lines(AnswerMetric.names, self.estimates)]
        rows.append(speed_line(len(self.answers), "questions", self.seconds))
        if self.cut_off:
            rows.append(f"question cut off: {self.cut_off:,}")
        return "\n".join(rows)

    def metrics(self) -> dict[str, Any]:
        """Return the scores with their intervals as in `evaluation.json`."""
        return metric_entries(AnswerMetric.names, self.estimates)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the answers as plain JSON values."""
        return {
            "rows": len(self.answers),
            "cut_off_rows": self.cut_off,
            **score_fields(self.estimates),
            "seconds": round(self.seconds, 3),
        }

    @property
    def cut_off(self) -> int:
        """Number of questions that were truncated."""
        return sum(answer.cut_off for answer in self.answers)

    @cached_property
    def predictions(self) -> list[str]:
        """The texts of the answers; an empty text means no answer."""
        return [answer.text for answer in self.answers]

    def scores(self) -> dict[str, float]:
        """Return the scores of `AnswerMetric`."""
        return AnswerMetric(keep_in_memory=True).scores_of(self.predictions, self.references)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Each score with its 95 % confidence interval, from bootstrap resamples of the questions."""
        return AnswerMetric(keep_in_memory=True).estimates(self.predictions, self.references)

    def best_threshold(self) -> float:
        """Return the threshold for giving no answer that has the highest F1 on these questions."""
        texts = [answer.spans[0].text if answer.spans else "" for answer in self.answers]
        odds = [answer.null_odds for answer in self.answers]
        return best_threshold(texts, odds, self.references)

    def with_threshold(self, threshold: float | None) -> AnswerEvaluation:
        """Return the same answers with another threshold."""
        return replace(self, answers=[replace(answer, threshold=threshold) for answer in self.answers])

    def examples(self, questions: Dataset) -> list[dict[str, Any]]:
        """Return some questions, evenly spread, with their texts, predictions and first references."""
        return [
            {
                "context": questions[row]["context"],
                "question": questions[row]["question"],
                "prediction": self.predictions[row],
                "reference": next(iter(self.references[row]), ""),
            }
            for row in evenly_spread(len(questions), NUM_EXAMPLES)
        ]


def evaluate_answers(
    answerer: QuestionAnswerer,
    questions: Dataset | Sequence[Mapping[str, Any]],
    progress: Callable[[int], object] | None = None,
) -> AnswerEvaluation:
    """Answer questions and return the predictions with the right answers.

    Args:
        answerer: the model with its options.
        questions: rows with `context`, `question` and `answers`, as from `load_questions`.
        progress: is called with the number of questions of each finished batch.

    Raises:
        UserError: there are no questions.
    """
    if not len(questions):
        raise UserError("there are no questions to evaluate on; check the data and its split")
    pairs = ((row["question"], row["context"]) for row in questions)
    start = time.perf_counter()
    answers = list(answerer.answer(pairs, progress))
    return AnswerEvaluation(answers, references_of(questions), time.perf_counter() - start)


def references_of(questions: Dataset | Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the texts of the right answers to each question."""
    return [list(row["answers"]["text"]) for row in questions]
