"""Phrases that translations must not or must contain, and texts that they begin with, checked on the text.

The models are two half-trained toys, one of the library, and untrained ones with the library's tokenizers.
"""

import itertools
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from library_tokenizers import TARGETS
from library_translators import save_translator
from tiny import tiny_model
from toy_translation import (
    TRANSLATING,
    save_toy_checkpoint,
    toy_model,
    toy_sources,
    toy_tokenizer,
    translator_of,
)
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError
from vaswani.inference.decoding import LengthLimits
from vaswani.inference.forced_prefixes import ForcedPrefixes
from vaswani.inference.required_phrases import Phrase, RequiredPhrases, missing_phrases
from vaswani.inference.translate.engine import Demands
from vaswani.inference.translate.phrases import Line, banned_spellings, find_spelling, required_phrase
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.translation import Translator

SENTENCES = ["one two three", "four", *toy_sources(6, seed=-12)]
SEARCHES = pytest.mark.parametrize(
    "search", [{"num_beams": 1}, {"num_beams": 4}, {"temperature": 1.2, "seed": 3}], ids=str
)
BOTH = pytest.mark.parametrize("kind", TRANSLATING)


def all_texts(translator: Translator, sentences: list[str] = SENTENCES, **options: Any) -> list[list[str]]:
    """The texts of the n-best lists, which also begin with the plain translation."""
    n_best = 1 if translator.options.num_beams == 1 and translator.options.sampling is None else 4
    found = list(translator.translate(sentences, n_best=n_best, **options))
    assert [translation.problem for translation in found] == [None] * len(sentences)
    texts = [[hypothesis.text for hypothesis in translation.hypotheses] for translation in found]
    if translator.options.sampling is None:
        plain = translator.translate(sentences, with_scores=False, **options)
        assert [translation.text for translation in plain] == [each[0] for each in texts]
        assert all(len(set(each)) == len(each) for each in texts)
    return texts


# Banned phrases.


@BOTH
@SEARCHES
@pytest.mark.parametrize("words", [1, 2, 3])
def test_a_banned_phrase_occurs_in_no_text(kind: str, search: dict[str, Any], words: int) -> None:
    plain = all_texts(translator_of(kind, **search))
    long = [text.split() for text in itertools.chain(*plain) if len(text.split()) >= words]
    banned = [" ".join(text[:words]) for text in long[:3]]
    assert banned
    texts = all_texts(translator_of(kind, **search, banned_phrases=banned))
    assert not any(phrase in text for text in itertools.chain(*texts) for phrase in banned)


@BOTH
@pytest.mark.parametrize("num_beams", [1, 4])
def test_banning_an_unused_phrase_changes_no_text(kind: str, num_beams: int) -> None:
    plain = translator_of(kind, num_beams=num_beams)(SENTENCES)
    banned = translator_of(kind, num_beams=num_beams, banned_phrases=["qq"])
    assert banned(SENTENCES) == plain


def test_a_spelling_that_no_tokenizer_would_choose_is_found_and_banned() -> None:
    """A model that writes a phrase with other tokens than the tokenizer."""
    translator = translator_of("toy", num_beams=1, banned_phrases=["1 2"])
    codec = TextCodec(toy_tokenizer(), "target")
    vocabulary = codec.vocabulary()
    spelling = [vocabulary["Ġ1"], vocabulary["Ġ"], vocabulary["2"]]
    assert codec.decode([spelling])[0].strip() == "1 2"
    assert find_spelling(codec, [vocabulary["Ġ3"], *spelling, vocabulary["Ġ4"]], "1 2") == tuple(spelling)
    assert find_spelling(codec, spelling[:1], "1 2") is None
    assert tuple(spelling) not in translator.options.suppress_sequences
    search = translator.engine.search
    calls = []

    def writing(sources: Any, limits: Any, options: Any, **given: Any) -> Any:
        found = search(sources, limits, options, **given)
        calls.append(options.suppress_sequences)
        if tuple(spelling) not in options.suppress_sequences:
            found[0][0].token_ids[:] = [*spelling, 2]
        return found

    with patch.object(translator.engine, "search", writing):
        (text,) = translator(["one two"])
    assert "1 2" not in text
    assert len(calls) == 2


def test_words_that_contain_a_banned_phrase_are_banned_and_case_counts() -> None:
    codec = TextCodec(toy_tokenizer(), "target")
    spellings = banned_spellings(codec, ["ne"])
    words = {codec.decode([list(tokens)])[0].strip() for tokens in spellings}
    assert {"one", "nine"} <= words
    assert not any("NE" in word for word in words)
    assert banned_spellings(codec, []) == ()


# Required phrases.


@BOTH
@SEARCHES
@pytest.mark.parametrize("required", [["7"], ["4 4", "9"], ["zero one", "1 2", "3"]], ids=str)
def test_a_required_phrase_occurs_in_every_text(
    kind: str, search: dict[str, Any], required: list[str]
) -> None:
    plain = all_texts(translator_of(kind, **search))
    texts = all_texts(translator_of(kind, **search, required_phrases=required))
    assert not all(phrase in text for text in itertools.chain(*plain) for phrase in required)
    assert all(phrase in text for text in itertools.chain(*texts) for phrase in required)
    if "num_beams" in search:  # and it ends by itself
        found = translator_of(kind, **search, required_phrases=required).translate(SENTENCES)
        assert sum(translation.hypotheses[0].complete for translation in found) > len(SENTENCES) // 2


@BOTH
@SEARCHES
def test_phrases_that_just_fit_are_written(kind: str, search: dict[str, Any]) -> None:
    required = ["1 2 3", "9 9"]
    for max_length in (6, 7, 9):
        texts = all_texts(translator_of(kind, **search, required_phrases=required, max_length=max_length))
        assert all(phrase in text for text in itertools.chain(*texts) for phrase in required)
    with pytest.raises(UserError, match="take 5 tokens and the end token, and a translation may have 5"):
        translator_of(kind, **search, required_phrases=required, max_length=5)


@BOTH
@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_line_can_have_its_own_phrases_in_any_batch(kind: str, num_beams: int) -> None:
    required = [["7"], [], ["4 4", "9"], *[[]] * (len(SENTENCES) - 3)]
    texts = all_texts(translator_of(kind, num_beams=num_beams), required=required)
    alone = all_texts(translator_of(kind, num_beams=num_beams, max_tokens_per_batch=1), required=required)
    plain = all_texts(translator_of(kind, num_beams=num_beams))
    assert texts == alone
    for of_line, of_plain, phrases in zip(texts, plain, required, strict=True):
        assert all(phrase in text for text in of_line for phrase in phrases)
        if not phrases:
            assert of_line == of_plain


def test_a_translation_with_required_phrases_does_not_depend_on_its_batch(tmp_path: Path) -> None:
    """A model of which beams with and without the next token of a phrase tied, and rounding decided."""
    fields: dict[str, Any] = {"norm_order": "pre", "activation_function": "gelu_new"}
    save_toy_checkpoint(tmp_path, True, **fields, lm_head_bias=True, tie_word_embeddings=False)
    translator = Translator.from_pretrained(tmp_path, num_beams=4, required_phrases=["7 7"])
    sources = toy_sources(30, seed=-1)
    together = [each.text for each in translator.translate(sources)]
    assert [next(iter(translator.translate([source]))).text for source in sources] == together


# A few steps of the logits processor alone.


def pushed(
    phrases: list[Phrase], limit: int, output: list[int], scores: torch.Tensor, **options: Any
) -> torch.Tensor:
    """The scores [V] behind an output, pushed towards phrases."""
    processor = RequiredPhrases([phrases], torch.tensor([limit]), 2, **options)
    return processor(torch.tensor([[1, *output]]), scores[None])[0]


def test_a_missing_phrase_is_forced_before_the_length_limit() -> None:
    phrase = Phrase([[7, 8, 9]])
    free, last = (pushed([phrase], limit, [], torch.zeros(12)) for limit in (5, 4))
    assert int(free.isfinite().sum()) == 11  # all but the end
    assert last.isfinite().nonzero().tolist() == [[7]]


def test_the_next_token_of_a_phrase_leads_by_more_than_rounding() -> None:
    """With an equal score, rounding would decide between beams, and a translation depend on its batch."""
    scores = torch.zeros(12)
    scores[3] = 1.0
    found = pushed([Phrase([[7, 8]])], 9, [7], scores)
    assert int(found.argmax()) == 8
    assert float(found[8] - found[3]) == pytest.approx(1e-3, rel=1e-3)


def test_a_phrase_needs_room_for_its_longest_tokenization() -> None:
    with pytest.raises(UserError, match="the required phrases take 2 tokens and the end token"):
        RequiredPhrases([[Phrase([[5], [5, 6]])]], torch.tensor([2]), 2)


def test_a_forced_token_counts_towards_the_length_limit() -> None:
    translator = translator_of("toy", num_beams=1)
    (source,) = translator.sides.sources.token_ids(["one two"])
    demands = [Demands(required=(Phrase([[7, 8, 11]]),))]
    start = {"forced_bos_token_id": 9}
    ((found,),) = translator.engine.search(
        [source], [5], translator.options, start_options=start, demands=demands
    )
    assert found.token_ids[:4] == [9, 7, 8, 11]


def test_already_satisfied_phrases_change_neither_text_nor_score() -> None:
    plain = list(translator_of("toy", num_beams=4).translate(SENTENCES, n_best=1))
    digits = [translation.text.split()[-1] for translation in plain]
    translator = translator_of("toy", num_beams=4)
    again = list(translator.translate(SENTENCES, required=[[digit] for digit in digits]))
    same = [one.text == other.text for one, other in zip(plain, again, strict=True)]
    assert sum(same) > len(SENTENCES) // 2
    for one, other in zip(plain, again, strict=True):
        if one.text == other.text:
            assert other.hypotheses[0].score == pytest.approx(one.hypotheses[0].score, abs=1e-4)


def test_banned_and_required_phrases_can_be_combined() -> None:
    translator = translator_of("toy", banned_phrases=["8"], required_phrases=["5 5"])
    assert all("5 5" in text and "8" not in text for text in itertools.chain(*all_texts(translator)))


# Prefixes.


@BOTH
@SEARCHES
def test_a_translation_begins_with_its_prefix(kind: str, search: dict[str, Any]) -> None:
    prefixes = ["9", "", "1 2 3 4 5 6 7", *["zero one"] * (len(SENTENCES) - 3)]
    translator = translator_of(kind, **search)
    plain = all_texts(translator)
    texts = all_texts(translator, prefixes=prefixes)
    assert all(text.startswith(prefix) for of, prefix in zip(texts, prefixes, strict=True) for text in of)
    assert texts[1] == plain[1]
    assert texts != plain
    assert texts == all_texts(translator_of(kind, **search, max_tokens_per_batch=1), prefixes=prefixes)


@BOTH
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_prefix_is_the_librarys_decoder_input(kind: str, num_beams: int) -> None:
    translator = translator_of(kind, num_beams=num_beams, length_penalty=0.0)
    codec = TextCodec(toy_tokenizer(), "target")
    prefix = "9 8 7"
    for sentence in SENTENCES:
        (translation,) = translator.translate([sentence], prefixes=[prefix], n_best=num_beams)
        encoded = toy_tokenizer()(sentence, return_tensors="pt")
        start = translator.model.generation_config.decoder_start_token_id
        given = torch.tensor([[start, *codec.token_ids([prefix], add_special_tokens=False)[0]]])
        limit = min(encoded["input_ids"].shape[1] + 50, translator.max_length)
        sequences = translator.model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            decoder_input_ids=given,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            max_length=1 + limit,
            do_sample=False,
            **({"length_penalty": 0.0} if num_beams > 1 else {}),
        )
        assert [hypothesis.text for hypothesis in translation.hypotheses] == [
            text.strip() for text in codec.decode(sequences.tolist())
        ]


@BOTH
def test_scores_count_the_prefix(kind: str) -> None:
    translator = translator_of(kind)
    (translation,) = translator.translate(["one two"], prefixes=["9 9"])
    best = translation.hypotheses[0]
    encoded = toy_tokenizer()("one two", return_tensors="pt")
    labels = torch.tensor([TextCodec(toy_tokenizer(), "target").token_ids([best.text])[0]])
    loss = translator.model(
        input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"], labels=labels
    ).loss
    assert best.log_prob == pytest.approx(-loss.item() * labels.shape[1], abs=1e-3)


def test_a_prefix_that_fills_the_translation_leaves_one_hypothesis() -> None:
    translator = translator_of("toy", max_length=4)
    (translation,) = translator.translate(["one"], prefixes=["1 2 3"], n_best=4)
    texts = [hypothesis.text for hypothesis in translation.hypotheses]
    assert texts[0].startswith("1 2 3")
    assert len(set(texts)) == len(texts) <= 4


def test_prefix_and_phrases_together() -> None:
    translator = translator_of("marian", required_phrases=["4 4"], max_length=7)
    texts = all_texts(translator, prefixes=["9 9 9"] * len(SENTENCES))
    assert all(text.startswith("9 9 9") and "4 4" in text for text in itertools.chain(*texts))


# The library's tokenizers and models.


@pytest.fixture(scope="module")
def library_models(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    kinds = ("marian", "marian of two vocabularies", "fsmt", "nllb", "mbart", "bart", "t5")
    return {kind: save_translator(kind, folder / kind.replace(" ", "-")) for kind in kinds}


@pytest.mark.exhaustive(after=8)
@pytest.mark.slow
@SEARCHES
@pytest.mark.parametrize(
    "kind", ["marian", "marian of two vocabularies", "fsmt", "nllb", "mbart", "bart", "t5"]
)
def test_constraints_hold_for_models_of_the_library(
    kind: str, search: dict[str, Any], library_models: dict[str, Path]
) -> None:
    if "two" in kind and search.get("num_beams", 1) > 1 and needs_newer_marian():
        pytest.skip("MarianMT with two vocabularies has no beam search in this transformers")
    languages = {"target_language": "deu_Latn"} if kind == "nllb" else {}
    options: dict[str, Any] = {**search, **languages, "max_length": 40}
    sentences = ["the big cat sees two dogs", "the small hen sees nine dogs"]
    plain = Translator.from_pretrained(library_models[kind], **options)
    (best, *_) = plain(sentences)
    words = [word for word in best.split() if word.isalpha()][:1]
    required, prefix = ["kleine Henne", "neun"], TARGETS[0].split()[0]
    if any(word in text for word in words for text in (*required, prefix)):
        words = []
    translator = Translator.from_pretrained(
        library_models[kind], **options, banned_phrases=words or ["qz"], required_phrases=required
    )
    n_best = 1 if search.get("num_beams") == 1 else 3
    for translation in translator.translate(sentences, prefixes=[prefix, ""], n_best=n_best):
        texts = [hypothesis.text for hypothesis in translation.hypotheses]
        assert texts, translation.problem
        assert all(phrase in text for text in texts for phrase in required)
        assert not any(word in text for text in texts for word in words)
        assert translation.source != sentences[0] or all(text.startswith(prefix) for text in texts)


def needs_newer_marian() -> bool:
    import transformers

    return transformers.__version__.startswith("5.12")


# The processors by themselves.


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}, {"do_sample": True}], ids=str)
def test_the_processors_work_with_plain_generate(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = tiny_model()
    sources = torch.tensor([[3, 4, 3, 2], [4, 4, 2, 0], [5, 2, 0, 0]])
    phrases = [[Phrase([[7, 8, 9]]), Phrase([[10]])], [], [Phrase([[11, 11], [12]])]]
    prefixes = [[20], [21, 22], []]
    limits = torch.tensor([7, 5, 6])
    given = model.config.eos_token_id
    processors = [RequiredPhrases(phrases, limits, given), ForcedPrefixes(prefixes)]
    sequences = model.generate(
        sources,
        attention_mask=(sources != 0).long(),
        max_length=8,
        stopping_criteria=StoppingCriteriaList([LengthLimits(limits)]),
        logits_processor=LogitsProcessorList(processors),
        **options,
    )
    for sequence, of_source, prefix, limit in zip(
        sequences[:, 1:].tolist(), phrases, prefixes, limits.tolist(), strict=True
    ):
        assert sequence[: len(prefix)] == prefix
        assert not missing_phrases(sequence[:limit], of_source)


def test_phrases_that_do_not_fit_are_refused_by_the_processor() -> None:
    with pytest.raises(UserError, match="take 2 tokens and the end token, and an output may have 2"):
        RequiredPhrases([[Phrase([[5, 6]])]], torch.tensor([2]), 2)
    RequiredPhrases([[]], torch.tensor([1]), 2)


# What cannot be done.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"banned_phrases": "8"}, r"banned_phrases is one text; give a list: \['8'\]"),
        ({"banned_phrases": [""]}, "banned_phrases: '' is empty or has white space at an end"),
        ({"required_phrases": ["a "]}, "required_phrases: 'a ' is empty or has white space at an end"),
        (
            {"banned_phrases": ["8"], "required_phrases": ["7 8"]},
            "required_phrases: '7 8' contains the banned phrase '8'; leave one of them out",
        ),
    ],
)
def test_phrases_that_contradict_are_refused_before_a_model_is_loaded(
    options: dict[str, Any], message: str
) -> None:
    for make in (
        lambda: Translator.from_pretrained("no/model", **options),
        lambda: translator_of("toy", **options),
    ):
        with pytest.raises(UserError, match=message):
            make()


def test_a_phrase_that_the_vocabulary_cannot_write(library_models: dict[str, Path]) -> None:
    with pytest.raises(
        UserError, match=r"required_phrases: the target vocabulary writes '日本' as ''; choose"
    ):
        Translator.from_pretrained(library_models["marian"], required_phrases=["日本"])
    translator = Translator.from_pretrained(library_models["marian"], max_length=12)
    found = list(
        translator.translate(
            ["the cat"] * 5,
            prefixes=["", "日", "große " * 10 + "Kuh", " Kuh", ""],
            required=[["日"], [], [], [], []],
        )
    )
    problems = [str(translation.problem) for translation in found]
    assert problems[0] == "required_phrases: the target vocabulary writes '日' as ''; choose other words"
    assert problems[1] == "prefix: the target vocabulary writes '日' as ''; choose other words"
    assert "tokens and the end token, and a translation may have 12; raise max_length" in problems[2]
    assert problems[3].startswith("prefix: ' Kuh' is empty or has white space at an end")
    assert found[4].problem is None
    assert found[4].text == translator(["the cat"])[0]


def test_lists_have_an_entry_for_each_sentence() -> None:
    translator = translator_of("toy")
    for options in ({"prefixes": ["1"]}, {"required": [["1"], [], []]}):
        with pytest.raises(UserError, match="as many prefixes, and lists of required phrases, as sentences"):
            list(translator.translate(["one", "two"], **options))
    with pytest.raises(UserError, match=r"got one text: write \['one'\]"):
        translator.translate(Line("one"))


def test_spellings_begin_a_text_and_follow_other_words() -> None:
    codec = TextCodec(toy_tokenizer(), "target")
    (spelling,) = required_phrase(codec, "1 2").spellings
    assert codec.decode([list(spelling)])[0].strip() == "1 2"


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte"])
@pytest.mark.parametrize("phrase", ["東京", "カレー", "กรุงเทพ", "Tokyo", "12"])
def test_a_phrase_follows_other_words_as_its_script_does(kind: Any, phrase: str) -> None:
    """With a space before it, but in scripts without spaces, where other tokens may write it too."""
    sentence = f"ที่東京カレー{phrase}を" if phrase[0] > "z" else f"in {phrase} we"
    codec = TextCodec(train_tokenizer([sentence, "the ( of"] * 4, 400, kind=kind), "target")
    found = required_phrase(codec, phrase)
    before = "これは" if phrase[0] > "z" else "this is"
    (tokens,) = codec.token_ids([before], add_special_tokens=False)
    (text,) = codec.decode([[*tokens, *found.spellings[-1]]])
    assert text == (f"{before}{phrase}" if phrase[0] > "z" else f"{before} {phrase}")
    whole, without = codec.token_ids([sentence, before], add_special_tokens=False)
    assert found.occurs(whole)
    assert not found.occurs(without)


def test_an_engine_without_phrases_and_prefixes_raises_an_error() -> None:
    class Lacking(TorchEngine):
        name = "lacking"
        supports = TorchEngine.supports - {"required", "prefix", "suppress_sequences"}

    def translator(**options: Any) -> Translator:
        return Translator(Lacking(toy_model()), toy_tokenizer(), **options)

    with pytest.raises(
        UserError, match=r"required_phrases=\['1'\] is not supported by engine=lacking; leave"
    ):
        translator(required_phrases=["1"])
    with pytest.raises(UserError, match=r"banned_phrases=\['1'\] is not supported by engine=lacking"):
        translator(banned_phrases=["1"])
    with pytest.raises(UserError, match="prefix='1' is not supported by engine=lacking"):
        list(translator().translate(["one", "two"], prefixes=["", "1"]))
    with pytest.raises(UserError, match=r"required_phrases=\['2'\] is not supported"):
        list(translator().translate(["one"], required=[["2"]]))
    assert translator()(["one"]) == Translator(toy_model(), toy_tokenizer())(["one"])


# Equal lines.


@BOTH
def test_equal_lines_of_a_buffer_are_translated_once(kind: str) -> None:
    translator = translator_of(kind)
    sentences = ["one two", "four", "one two", "", "one two"]
    prefixes = ["", "", "", "", "9"]
    expected = [translation for one in sentences for translation in translator.translate([one])]
    seen, search = [], translator.engine.search
    counted = []

    def recording(sources: Any, *arguments: Any, **options: Any) -> Any:
        seen.extend(map(tuple, sources))
        return search(sources, *arguments, **options)

    with patch.object(translator.engine, "search", recording):
        found = list(translator.translate(sentences, progress=counted.append))
        assert len(seen) == 2
        assert sum(counted) == 5
        assert [translation.text for translation in found] == [translation.text for translation in expected]
        list(translator.translate(sentences, prefixes=prefixes))
        assert len(seen) == 5
        list(translator.translate(sentences, buffer_size=1))
        assert len(seen) == 9
        translator.options = translator_of(kind, temperature=1.0).options
        list(translator.translate(sentences))
        assert len(seen) == 13
