"""Answer the questions of a table, in bounded memory, as lines of JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import tee
from pathlib import Path
from typing import Any

from vaswani.data.questions.question_rows import rows_of_articles, squad_articles
from vaswani.data.sources.records import Record
from vaswani.errors import UserError
from vaswani.inference.answer.answering import PAIRS_AT_ONCE, QuestionAnswerer
from vaswani.inference.answer.spans import Answer
from vaswani.inference.inputs import Column, LineReport, TableTexts, open_table

# Fields added to the rows of a table.
ADDED = ["prediction", "start", "end", "score", "null_odds", "cut_off", "spans"]


@contextmanager
def open_questions(
    name: str, given: Mapping[str, str | None], trained: Mapping[str, Any]
) -> Iterator[TableTexts]:
    """Open the questions of a table, or of SQuAD's own JSON, each with its text.

    Args:
        name: name of the file; "-" for standard input, which is JSON Lines.
        given: `question_field` and `context_field`; None means as in training, or else `question` and
            `context`.
        trained: settings of the training.

    Raises:
        UserError: as `open_table`.
    """
    path, own = Path(name), {option: option.removesuffix("_field") for option in given}
    articles = squad_articles(path) if path.is_file() else None
    if articles is None:
        fields = {option: field or trained.get(option) or own[option] for option, field in given.items()}
        with open_table(name, _columns(fields), added=ADDED) as table:
            yield table
        return
    for option, field in given.items():
        if field is not None:
            raise UserError(f"--{option} {field} is for tables, and {name} is SQuAD's own JSON; leave it out")
    yield TableTexts(_records(articles, name), *_columns(own))


def _columns(fields: Mapping[str, str]) -> list[Column]:
    return [Column(field, option) for option, field in fields.items()]


def _records(articles: Sequence[Any], name: str) -> Iterator[Record]:
    for number, row in enumerate(rows_of_articles(articles, name), start=1):
        if row is None:
            raise UserError(f"question {number:,} of {name} is not an object; correct it")
        question_id, context, question, _ = row
        yield Record(
            f"question {number:,} of {name}", {"id": question_id, "question": question, "context": context}
        )


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
        write: receives the row of each question, in order, with the `prediction` (empty for no answer), its
            position in the text (`start` and exclusive `end`, in characters), its `score`, `null_odds`, the
            score of no answer minus the score of the best span, and, for a truncated question, `cut_off`.
        top_k: add this many `spans`, best first.
        buffer_size: number of questions to read ahead.
        progress: is called with the number of questions of each finished batch.
    """
    report = questions.report
    given, kept = tee(questions)
    found = answerer.answer(given, progress, buffer_size=buffer_size)
    for answer, (question, context) in zip(found, kept, strict=True):
        questions.take()
        report.empty += not question.strip() or not context.strip()
        report.question_cut_off += answer.cut_off
        write(questions.record(**_fields(answer, top_k)))
    return report


def _fields(answer: Answer, top_k: int | None) -> dict[str, Any]:
    span, odds = answer.best, answer.null_odds
    fields: dict[str, Any] = {"prediction": answer.text}
    fields |= {name: getattr(span, name, None) for name in ("start", "end", "score")}
    fields["null_odds"] = odds if math.isfinite(odds) else None
    if answer.cut_off:
        fields["cut_off"] = True
    if top_k is not None:
        fields["spans"] = [*map(vars, answer.spans[:top_k])]
    return fields
