"""Pieces of a translation as they are found."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from library_translators import save_translator
from toy_translation import TRANSLATING, toy_model, toy_sources, toy_tokenizer, translator_of
from vaswani.errors import RunError, UserError
from vaswani.inference.inputs import TextLines
from vaswani.inference.translate.files import stream_lines
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.translation import Translator

SENTENCES = [*toy_sources(4, seed=-21), "日本 🙂", "one"]
BOTH = pytest.mark.parametrize("kind", TRANSLATING)
SEARCHES = pytest.mark.parametrize("search", [{"num_beams": 1}, {"temperature": 1.3, "seed": 4}], ids=str)


@BOTH
@SEARCHES
def test_streamed_pieces_join_to_the_translation(kind: str, search: dict[str, Any]) -> None:
    translator = translator_of(kind, **search)
    pieces = [[*translator.stream(sentence)] for sentence in SENTENCES]
    assert ["".join(each) for each in pieces] == [translator([sentence])[0] for sentence in SENTENCES]
    assert max(map(len, pieces)) > 2
    assert all(each for of_sentence in pieces for each in of_sentence)
    assert [*translator.stream(" ")] == []


def test_a_script_without_spaces_is_streamed_by_character() -> None:
    translator = translator_of("toy", num_beams=1)
    tokens = toy_tokenizer()("二人の男").input_ids
    assert len(tokens) > 5
    assert [*translator._pieces(iter(tokens))] == ["二", "人", "の", "男"]


@BOTH
@SEARCHES
def test_prefixes_phrases_and_lengths_are_respected(kind: str, search: dict[str, Any]) -> None:
    translator = translator_of(kind, **search, required_phrases=["4 4"], min_length=8, max_length=9)
    for sentence in SENTENCES[:4]:
        text = "".join(translator.stream(sentence, prefix="9 8", required=["7"]))
        (expected,) = translator.translate([sentence], prefixes=["9 8"], required=[["7"]])
        assert text == expected.text
        assert text.startswith("9 8")
        assert "4 4" in text
        assert "7" in text


def test_pieces_arrive_early_and_closing_the_stream_stops_the_search() -> None:
    model = toy_model()
    model.generation_config.suppress_tokens = [2]
    translator = Translator(model, toy_tokenizer(), num_beams=1, max_length=500)
    steps = []
    model.get_decoder().register_forward_pre_hook(lambda *_: steps.append(1))
    threads = threading.active_count()
    stream = translator.stream("one two three " * 160)
    next(stream)
    stream.close()
    assert threading.active_count() == threads
    assert len(steps) < 450


@pytest.mark.parametrize("kind", ["marian", "fsmt", "nllb", "bart"])
def test_models_of_the_library(kind: str, tmp_path: Path) -> None:
    languages = {"target_language": "deu_Latn"} if kind == "nllb" else {}
    folder = save_translator(kind, tmp_path / "model")
    translator = Translator.from_pretrained(folder, temperature=1.0, max_length=12, **languages)
    for sentence in ("the big cat", "two dogs"):
        assert "".join(translator.stream(sentence)) == translator([sentence])[0]


def test_a_search_failure_is_raised_when_iterating_over_the_pieces() -> None:
    model = toy_model()
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight[3] = float("nan")
    with pytest.raises(RunError, match="the model's scores are not finite numbers"):
        list(Translator(model, toy_tokenizer(), num_beams=1).stream("one"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "stream follows one hypothesis, and num_beams=4; give num_beams=1, or a temperature"),
        ({"num_beams": 1, "banned_phrases": ["8"]}, "banned_phrases needs the whole translation"),
        (
            {"num_beams": 1, "max_source_length": 2, "too_long": "skip"},
            "it has 3 tokens, more than max_source",
        ),
    ],
    ids=str,
)
def test_unsupported_streaming_options_raise_an_error_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        translator_of("toy", **options).stream("one two")

    class Lacking(TorchEngine):
        name = "lacking"
        streams = False

    translator = Translator(Lacking(toy_model()), toy_tokenizer(), num_beams=1)
    for sentence in ("one", ""):
        with pytest.raises(UserError, match="stream is not supported by engine=lacking"):
            translator.stream(sentence)
    with pytest.raises(UserError, match="stream is not supported by engine=lacking"):
        stream_lines(translator, TextLines(io.BytesIO(b"one")), lambda text: None, warn=lambda text: None)
