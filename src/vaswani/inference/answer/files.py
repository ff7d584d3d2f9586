"""Answer the questions of a table, in bounded memory, as lines of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import tee
from typing import Any

from vaswani.inference.answer.answering import PAIRS_AT_ONCE, QuestionAnswerer
from vaswani.inference.answer.spans import Answer
from vaswani.inference.inputs import LineReport, TableTexts

ADDED = ["prediction", "start", "end", "score", "null_odds", "spans"]  # fields, to the rows of a table


def answer_questions(
    answerer: QuestionAnswerer,
    questions: TableTexts,
    write: Callable[[str], None],
    *,
    top_k: int | None = None,
    buffer_size: int = PAIRS_AT_ONCE,
    progress: Callable[[int], object] | None = None,
) -> LineReport:
    """Answer each question of a table by a part of its text.

    Args:
        answerer: the model with its options.
        questions: pairs of a question and its text (see `open_table`).
        write: receives the row of each question, in order, with the `prediction` (empty for no answer), where
            in the text it stands (`start` and `end`, in characters, exclusive), its `score`, and by how much
            the score of no answer exceeds that of the best span (`null_odds`).
        top_k: add so many `spans`, the best first.
        buffer_size: questions read ahead.
        progress: is called with the number of questions of each finished batch.
    """
    report = questions.report
    given, kept = tee(questions)
    found = answerer.answer(given, progress, buffer_size=buffer_size)
    for answer, (question, context) in zip(found, kept, strict=True):
        questions.take()
        report.empty += not question.strip() or not context.strip()
        write(questions.record(**_fields(answer, top_k)))
    return report


def _fields(answer: Answer, top_k: int | None) -> dict[str, Any]:
    span, odds = answer.best, answer.null_odds
    fields: dict[str, Any] = {"prediction": answer.text}
    fields |= {name: getattr(span, name, None) for name in ("start", "end", "score")}
    fields["null_odds"] = odds if math.isfinite(odds) else None
    if top_k is not None:
        fields["spans"] = [*map(vars, answer.spans[:top_k])]
    return fields
