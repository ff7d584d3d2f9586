"""Where the texts to try come from: the card, the built-in dates, the file of the test split."""

import json
from pathlib import Path
from typing import Any

import pytest

from vaswani.demo.examples import MAX_CHARACTERS, MAX_EXAMPLES, find_examples, find_pairs


def write_corpus(folder: Path, **corpus: Any) -> None:
    (folder / "corpus.json").write_text(json.dumps(corpus))


def test_examples_of_the_card_come_first(tmp_path: Path) -> None:
    write_corpus(tmp_path, dataset="dates", locales=["en"])
    widget = "widget:\n- text: one two\n- text: three\n  example_title: A number\n- src: a.png\n"
    (tmp_path / "README.md").write_text(f"---\n{widget}---\n# A model\n")
    assert find_examples(tmp_path) == ["one two", "three"]


def test_dates_are_of_the_locales_of_the_training(tmp_path: Path) -> None:
    write_corpus(tmp_path, dataset="dates", locales=["de", "en", "ja"])
    found = find_examples(tmp_path)
    assert len(found) == MAX_EXAMPLES
    assert any("年" in text for text in found)
    assert not any("г." in text for text in found)
    write_corpus(tmp_path, dataset="dates", locales=["de"])
    assert find_examples(tmp_path) != found


@pytest.mark.parametrize("split", ["test", "validation"])
def test_examples_are_rows_of_the_test_file_if_it_exists(tmp_path: Path, split: str) -> None:
    file = tmp_path / "rows.jsonl"
    texts = ["a" * (MAX_CHARACTERS + 1), *(f"text {number}" for number in range(9))]
    file.write_text("".join(json.dumps({"en": text, "de": "x"}) + "\n" for text in texts))
    write_corpus(tmp_path, **{split: {"name": str(file), "source_field": "en"}})
    assert find_examples(tmp_path) == texts[1 : MAX_EXAMPLES + 1]
    file.write_text("{}\n")  # another file meanwhile
    assert find_examples(tmp_path) == []
    file.unlink()
    assert find_examples(tmp_path) == []


def test_example_questions_come_from_the_evaluation(tmp_path: Path) -> None:
    rows = [{"question": f"who {number}?", "context": "ann saw", "prediction": "ann"} for number in range(9)]
    (tmp_path / "evaluation.json").write_text(json.dumps({"examples": [{"text": "a"}, 3, *rows]}))
    assert find_pairs(tmp_path, "question", "context") == [
        (f"who {number}?", "ann saw") for number in range(MAX_EXAMPLES)
    ]


def test_missing_or_malformed_files_give_no_examples(tmp_path: Path) -> None:
    assert find_examples(tmp_path) == find_pairs(tmp_path, "text", "text_pair") == []
    (tmp_path / "evaluation.json").write_text('{"examples": 3}')
    assert find_pairs(tmp_path, "text", "text_pair") == []
    for corpus, widget in (("{", "["), ("[1]", "7"), ('{"test": "a"}', "[a, 3]")):
        (tmp_path / "corpus.json").write_text(corpus)
        (tmp_path / "README.md").write_text(f"---\nwidget: {widget}\n---\n")
        assert find_examples(tmp_path) == []
