"""Questions on texts: rows with a text, a question and its answers, which are spans of the text.

Reads SQuAD's own JSON (Rajpurkar et al., 2016, arXiv:1606.05250; with unanswerable questions, 2018,
arXiv:1806.03822) and tables with the same fields. Rows are read and counted as in other corpora (see
`data/sources/corpus.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, List, Value

from vaswani.data.sources import reading
from vaswani.data.sources.corpus import Corpus, load_in_memory
from vaswani.data.sources.corpus_spec import SPLITS, BaseCorpusSpec
from vaswani.data.sources.reading import Row, shown
from vaswani.data.sources.row_report import RowReport
from vaswani.data.sources.splits import Source, arrow_table, existing_file, file_identity
from vaswani.errors import UserError
from vaswani.files.json_files import RepeatedKeyError, parse_json

FEATURES = Features(
    {
        "id": Value("string"),
        "context": Value("string"),
        "question": Value("string"),
        "answers": {"text": List(Value("string")), "answer_start": List(Value("int32"))},
    }
)


@dataclass
class QuestionSpec(BaseCorpusSpec):
    """Questions on texts, and the fields of tables; SQuAD's own JSON has fixed fields.

    Args:
        id_field: field of a name for each row; without it, rows are numbered from 0.
        context_field: field of the text that holds the answers.
        question_field: field of the question.
        answers_field: field of the answers: an object with the lists `text` and `answer_start`, a list of
            objects with one `text` and `answer_start` each, or either of these as JSON. No answers mean that
            the text does not answer the question.
        answer_start_field: field of the position, in characters, where an answer begins; `answers_field` then
            holds its text. Both fields may also hold a list.
    """

    columns = ("context", "question", "answers")

    id_field: str = "id"
    context_field: str = "context"
    question_field: str = "question"
    answers_field: str = "answers"
    answer_start_field: str | None = None

    @property
    def options(self) -> dict[str, str]:
        """The name of the field to read for each option, except `id_field`, which may be missing."""
        names = ("context_field", "question_field", "answers_field", "answer_start_field")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that the rows of files depend on."""
        return {"id_field": self.id_field, **self.options}

    @property
    def features(self) -> Features:
        """The columns."""
        return FEATURES


def load_questions(spec: QuestionSpec, splits: Sequence[str] = SPLITS) -> Corpus:
    """Load the requested splits of questions on texts into memory, as far as they exist.

    Returns:
        Splits with the columns `id`, `context`, `question` and `answers`: `text` and `answer_start`, lists of
        equal length, which are empty for a question that its text does not answer. Rows without a text, a
        question or the field of answers are left out and counted. A split without any answers, such as the
        test data of a competition, is left out.

    Raises:
        UserError: as `load_corpus`; or an answer cannot be read, or is not at its position in the text.
    """
    return load_in_memory(spec, splits, sources=(_file_source, _dataset_source), rows_of=_question_rows)


def check_ids(questions: Dataset, split: str) -> None:
    """Raise `UserError` if two questions of a split have the same id, since answers are stored by id."""
    rows: dict[str, int] = {}
    for row, name in enumerate(questions["id"][:], start=1):
        if name in rows:
            raise UserError(
                f"questions {rows[name]:,} and {row:,} of {split} have the same id, {name!r}, by which their "
                "answers are written; give each its own, or set id_field"
            )
        rows[name] = row


# --------------------------------------------------------------------------------------------------- sources


def _file_source(names: Sequence[str], spec: QuestionSpec) -> Source:
    """Return a source of one file: SQuAD's own JSON, or a table."""
    (name,), path = names, existing_file(names[0])
    table, identity = reading.known_table(path, name), partial(file_identity, [path], spec)
    if (articles := squad_articles(path)) is not None:
        return Source(name, partial(rows_of_articles, articles, name), identity)
    fields = _fields(table.fields(path), spec, name)
    read = reading.cell_reader(path, table, fields)
    return Source(name, partial(_with_id, read, spec.id_field in fields), identity)


def _dataset_source(
    dataset: Dataset, spec: QuestionSpec, split: str, identity: Callable[[], dict[str, Any]]
) -> Source:
    """Return a source of a data set that `datasets` has opened."""
    name = f"{spec.dataset} ({split})"
    existing = list(reading.arrow_fields(dataset.features.arrow_schema))
    fields = _fields(existing, spec, name)
    read = partial(reading.arrow_rows, arrow_table(dataset, fields), *fields)
    return Source(name, partial(_with_id, read, spec.id_field in fields), identity)


def _fields(existing: Sequence[str], spec: QuestionSpec, where: str) -> list[str]:
    """Return the fields to read: the id, if it exists, and the fields of the options, which must exist.

    Args:
        existing: dotted names of all leaf fields.
        spec: names the fields to read.
        where: name of the source in messages.
    """
    parents = {name[:place] for name in existing for place, letter in enumerate(name) if letter == "."}
    known = [*existing, *sorted(parents - set(existing))]
    for option, name in spec.options.items():
        reading.check_field(option, name, known, where)
    if spec.id_field not in known and spec.id_field != QuestionSpec.id_field:
        reading.check_field("id_field", spec.id_field, known, where)
    return [*([spec.id_field] if spec.id_field in known else []), *spec.options.values()]


def _with_id(read: Callable[[], Iterator[Row]], has_id: bool) -> Iterator[Row]:
    """Yield id, text, question and answers (and their starts) of each row; None for an id that it lacks."""
    for row in read():
        yield row if row is None or has_id else (None, *row)


def squad_articles(path: Path) -> list[Any] | None:
    """Return the articles of a file in SQuAD's own JSON; None for any other file."""
    if not path.name.lower().removesuffix(".gz").endswith(".json"):
        return None
    with reading.open_text(path) as file:
        text = file.read()
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = parse_json(text)
    except RepeatedKeyError as error:
        raise UserError(f"{path}: {error}; leave one of them") from error
    except (ValueError, RecursionError):
        return None  # JSON Lines, whose lines are read one by one
    articles = value.get("data") if isinstance(value, dict) else None
    return articles if isinstance(articles, list) else None


def rows_of_articles(articles: Sequence[Any], name: str) -> Iterator[Row]:
    """Yield id, text, question and answers of each question; None for a question that is not an object."""
    for number, article in enumerate(articles, start=1):
        for paragraph in _list_in(article, "paragraphs", f"article {number:,} of {name}"):
            where = f"a paragraph of article {number:,} of {name}"
            for question in _list_in(paragraph, "qas", where):
                if not isinstance(question, dict):
                    yield None
                    continue
                answers = [] if question.get("is_impossible") else question.get("answers")
                yield question.get("id"), paragraph.get("context"), question.get("question"), answers


def _list_in(value: Any, name: str, where: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise UserError(f"{where} has no list '{name}', as SQuAD's JSON does; correct it")
    return found


# ------------------------------------------------------------------------------------------------------ rows


def _question_rows(source: Source, spec: QuestionSpec, report: RowReport) -> Iterator[dict[str, Any]]:
    """Yield the usable rows with the columns of `FEATURES`; count the others."""
    wrong: list[str] = []
    for number, cells in enumerate(source.rows(), start=1):
        where = f"row {number:,} of {source.name}"
        problem = "malformed" if cells is None else _problem_of(cells)
        if cells is None or problem is not None:
            report.count(str(problem))
            continue
        name, context, question, *given = cells
        try:
            answers = read_answers(*given)
        except ValueError as error:
            raise UserError(f"{where} {error}") from error
        if answers is None:
            report.missing_answers += 1
            continue
        wrong += [f"{where} {fault}" for fault in _faults(answers, context)]
        report.kept += 1
        yield {
            "id": str(number - 1 if name is None else name),
            "context": context,
            "question": question,
            "answers": _without_margins(answers),
        }
    if wrong:
        others = f" ({len(wrong):,} answers are not)" if len(wrong) > 1 else ""
        raise UserError(f"every answer must be in its text, but {wrong[0]}{others}: correct or remove them")


def _problem_of(cells: tuple[Any, ...]) -> str | None:
    """Return the field of the report that counts a row without a text or a question, or None."""
    return next(filter(None, (reading.problem_of((cell,)) for cell in cells[1:3])), None)


def read_answers(cell: Any, *place: Any) -> dict[str, list[Any]] | None:
    """Return the answers of a cell, `text` and `answer_start`; None if the cell is empty.

    Args:
        cell: an object of two lists, a list of objects, or either as JSON. If `place` is given, the text of
            an answer or a list of texts; if both are empty, the text does not answer the question.
        place: the start of the answer or a list of starts, if they are in a field of their own.

    Raises:
        ValueError: the cell holds something else. The message is the rest of a sentence that begins with
            "row 1 of FILE".
    """
    if place:
        texts, places = (each if isinstance(each, list) else [each] for each in (cell, *place))
        if all(each in (None, "") for each in (*texts, *places)):
            return {"text": [], "answer_start": []}
        return _checked(texts, places, cell)
    if isinstance(cell, str):
        if not cell.strip():
            return None
        try:
            value = json.loads(cell)
        except (ValueError, RecursionError):
            raise ValueError(
                f"has {shown(cell)} where answers are expected in JSON; see answers_field"
            ) from None
        return read_answers(value)
    if cell is None:
        return None
    if isinstance(cell, list) and all(isinstance(each, dict) for each in cell):
        return _checked(
            [each.get("text") for each in cell], [each.get("answer_start") for each in cell], cell
        )
    if isinstance(cell, dict) and isinstance(cell.get("text"), list):
        return _checked(cell["text"], cell.get("answer_start") or [], cell)
    raise ValueError(
        f"has {shown(cell)} where answers are expected, such as "
        '{"text": ["in Rome"], "answer_start": [17]}; see answers_field'
    )


def _checked(texts: list[Any], starts: list[Any], cell: Any) -> dict[str, list[Any]]:
    if len(texts) != len(starts):
        raise ValueError(f"has {len(texts)} answers and {len(starts)} places where they start: {shown(cell)}")
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"has the answer {shown(text)}; expected a text")
    return {"text": texts, "answer_start": [_place(start) for start in starts]}


def _place(start: Any) -> int:
    try:
        place = int(start) if isinstance(start, str) else start
    except ValueError:
        place = None
    if isinstance(place, float) and place.is_integer():  # columns with empty cells hold floats
        place = int(place)
    if not isinstance(place, int) or isinstance(place, bool) or place < 0:
        raise ValueError(f"has answer_start={shown(start)}; expected a number of characters, 0 or more")
    return place


def _faults(answers: dict[str, list[Any]], context: str) -> Iterator[str]:
    """Yield a description of each answer that is not in its text at `answer_start`."""
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        found = context[start : start + len(text)]
        if found != text:
            there = (
                f"its text has {shown(found)}" if found else f"its text of {len(context):,} characters ends"
            )
            yield f"has the answer {shown(text)} at answer_start={start:,}, where {there}"


def _without_margins(answers: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return answers without white space around them, which tokens of an answer do not cover."""
    texts, starts = answers["text"], answers["answer_start"]
    margins = [len(text) - len(text.lstrip()) for text in texts]
    moved = [start + margin for start, margin in zip(starts, margins, strict=True)]
    return {"text": [text.strip() for text in texts], "answer_start": moved}
