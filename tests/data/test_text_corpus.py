"""Corpora of plain texts: every format, every way to separate documents, row counts and errors."""

import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec, TextCorpusSpec
from vaswani.data.sources.row_report import RowReport
from vaswani.errors import UserError

TEXTS = ["Two men.", 'He said "no"', "007", "NA"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path: Path, texts: list[str] = TEXTS) -> Path:
    """Write texts in the format of the name."""
    if path.name.endswith(".parquet"):
        pq.write_table(pa.table({"text": texts, "label": [1] * len(texts)}), path)
        return path
    if path.name.endswith(".csv"):
        content = "label,text\n" + "".join('1,"' + text.replace('"', '""') + '"\n' for text in texts)
    elif path.name.endswith(".tsv"):
        content = "label\ttext\n" + "".join(f"1\t{text}\n" for text in texts)
    elif ".json" in path.name:
        content = "".join(json.dumps({"text": text, "label": 1}) + "\n" for text in texts)
    else:
        content = "".join(f"{text}\n" for text in texts)
    path.write_bytes(gzip.compress(content.encode()) if path.name.endswith(".gz") else content.encode())
    return path


def texts_of(**options) -> list[str]:
    split = load_corpus(TextCorpusSpec(**options)).split("train")
    assert split.column_names == ["text"]
    return [row["text"] for row in split]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.tsv", "a.parquet", "a.txt", "a.txt.gz", "a"]
)
def test_every_format_gives_the_same_texts(tmp_path, name, streaming):
    assert texts_of(train_file=str(write(tmp_path / name)), streaming=streaming) == TEXTS


@pytest.mark.parametrize("name", ["train.jsonl.gz", "train.txt", "train.txt.gz"])
def test_a_folder_of_texts(tmp_path, name):
    write(tmp_path / name)
    assert texts_of(dataset=str(tmp_path)) == TEXTS


@pytest.mark.slow
def test_a_saved_data_set_and_the_dates(tmp_path):
    Dataset.from_dict({"body": TEXTS, "label": [1] * 4}).save_to_disk(str(tmp_path / "saved"))
    assert texts_of(dataset=str(tmp_path / "saved"), text_field="body") == TEXTS
    dates = texts_of(dataset="dates", dataset_config="en", text_field="target")
    assert all(len(text) == len("2001-02-03") for text in dates)


def test_blank_lines_can_separate_documents(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\none\ntwo \n\n \nthree\n\n")
    assert texts_of(train_file=str(path), documents="blank_line") == ["one\ntwo ", "three"]
    assert texts_of(train_file=str(path)) == ["one", "two ", "three"]  # and both are kept in the cache


@pytest.mark.parametrize("streaming", [False, True])
def test_unusable_rows_are_counted_by_reason(tmp_path, streaming):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n{"text": " "}\n{"text": 5}\n'
                     b'{"text": "\xff"}\n{"te\n{"other": "d"}\n')  # fmt: skip
    corpus = load_corpus(TextCorpusSpec(train_file=str(path), streaming=streaming))
    assert len(list(corpus.splits["train"])) == 3
    report = corpus.reports["train"]
    assert report == RowReport(kept=3, empty=1, not_utf8=1, malformed=1, missing_text=2)
    assert str(report).endswith("left out: 1 empty, 1 not UTF-8, 1 malformed, 2 without text")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_an_unknown_field_raises_an_error_with_the_existing_fields(tmp_path, name):
    path = write(tmp_path / name)
    with pytest.raises(UserError, match=rf"^text_field: .*{name} has no field 'body'; it has .*'text'"):
        texts_of(train_file=str(path), text_field="body")


def test_a_corpus_without_rows_or_with_two_train_files_raises_an_error(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(UserError, match=r"no row of .*empty\.txt can be used: kept 0 of 2 rows"):
        texts_of(train_file=str(tmp_path / "empty.txt"))
    write(tmp_path / "train.txt")
    write(tmp_path / "train.jsonl")
    with pytest.raises(UserError, match=r"holds the split train more than once: .*train\.txt"):
        texts_of(dataset=str(tmp_path))


def test_pairs_and_texts_of_one_file_are_cached_separately(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n')
    assert texts_of(train_file=str(path), text_field="target") == ["b"]
    pairs = load_corpus(CorpusSpec(train_file=str(path))).split("train")
    assert pairs[0] == {"source": "a", "target": "b"}
