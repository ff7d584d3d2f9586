"""Load the rows for a command."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.cli.screen import warn
from vaswani.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

    from vaswani.data.sources.corpus import Corpus


def located(files: list[str], split: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a split and the fields that locate it; one or two files are the split "test".

    Raises:
        UserError: files are given together with another split.
    """
    from vaswani.data.sources.reading import table_format

    is_file = len(files) == 2 or Path(files[0]).is_file() or table_format(Path(files[0])) is not None
    if is_file and split != "test":
        raise UserError(
            f"split={split} is for data sets, and {' '.join(files)} is given as files; leave it out, or give "
            "their folder"
        )
    return ("test", {"test_file": files}) if is_file else (split, {"dataset": files[0]})


def check_columns(files: Sequence[str], columns: Mapping[str, str | None]) -> None:
    """Raise `UserError` if a column is given for two text files, which have no columns."""
    for name, column in columns.items():
        if len(files) == 2 and column is not None:
            raise UserError(
                f"--{name} is for tables, and two text files are given, the first the source; leave it out"
            )


def as_in_training(columns: Mapping[str, str | None], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are given, else those of a training; leave out unknown ones."""
    known = {name: trained.get(name) if column is None else column for name, column in columns.items()}
    return {name: column for name, column in known.items() if column is not None}


def columns_of_training(model: str, **defaults: str) -> tuple[str, ...]:
    """Return the columns that a model's training read.

    Args:
        model: folder of the model, or its name on the Hub, where nothing is recorded.
        defaults: the options of the columns, such as `source_field`, each with its column if none is
            recorded.
    """
    from vaswani.files.run_settings import read_settings

    settings = read_settings(Path(model))
    return tuple(settings.get(option) or column for option, column in defaults.items())


def files_in(data: str) -> list[Path]:
    """Return the files of all splits in the folder of a data set; empty for anything else."""
    from vaswani.data.sources.corpus_spec import SPLITS

    return [path for split in SPLITS for path in Path(data).glob(f"{split}.*")]


def load_split(
    load: "Callable[[Any, Sequence[str]], Corpus]",
    spec_class: Callable[..., Any],
    files: list[str],
    split: str,
    max_rows: int | None = None,
    output: str | None = None,
    **fields: Any,
) -> tuple[str, "Dataset"]:
    """Return the name and the rows of a split (see `located`); report how many there are.

    Args:
        load: loads a corpus, such as `load_corpus`.
        spec_class: class that describes such a corpus, such as `CorpusSpec`.
        files: the files of the split, or the data set.
        split: the split of a data set.
        max_rows: number of rows to keep, evenly spread; None means all.
        output: file that gets a line for each row that is kept; named in the report.
        fields: fields of `spec_class`.
    """
    from vaswani.data.evenly_spread import limit_rows

    split, place = located(files, split)
    corpus = load(spec_class(**place, **fields), [split])
    whole: Any = corpus.split(split)
    rows = limit_rows(whole, max_rows)
    report = corpus.reports[split]
    used = f", of which {max_rows:,} are used" if len(rows) < len(whole) else ""
    if output is not None and len(rows) < report.rows:
        used += f"; {output} gets a line for each of {len(rows):,}"
    warn(f"{split} of {' and '.join(files)}: {report}{used}")
    return split, rows
