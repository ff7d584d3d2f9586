"""Loads the rows that a command works on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.cli.screen import warn

if TYPE_CHECKING:
    from datasets import Dataset

    from vaswani.data.sources.corpus import Corpus


def located(files: list[str], split: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a split and the fields that locate it; one or two files are the split "test"."""
    from vaswani.data.sources.reading import table_format

    is_file = len(files) == 2 or Path(files[0]).is_file() or table_format(Path(files[0])) is not None
    return ("test", {"test_file": files}) if is_file else (split, {"dataset": files[0]})


def load_split(
    files: list[str], split: str, max_rows: int | None = None, **fields: Any
) -> tuple[str, "Dataset"]:
    """Return the name and the rows of a split of pairs (see `located`).

    Args:
        files: of the split, or the data set.
        split: of a data set.
        max_rows: number of rows to keep, evenly spread; None means all.
        fields: of the corpus.
    """
    from vaswani.data.sources.corpus import CorpusSpec, load_corpus

    split, place = located(files, split)
    corpus = load_corpus(CorpusSpec(**place, **fields), [split])
    return split, _told(files, split, corpus, max_rows)


def load_labelled_split(
    files: list[str], split: str, max_rows: int | None = None, **fields: Any
) -> tuple[str, "Dataset"]:
    """Return the same of labelled texts."""
    from vaswani.data.labels.labelled import LabelledSpec, load_labelled

    split, place = located(files, split)
    corpus = load_labelled(LabelledSpec(**place, **fields), [split])
    return split, _told(files, split, corpus, max_rows)


def load_question_split(
    files: list[str], split: str, max_rows: int | None = None, **fields: Any
) -> tuple[str, "Dataset"]:
    """Return the same of questions on texts."""
    from vaswani.data.questions.question_rows import QuestionSpec, load_questions

    split, place = located(files, split)
    corpus = load_questions(QuestionSpec(**place, **fields), [split])
    return split, _told(files, split, corpus, max_rows)


def _told(files: list[str], split: str, corpus: "Corpus", max_rows: int | None) -> "Dataset":
    """Return the rows of a split; report how many there are."""
    from vaswani.data.evenly_spread import evenly_spread

    rows = corpus.split(split)
    told = f"{split} of {' and '.join(files)}: {corpus.reports[split]}"
    if max_rows is not None and len(rows) > max_rows:
        rows = rows.select(evenly_spread(len(rows), max_rows))
        told += f", of which {max_rows:,} are used"
    warn(told)
    return rows
