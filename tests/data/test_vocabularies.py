"""A vocabulary is trained once for a corpus and its options; after that it comes from the cache."""

from pathlib import Path
from typing import Any

import pytest

from jsonl import write_jsonl
from vaswani.data import vocabularies
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.tokenization import save_tokenizers, train_tokenizer
from vaswani.data.vocabularies import trained_tokenizer

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ROWS = [{"source": f"{one} {two}", "target": f"{two}ty {one}ty"} for one in WORDS for two in WORDS]
OPTIONS: dict[str, Any] = {"kind": "bpe", "vocab_size": 300}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each vocabulary that is trained and not read from the cache."""
    seen: list[dict[str, Any]] = []

    def counted(texts: Any, **options: Any) -> Any:
        seen.append(options)
        return train_tokenizer(texts, **options)

    monkeypatch.setattr(vocabularies, "train_tokenizer", counted)
    return seen


def rows_in(path: Path, rows: list[dict[str, str]] = ROWS, streaming: bool = False) -> Any:
    write_jsonl(path, rows)
    return load_corpus(CorpusSpec(train_file=[str(path)], streaming=streaming)).split("train")


def files_of(tokenizer: Any, folder: Path) -> dict[str, str]:
    save_tokenizers(tokenizer, tokenizer, folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte"])
def test_a_tokenizer_is_trained_once_and_then_cached(
    tmp_path: Path, trainings: list[dict[str, Any]], kind: str
) -> None:
    options = {**OPTIONS, "kind": kind, "tags": [">>de<<"], "model_max_length": 40}
    rows = rows_in(tmp_path / "a.jsonl")
    first = trained_tokenizer(rows, ["source", "target"], **options)
    again = trained_tokenizer(rows_in(tmp_path / "a.jsonl"), ["source", "target"], **options)
    assert len(trainings) == 1
    direct = train_tokenizer([[row[side] for row in ROWS] for side in ("source", "target")], **options)
    expected = files_of(direct, tmp_path / "direct")
    for number, tokenizer in enumerate((first, again)):
        assert files_of(tokenizer, tmp_path / str(number)) == expected


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": 290}, {"kind": "unigram"}, {"tags": [">>de<<"]}, {"markers": ["<gap>"]},
     {"purpose": "causal"}, {"token_types": True}, {"model_max_length": 9}, {"columns": ("source",)},
     {"rows": ROWS[:50]}],
)  # fmt: skip
def test_the_cache_key_covers_every_setting(
    tmp_path: Path, trainings: list[dict[str, Any]], change: dict[str, Any]
) -> None:
    def trained(columns: tuple[str, ...] = ("source", "target"), rows: Any = ROWS, **options: Any) -> str:
        tokenizer = trained_tokenizer(rows_in(tmp_path / "a.jsonl", rows), columns, **{**OPTIONS, **options})
        return tokenizer.backend_tokenizer.to_str() + repr(tokenizer)

    plain = trained()
    assert trained() == plain
    assert len(trainings) == 1
    assert trained(**change) != plain
    assert len(trainings) == 2


def test_a_tokenizer_of_a_stream_is_trained_each_time(
    tmp_path: Path, trainings: list[dict[str, Any]]
) -> None:
    whole = trained_tokenizer(rows_in(tmp_path / "a.jsonl"), ["source", "target"], **OPTIONS)
    for _ in range(2):
        streamed = trained_tokenizer(
            rows_in(tmp_path / "a.jsonl", streaming=True), ["source", "target"], **OPTIONS
        )
        assert streamed.get_vocab() == whole.get_vocab()
    assert len(trainings) == 3
