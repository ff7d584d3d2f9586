"""Directions: each row of a table becomes a tagged pair of texts for each pair of columns."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from tiny_runs import datasets_cache
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.sources.directions import parse_directions
from vaswani.data.sources.row_report import RowReport
from vaswani.errors import UserError

__all__ = ["datasets_cache"]

COLUMNS = {
    "en": ["Two men.", "A dog."],
    "de": ["Zwei Männer.", "Ein Hund."],
    "fr": ["Deux hommes.", "Un chien."],
}
DIRECTIONS = ["en-de", "de-en", "fr-de"]
EXAMPLES = [
    (">>de<< Two men.", "Zwei Männer.", "en-de"),
    (">>en<< Zwei Männer.", "Two men.", "de-en"),
    (">>de<< Deux hommes.", "Zwei Männer.", "fr-de"),
    (">>de<< A dog.", "Ein Hund.", "en-de"),
    (">>en<< Ein Hund.", "A dog.", "de-en"),
    (">>de<< Un chien.", "Ein Hund.", "fr-de"),
]


def write(path: Path, rows: list[dict[str, Any]] | None = None) -> str:
    """Write rows, by default those of `COLUMNS`, in the format of the name."""
    rows = rows or [dict(zip(COLUMNS, texts, strict=True)) for texts in zip(*COLUMNS.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        mark = {".csv": ",", ".tsv": "\t"}[path.suffix]
        path.write_text("\n".join(mark.join(cells) for cells in (rows[0], *(row.values() for row in rows))))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(directions: list[str], **options: Any) -> tuple[list[tuple[str, ...]], RowReport]:
    """The examples of the training split, and their counts."""
    corpus = load_corpus(CorpusSpec(directions=directions, **options))
    rows = [tuple(row[name] for name in ("source", "target", "direction")) for row in corpus.split("train")]
    return rows, corpus.reports["train"]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_each_row_is_an_example_of_each_direction(ending: str, streaming: bool, tmp_path: Path) -> None:
    file = write(tmp_path / f"table.{ending}")
    assert load(DIRECTIONS, train_file=[file], streaming=streaming) == (EXAMPLES, RowReport(kept=6))


def test_a_folder_a_saved_data_set_and_joined_files_have_directions(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    file = write(tmp_path / "folder" / "train.jsonl")
    DatasetDict(train=Dataset.from_dict(COLUMNS)).save_to_disk(tmp_path / "saved")
    assert load(DIRECTIONS, dataset=str(tmp_path / "folder"))[0] == EXAMPLES
    assert load(DIRECTIONS, dataset=str(tmp_path / "saved"))[0] == EXAMPLES
    assert load(DIRECTIONS, train_file=[file, write(tmp_path / "more.csv")])[0] == EXAMPLES * 2
    assert load(["fr-en"], train_file=[file])[0][0] == (">>en<< Deux hommes.", "Two men.", "fr-en")


@pytest.mark.parametrize("streaming", [False, True])
def test_nested_columns_of_the_hub(streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [{"en": "A dog.", "de": "Ein Hund."}]
    theirs = Dataset.from_dict({"translation": texts})
    splits = {"train": theirs.to_iterable_dataset() if streaming else theirs}
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: splits)
    names = ["translation.en-translation.de", "translation.de:translation.en"]
    assert load(names, dataset="someone/corpus", streaming=streaming)[0] == [
        (">>de<< A dog.", "Ein Hund.", "translation.en-translation.de"),
        (">>en<< Ein Hund.", "A dog.", "translation.de-translation.en"),
    ]


def test_a_column_whose_name_has_a_hyphen_is_named_after_a_colon(tmp_path: Path) -> None:
    file = write(tmp_path / "table.jsonl", [{"en": "A dog.", "zh-CN": "狗。"}])
    assert load(["en:zh-CN", "zh-CN:en"], train_file=[file])[0] == [
        (">>zh-CN<< A dog.", "狗。", "en:zh-CN"),
        (">>en<< 狗。", "A dog.", "zh-CN:en"),
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_an_unusable_text_costs_a_row_its_directions_alone(streaming: bool, tmp_path: Path) -> None:
    whole = {"en": "a", "de": "b", "fr": "c"}
    file = Path(write(tmp_path / "table.jsonl", [whole, {**whole, "fr": " "}, {"en": "d", "de": "e"}]))
    file.write_text(file.read_text() + '{"en": \n\n{"en": "\\ud800", "de": "f", "fr": "g"}\n')
    rows, report = load(["en-de", "fr-en", "en-fr"], train_file=[str(file)], streaming=streaming)
    assert [row[2] for row in rows] == ["en-de", "fr-en", "en-fr", "en-de", "en-de"]
    assert report == RowReport(
        kept=5, empty=2 + 3, missing_source=1, missing_target=1, malformed=3, not_utf8=3
    )


def test_a_stream_tells_a_direction_without_rows_after_a_pass(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"en": "a", "de": "b", "fr": ""}] * 3
    file = write(tmp_path / "table.jsonl", rows)
    load(["en-de", "de-en"], train_file=[file], streaming=True)
    assert "text in both columns" not in caplog.text
    corpus = load_corpus(CorpusSpec(train_file=[file], directions=["en-de", "en-fr"], streaming=True))
    next(iter(corpus.split("train")))
    assert "text in both columns" not in caplog.text
    list(corpus.split("train"))
    assert f"No row of {file} has text in both columns of: 'en-fr'." in caplog.text


def test_other_directions_of_the_same_file_are_other_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"train_file": [write(tmp_path / "table.jsonl")]}
    corpora = [
        load_corpus(CorpusSpec(**options, directions=names)) for names in (["en-de"], ["de-en"], ["en:de"])
    ]
    one, other, same = (corpus.identity() for corpus in corpora)
    assert one != other
    assert one == same
    assert corpora[0].split("train")[0] != corpora[1].split("train")[0]


@pytest.mark.parametrize(
    ("items", "told"),
    [
        (["en"], "directions='en': expected the columns of sources and of targets, such as en-de"),
        (["en-"], "directions='en-': expected"),
        (["en-zh-CN"], "if a name has a hyphen, en:zh-CN"),
        (["en:de:fr"], "directions='en:de:fr': expected"),
        (["en-en"], "directions=en-en has the same column twice"),
        (["en-de", "de-en", "en:de"], "directions=en:de is given more than once"),
        (["a.en-a.de", "a.en-b.de"], "the columns a.de and b.de have the same tag >>de<<; rename one"),
    ],
)
def test_malformed_directions_are_refused(items: list[str], told: str) -> None:
    with pytest.raises(UserError, match=re.escape(told)):
        parse_directions(items)
    with pytest.raises(UserError, match=re.escape(told)):
        CorpusSpec(train_file=["table.jsonl"], directions=items)


def test_a_missing_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    file = write(tmp_path / "table.jsonl")
    with pytest.raises(
        UserError, match=r"directions \(es\): .*table.jsonl has no field 'es'; it has 'en', 'de', 'fr'"
    ):
        load(["en-de", "en-es"], train_file=[file])
    pq.write_table(pa.table({"en": ["a"], "de": [1]}), tmp_path / "numbers.parquet")
    with pytest.raises(UserError, match=r"field 'de' of .* holds int64; expected a text field"):
        load(["en-de"], train_file=[str(tmp_path / "numbers.parquet")])


@pytest.mark.parametrize(
    ("options", "name"),
    [({"dataset": "dates"}, "dates"), ({"train_file": ["a.en", "a.de"]}, "a.en")],
)
def test_a_corpus_without_columns_for_languages_is_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"needs tables with a column for each language, not {name};"):
        CorpusSpec(directions=["source-target"], **options)
