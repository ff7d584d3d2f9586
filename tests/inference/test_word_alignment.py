"""Translations with word alignments to their sources."""

import json
from pathlib import Path
from typing import Any

import pytest

from library_translators import OF_ANY_TOKENIZER, save_translator
from toy_alignment import reversed_rows, reversing_model, save_reversing_checkpoint
from toy_translation import toy_model, toy_tokenizer
from vaswani import Aligner, Translator
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.inference.translate.torch_engine import TorchEngine

SENTENCES = [source for source, _ in reversed_rows(40, seed=-3)]


def translator(**options: Any) -> Translator:
    return Translator(reversing_model(), toy_tokenizer(), **options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"temperature": 0.5}])
def test_alignments_equal_those_of_the_aligner(options: dict[str, Any]) -> None:
    translations = list(translator(alignments=True, **options).translate(SENTENCES, n_best=1))
    pairs = [(translation.source, translation.text) for translation in translations]
    expected = Aligner(reversing_model(), toy_tokenizer(), layer=-1)(pairs)
    found = [translation.hypotheses[0].alignment for translation in translations]
    assert found == [tuple(sorted(alignment.links)) for alignment in expected]
    right = [
        links == tuple(sorted((len(source.split()) - 1 - target, target) for _, target in links or ()))
        for (source, _), links in zip(pairs, found, strict=True)
    ]
    assert sum(right) >= 0.9 * len(right)


@pytest.mark.slow
def test_each_hypothesis_has_its_alignment_and_the_same_text() -> None:
    plain = list(translator().translate(SENTENCES, n_best=3))
    found = list(translator(alignments=True, max_tokens_per_batch=60).translate(SENTENCES, n_best=3))
    assert [[each.text for each in one.hypotheses] for one in found] == [
        [each.text for each in one.hypotheses] for one in plain
    ]
    assert all(each.alignment is None for one in plain for each in one.hypotheses)
    assert any(len({each.alignment for each in one.hypotheses}) > 1 for one in found)
    for one in found:
        for each in one.hypotheses:
            assert {target for _, target in each.alignment or ()} == set(range(len(each.text.split())))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_source_that_is_cut_off_is_aligned_to_the_words_that_are_left(side: str) -> None:
    tokenizer = toy_tokenizer()
    tokenizer.truncation_side = side
    short = Translator(toy_model(), tokenizer, alignments=True, max_source_length=4)
    cut, whole = short.translate(["one two three four five six", "one"])
    assert cut.source_cut_off
    (ids,) = tokenizer(["one two three four five six"], truncation=True, max_length=4)["input_ids"]
    left = tokenizer.decode(ids, skip_special_tokens=True).split()
    words = range(6 - len(left), 6) if side == "left" else range(len(left))
    assert cut.hypotheses[0].alignment
    assert {source for source, _ in cut.hypotheses[0].alignment} <= set(words)
    assert whole.hypotheses[0].alignment


@pytest.mark.parametrize("name", OF_ANY_TOKENIZER[:2])
def test_models_of_the_library(name: str, tmp_path: Path) -> None:
    save_translator(name, tmp_path)
    loaded = Translator.from_pretrained(tmp_path, alignments=True, max_length=8)
    implementation = loaded.model.config._attn_implementation
    for translation in loaded.translate(["one two three", "four"]):
        for links in (hypothesis.alignment for hypothesis in translation.hypotheses):
            assert links is None or all(source < 3 for source, _ in links)
    assert loaded.model.config._attn_implementation == implementation


def test_contradictory_options_raise_an_error() -> None:
    class Lacking(TorchEngine):
        name = "lacking"
        supports = TorchEngine.supports - {"attention_of"}

    with pytest.raises(UserError, match="alignments is not supported by engine=lacking; leave it out"):
        Translator(Lacking(toy_model()), toy_tokenizer(), alignments=True)
    with pytest.raises(UserError, match="alignments and replace_unknown exclude each other, because a word"):
        Translator(toy_model(), toy_tokenizer(), alignments=True, replace_unknown=True)
    with pytest.raises(UserError, match="alignments needs the whole translation, which stream does not have"):
        next(Translator(toy_model(), toy_tokenizer(), num_beams=1, alignments=True).stream("one"))


def test_the_command_writes_alignments(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_reversing_checkpoint(tmp_path / "model")
    (tmp_path / "in.txt").write_text("one two three\n\n")
    command = ["translate", "--model", str(tmp_path / "model"), "--input", str(tmp_path / "in.txt")]
    assert run([*command, "--scores"]) == 0
    assert "alignment" not in capfd.readouterr().out
    assert run([*command, "--alignments"]) == 0
    line, empty = map(json.loads, capfd.readouterr().out.splitlines())
    (best,) = line["hypotheses"]
    assert len(best["alignment"]) == len(best["text"].split())
    assert empty["hypotheses"] == []
