"""Unknown tokens are replaced by the words of the source that they attend to."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from library_translators import save_translator
from toy_translation import SHAPE, WORDS, save_toy_checkpoint, toy_model, toy_tokenizer
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.cli import run
from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError
from vaswani.inference.align.words import words_of_texts
from vaswani.inference.cross_attention import cross_attention
from vaswani.inference.translate.engine import Output
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.translation import Translator
from vaswani.inference.translate.unknown_words import UnknownWords

KNOWN, DIGITS = WORDS[:6], [str(digit) for digit in range(6)]
UNKNOWN = 3


@cache
def word_tokenizer() -> PreTrainedTokenizerBase:
    """Whole words; others are unknown."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *KNOWN, *DIGITS]
    words = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token="<unk>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def word_model(kind: str) -> Any:
    """A model that translates known words, and unknown ones as unknown."""
    return _models()[kind]


@cache
def _models() -> dict[str, Any]:
    torch.manual_seed(0)
    size = len(word_tokenizer())
    shape = {**SHAPE, "dropout": 0.0}
    tokens = {"pad_token_id": 0, "eos_token_id": 2}
    marian = MarianConfig(
        **shape,
        **tokens,
        vocab_size=size,
        init_std=0.1,
        max_position_embeddings=64,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
    )
    made: dict[str, Any] = {
        "vaswani": VaswaniForConditionalGeneration(VaswaniConfig(**shape, vocab_size=size)),
        "marian": MarianMTModel(marian),
    }
    return {kind: _trained(model) for kind, model in made.items()}


def _trained(model: Any) -> Any:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    generator = random.Random(0)
    for _ in range(250):
        rows = [generator.choices(range(8), k=generator.randint(1, 5)) for _ in range(32)]
        sources = [" ".join([*KNOWN, "x", "y"][place] for place in row) for row in rows]
        targets = [" ".join([*DIGITS, "x", "y"][place] for place in row) for row in rows]
        batch, labels = (
            word_tokenizer()(texts, padding=True, return_tensors="pt") for texts in (sources, targets)
        )
        wanted = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        model(**given, labels=wanted).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


BOTH = pytest.mark.parametrize("kind", ["vaswani", "marian"])
SENTENCES = ["one Ada two", "Bob", "zero one", "three  four\tGrace", "Eve two Alan"]


@BOTH
@pytest.mark.parametrize("search", [{"num_beams": 1}, {"num_beams": 3}, {"temperature": 0.1}], ids=str)
def test_unknown_words_are_replaced_by_the_attended_source_words(kind: str, search: dict[str, Any]) -> None:
    plain = Translator(word_model(kind), word_tokenizer(), **search)
    copying = Translator(word_model(kind), word_tokenizer(), replace_unknown=True, **search)
    assert plain(["zero one"]) == copying(["zero one"])
    texts = copying(SENTENCES)
    assert texts != plain(SENTENCES)
    for sentence, text, without in zip(SENTENCES, texts, plain(SENTENCES), strict=True):
        copied = [word for word in text.split() if word not in DIGITS]
        assert set(copied) <= set(sentence.split())
        assert [word for word in text.split() if word in DIGITS] == without.split()
    assert texts[1].split()[0] == "Bob"
    alone = [copying.translate([sentence], n_best=1) for sentence in SENTENCES]
    if "num_beams" in search:
        assert [next(each).text for each in alone] == texts


@BOTH
def test_banned_words_are_not_copied(kind: str) -> None:
    options = {"num_beams": 3, "replace_unknown": True}
    texts = Translator(word_model(kind), word_tokenizer(), **options)(SENTENCES)
    banned = next(word for word in texts[1].split() if word not in DIGITS)
    translator = Translator(word_model(kind), word_tokenizer(), **options, banned_phrases=[banned])
    for translation in translator.translate(SENTENCES):
        assert banned not in translation.text
        assert translation.text or "no banned phrase" in str(translation.problem)


@BOTH
def test_the_source_word_with_the_most_attention_is_copied(kind: str) -> None:
    translator = Translator(word_model(kind), word_tokenizer(), num_beams=1, replace_unknown=True)
    right = 0
    for sentence in ("one Ada two", "Bob zero five", "three four Grace", "zero Eve"):
        ids = TextCodec(word_tokenizer()).token_ids([sentence])[0]
        ((best,),) = translator.engine.search([ids], [12], translator.options, start_options={})
        assert best.token_ids.count(UNKNOWN) == len(best.attention)
        start = translator.model.generation_config.decoder_start_token_id
        given = torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long)
        weights = cross_attention(translator.model, *given, torch.tensor([[start, *best.token_ids]]))[0]
        place = best.token_ids.index(UNKNOWN)
        assert best.attention[0] == pytest.approx(weights[place].tolist(), abs=1e-5)
        word = sentence.split()[int(weights[place, :-1].argmax())]  # without the end token
        (text,) = translator([sentence])
        assert word in text.split()
        right += word[0].isupper()
    assert right >= 3


def test_a_word_of_several_tokens_and_a_source_that_is_cut_off() -> None:
    sources, unknown = TextCodec(toy_tokenizer()), UnknownWords(TextCodec(word_tokenizer(), "target"))
    sentence = " one  Lovelace two"
    words = sentence.split()
    ids = sources.token_ids([sentence])[0]
    (of_tokens,) = words_of_texts(sources, [sentence], [ids])
    assert of_tokens is not None
    places = {
        word: [at for at, each in enumerate(of_tokens) if each == number] for number, word in enumerate(words)
    }
    assert len(places["Lovelace"]) > 3
    assert of_tokens[-1] is None  # the end token
    in_order = [*places["one"], *places["Lovelace"], *places["two"]]
    assert in_order == sorted(in_order)
    assert all(sources.decode([[ids[at] for at in places[word]]])[0].strip() == word for word in words)
    weights = tuple(1.0 if at in places["Lovelace"] else 0.9 for at in range(len(ids)))
    output = Output([5 + len(KNOWN), UNKNOWN, UNKNOWN, 2], True, attention=(weights, weights))
    assert unknown.text(output, words, of_tokens) == "1 Lovelace"
    cut = sources.frame().cut(ids, places["Lovelace"][0] + 2)
    (left,) = words_of_texts(sources, [sentence], [cut])
    assert left == [*of_tokens[: len(cut) - 1], None]
    of_cut = Output([UNKNOWN, 2], True, attention=((1.0,) * len(cut),))
    assert unknown.text(of_cut, words, left) in ("one", "Lovelace")


def test_unknown_words_are_replaced_for_a_library_model(tmp_path: Path) -> None:
    folder = save_translator("marian", tmp_path / "marian")
    plain = Translator.from_pretrained(folder, num_beams=2, max_length=3)
    unknown = plain.target_tokenizer.unk_token_id
    translator = Translator(
        plain.model,
        plain.source_tokenizer,
        plain.target_tokenizer,
        num_beams=2,
        max_length=3,
        replace_unknown=True,
    )
    with torch.no_grad():
        plain.model.final_logits_bias[0, unknown] = 50.0
    sentences = ["the big cat", "the small hen sees nine dogs"]
    assert plain(sentences) == ["", ""]
    for sentence, text in zip(sentences, translator(sentences), strict=True):
        assert text
        assert set(text.split()) <= set(sentence.split())


def test_a_missing_unknown_token_or_attention_raises_an_error() -> None:
    with pytest.raises(
        UserError, match="replace_unknown: the target tokenizer has no unknown token; leave it"
    ):
        Translator(toy_model(), toy_tokenizer(), replace_unknown=True)

    class Lacking(TorchEngine):
        name = "lacking"
        supports = TorchEngine.supports - {"attention_of"}

    with pytest.raises(UserError, match="replace_unknown is not supported by engine=lacking; leave it out"):
        Translator(Lacking(toy_model()), word_tokenizer(), replace_unknown=True)


def test_the_command_replaces_unknown_words(tmp_path: Path, capfd) -> None:
    word_model("vaswani").save_pretrained(tmp_path / "model")
    word_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text("one Ada two\n")
    command = ["translate", "--model", str(tmp_path / "model"), "--input", str(tmp_path / "in.txt")]
    lines = []
    for flags in ([], ["--replace_unknown"]):
        assert run([*command, *flags]) == 0
        lines.append(capfd.readouterr().out)
    assert lines[0] != lines[1]
    assert set(lines[1].split()) - set(DIGITS) <= {"one", "Ada", "two"}
    save_toy_checkpoint(tmp_path / "toy")
    assert run(["translate", "--model", str(tmp_path / "toy"), "--replace_unknown"]) == 2
    assert "the target tokenizer has no unknown token" in capfd.readouterr().err


def test_text_between_two_copies_of_a_word_is_kept() -> None:
    codec = TextCodec(word_tokenizer(), "target")
    known = word_tokenizer().convert_tokens_to_ids(KNOWN[0])
    weights = ((1.0, 0.0), (1.0, 0.0))
    apart = Output([UNKNOWN, known, UNKNOWN, 2], True, attention=weights)
    beside = Output([UNKNOWN, UNKNOWN, 2], True, attention=weights)
    texts = [UnknownWords(codec).text(each, ["Ada", "one"], [0, 1]) for each in (apart, beside)]
    assert texts == [f"Ada {KNOWN[0]} Ada", "Ada"]
