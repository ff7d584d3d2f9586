"""Loads the rows that a command works on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.cli.screen import warn

if TYPE_CHECKING:
    from datasets import Dataset


def load_split(files: list[str], split: str, **fields: Any) -> tuple[str, "Dataset"]:
    """Return the name and the rows of a data set's split; one or two files are the split "test"."""
    from vaswani.data.sources.corpus import CorpusSpec, load_corpus
    from vaswani.data.sources.reading import table_format

    is_file = len(files) == 2 or Path(files[0]).is_file() or table_format(Path(files[0])) is not None
    spec = CorpusSpec(**({"test_file": files} if is_file else {"dataset": files[0]}), **fields)
    split = "test" if is_file else split
    corpus = load_corpus(spec, [split])
    rows = corpus.split(split)
    warn(f"{split} of {' and '.join(files)}: {corpus.reports[split]}")
    return split, rows
