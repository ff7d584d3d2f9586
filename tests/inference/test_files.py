"""Each input line gives one output line, whatever it contains."""

import io
import json
from typing import Any

import pytest

from toy_translation import toy_model, toy_tokenizer
from vaswani.inference.inputs import LineReport, TextLines
from vaswani.inference.translate.files import translate_lines
from vaswani.inference.translate.results import Hypothesis, Translation
from vaswani.inference.translate.translation import Translator


@pytest.fixture
def translator() -> Translator:
    return Translator(toy_model(), toy_tokenizer())


def translate_bytes(
    translator: Translator, text: bytes, **options: Any
) -> tuple[list[str], LineReport, list[str]]:
    written: list[str] = []
    warnings: list[str] = []
    lines = TextLines(io.BytesIO(text))
    report = translate_lines(translator, lines, written.append, warn=warnings.append, **options)
    return written, report, warnings


# Reading.


def test_each_line_becomes_one_line(translator: Translator) -> None:
    one, two = translator(["one", "two three"])
    written, report, warnings = translate_bytes(translator, b"one\n\n  \ntwo three\n")
    assert written == [one, "", "", two]
    assert report == LineReport(lines=4, empty=2)
    assert str(report) == "4 lines; 2 empty"
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n", ["one", "\ufefftwo"]),
        ("one\u2028two\x0bthree\rfour\x85five\n".encode(), ["one\u2028two\x0bthree\rfour\x85five"]),
        ("日本 🙂\n".encode(), ["日本 🙂"]),
    ],
)
def test_only_a_line_feed_ends_a_line(translator: Translator, text: bytes, lines: list[str]) -> None:
    written, report, _ = translate_bytes(translator, text, n_best=1)
    assert [json.loads(line)["source"] for line in written] == lines
    assert report.lines == len(lines)


def test_bytes_that_are_not_utf8_are_replaced_and_counted(translator: Translator) -> None:
    written, report, _ = translate_bytes(translator, b"one\nt\xffwo\n\xe6\x97\none\n", n_best=1)
    assert [json.loads(line)["source"] for line in written] == ["one", "t\ufffdwo", "\ufffd", "one"]
    assert report.not_utf8 == 2
    assert "2 not UTF-8" in str(report)


@pytest.mark.slow
def test_a_line_too_long_for_the_model_is_named_and_left_empty() -> None:
    model = toy_model(position_embedding="learned", max_position_embeddings=40)
    translator = Translator(model, toy_tokenizer())
    text = b"one\n" + b"one " * 60 + b"\ntwo\n"
    written, report, warnings = translate_bytes(translator, text, buffer_size=1)
    assert [bool(line) for line in written] == [True, False, True]
    assert len(warnings) == 1
    assert warnings[0].startswith("line 2 is left empty: it has ")
    assert report == LineReport(lines=3, left_empty=1)
    cut = Translator(model, toy_tokenizer(), max_source_length=40)
    written, report, warnings = translate_bytes(cut, text)
    assert (all(written), warnings, report.source_cut_off, report.left_empty) == (True, [], 1, 0)
    assert "1 of which only the beginning was read" in str(report)
    records = [json.loads(line) for line in translate_bytes(cut, text, n_best=1)[0]]
    assert [record.get("source_cut_off") for record in records] == [None, True, None]
    records = [json.loads(line) for line in translate_bytes(translator, text, n_best=1)[0]]
    assert [("problem" in record, len(record["hypotheses"])) for record in records] == [
        (False, 1),
        (True, 0),
        (False, 1),
    ]


def test_translations_that_were_cut_off_are_counted(translator: Translator) -> None:
    cut = Translator(translator.model, translator.source_tokenizer, max_length=1)
    assert translate_bytes(cut, b"one\n\ntwo\n")[1] == LineReport(lines=3, empty=1, cut_off=2)
    assert translate_bytes(translator, b"one\n")[1].cut_off == 0


# Writing.


def test_n_best_lists_are_json_lines(translator: Translator) -> None:
    written, _, _ = translate_bytes(translator, "one zwölf\n\n".encode(), n_best=3)
    expected = next(translator.translate(["one zwölf"], n_best=3))
    record, empty = map(json.loads, written)
    assert record["source"] == "one zwölf"
    assert [h["text"] for h in record["hypotheses"]] == [h.text for h in expected.hypotheses]
    assert [h["score"] for h in record["hypotheses"]] == pytest.approx([h.score for h in expected.hypotheses])
    assert record["hypotheses"][0].keys() == {"text", "complete", "score", "log_prob"}
    assert empty == {"source": "", "hypotheses": []}
    assert "zwölf" in written[0]


def test_a_line_feed_in_a_translation_does_not_shift_the_lines_after_it() -> None:
    class Shouting(Translator):
        def translate(self, sentences, **options):
            return (Translation(s, (Hypothesis("1\r\n2\n3", True, -1.0, -1.0),)) for s in sentences)

    translator = Shouting(toy_model(), toy_tokenizer())
    assert translate_bytes(translator, b"one\ntwo\n")[0] == ["1 2 3", "1 2 3"]
    record = translate_bytes(translator, b"one\n", n_best=1)[0][0]
    assert "\n" not in record
    assert json.loads(record)["hypotheses"][0]["text"] == "1\r\n2\n3"
