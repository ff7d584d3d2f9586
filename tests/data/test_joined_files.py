"""Several files of one split: their rows follow each other, in every kind of corpus and format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vaswani.data.labels.labelled import LabelledSpec, load_labelled
from vaswani.data.questions.question_rows import QuestionSpec, load_questions
from vaswani.data.sources.corpus import Corpus, load_corpus
from vaswani.data.sources.corpus_spec import BaseCorpusSpec, CorpusSpec, TextCorpusSpec
from vaswani.data.text.completions import ChatSpec, CompletionSpec, load_chats
from vaswani.errors import UserError

ANSWERS = {"text": ["Ann"], "answer_start": [0]}
CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "{}"}]


def jsonl(**row: Any) -> Callable[[str], str]:
    """Return a function that writes two rows; {} in a text becomes the name of the file."""
    return lambda name: 2 * (json.dumps(row).replace("{}", name) + "\n")


Kind = tuple[type[BaseCorpusSpec], Callable[..., Corpus], dict[str, Any], str, Callable[[str], str]]
KINDS: dict[str, Kind] = {
    "pairs": (CorpusSpec, load_corpus, {}, "jsonl", jsonl(source="{}", target="a")),
    "texts": (TextCorpusSpec, load_corpus, {}, "jsonl", jsonl(text="{}")),
    "lines": (TextCorpusSpec, load_corpus, {}, "txt", "{0} one\n{0} two\n".format),
    "paragraphs": (
        TextCorpusSpec,
        load_corpus,
        {"documents": "blank_line"},
        "txt",
        "{0} one\nand more\n\n{0} two\n".format,
    ),
    "classes": (LabelledSpec, load_labelled, {}, "jsonl", jsonl(text="{}", label="good")),
    "words": (LabelledSpec, load_labelled, {"task": "tagging"}, "conll", "{0} B-A\n\n{0} O\n".format),
    "completions": (CompletionSpec, load_corpus, {}, "jsonl", jsonl(prompt="{}", completion="a")),
    "chats": (ChatSpec, load_chats, {}, "jsonl", jsonl(messages=CHAT)),
    "questions": (
        QuestionSpec,
        load_questions,
        {},
        "jsonl",
        jsonl(context="Ann saw {}.", question="Who?", answers=ANSWERS),
    ),
}
STREAMED = [(kind, streaming) for kind, (_, load, *_) in KINDS.items() for streaming in (False, True)
            if not streaming or load is load_corpus]  # fmt: skip


@pytest.mark.parametrize(("kind", "streaming"), STREAMED)
def test_rows_follow_each_other(tmp_path: Path, kind: str, streaming: bool) -> None:
    spec_of, load, options, ending, content = KINDS[kind]
    options = {**options, "streaming": streaming}
    first, second = (str(tmp_path / f"{name}.{ending}") for name in ("rome", "paris"))
    for path in (first, second):
        Path(path).write_text(content(Path(path).stem))

    def loaded(*files: str) -> tuple[list[dict[str, Any]], Corpus]:
        corpus = load(spec_of(train_file=list(files), **options))
        return list(corpus.split("train")), corpus

    (one, _), (two, _) = loaded(first), loaded(second)
    rows, corpus = loaded(first, second, first)
    expected = [*one, *two, *one]
    if kind == "questions":  # rows without ids are numbered through all files
        expected = [{**row, "id": str(number)} for number, row in enumerate(expected)]
    assert rows == expected
    assert one != two
    assert corpus.reports["train"].kept == 6
    files = corpus.fingerprint["train"]["files"]
    assert [file["path"] for file in files] == [first, second, first]
    assert corpus.identity() != loaded(second, first, first)[1].identity()


@pytest.mark.parametrize("kind", ["pairs", "classes", "completions"])
def test_pairs_of_text_files_are_not_joined(tmp_path: Path, kind: str) -> None:
    spec_of, load, *_ = KINDS[kind]
    paths = [str(tmp_path / name) for name in ("a.txt", "b.txt", "c.txt", "d.txt")]
    for path in paths:
        Path(path).write_text(f"{path} one\n{path} two\n")
    corpus = load(spec_of(train_file=paths[:2]))
    assert corpus.reports["train"].kept == 2
    with pytest.raises(UserError, match="train_file takes tables, or two of plain text; got 4 files"):
        spec_of(train_file=paths)


def test_many_files_are_named_by_their_number(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.txt" for number in range(4)]
    for path in files:
        path.write_text("\n")
    with pytest.raises(
        UserError, match=r"no row of \S*0\.txt and 3 more files can be used: kept 0 of 4 rows"
    ):
        load_corpus(TextCorpusSpec(train_file=list(map(str, files))))


def test_each_file_must_have_the_fields(tmp_path: Path) -> None:
    """Every table is checked before any is read."""
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "b.jsonl").write_text('{"body": "b"}\n')
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    with pytest.raises(UserError, match=r"text_field: .*b\.jsonl has no field 'text'; it has 'body'"):
        load_corpus(TextCorpusSpec(train_file=files))
