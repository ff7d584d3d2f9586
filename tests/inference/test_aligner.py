"""Word alignments by cross-attention: a pair of languages whose links are known, and every layer by hand."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from library_tokenizers import KINDS, SOURCES, TARGETS, library_tokenizers
from library_translators import OF_ANY_TOKENIZER, save_translator
from toy_alignment import reversed_rows, reversing_model
from toy_translation import SHAPE, toy_model, toy_tokenizer
from vaswani import Aligner, VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data.text_codec import TextCodec, for_languages
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import RunError, UserError
from vaswani.inference.align.aligner import Alignment, SymmetricAligner
from vaswani.inference.align.attention import attention_of_pairs
from vaswani.inference.align.links import AlignmentErrors, GoldLinks, aligned_words
from vaswani.inference.align.words import words_by_decoding, words_of_texts
from vaswani.inference.translate.ensembling import Ensemble

__all__ = ["library_tokenizers"]

ROWS = reversed_rows(60, seed=-9)
TURNED = [(target, source) for source, target in ROWS]


def errors_of(found: list[Alignment], rows: list[tuple[str, str]]) -> AlignmentErrors:
    errors = AlignmentErrors()
    for alignment, (source, _) in zip(found, rows, strict=True):
        count = len(source.split())
        gold = frozenset((count - 1 - target, target) for target in range(count))
        errors.add(alignment.links, GoldLinks(gold, gold))
    return errors


def aligner(turned: bool = False, **options: Any) -> Aligner:
    return Aligner(reversing_model(turned), toy_tokenizer(), **options)


# The right links.


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_words_in_reverse_order_are_aligned(turned: bool) -> None:
    """Digits are one token, and some words several."""
    rows = TURNED if turned else ROWS
    found = aligner(turned, layer=-1)(rows)
    assert errors_of(found, rows).error_rate < 0.05
    assert all(
        len(alignment.links) == len(row[1].split()) for alignment, row in zip(found, rows, strict=True)
    )


@pytest.mark.slow
def test_layers_heads_and_steps_move_the_result() -> None:
    rates: dict[str, float] = {}
    for options in (
        {"layer": 0},
        {"layer": -1},
        {"layer": "all"},
        {"layer": -1, "heads": [0]},
        {"layer": -1, "heads": [1]},
        {"layer": -1, "step": "read"},
    ):
        rates[str(options)] = errors_of(aligner(**options)(ROWS), ROWS).error_rate
    assert len(set(rates.values())) == len(rates), rates
    assert min(rates, key=lambda options: rates[options]) not in ("{'layer': 0}", "{'step': 'read'}")
    one = aligner(layer=1, heads=[0, 1])(ROWS)
    assert one == aligner(layer=-1, heads=[-1, 0])(ROWS) == aligner(layer=-1)(ROWS)


@pytest.mark.slow
def test_two_directions_are_combined() -> None:
    forward, backward = aligner(layer=-1), aligner(turned=True, layer=0)  # of which the second errs
    rates = {}
    for method in ("intersection", "union", "grow-diag-final-and"):
        found = SymmetricAligner(forward, backward, method)(ROWS)
        rates[method] = errors_of(found, ROWS)
    one, other = forward(ROWS), backward(TURNED)
    for alignment, left, right in zip(
        SymmetricAligner(forward, backward, "union")(ROWS), one, other, strict=True
    ):
        assert alignment.links == left.links | {(source, target) for target, source in right.links}
    assert rates["intersection"].precision > rates["grow-diag-final-and"].precision > rates["union"].precision
    assert rates["intersection"].recall < rates["union"].recall


# The weights.


@torch.no_grad()
def by_hand(model: Any, source: list[int], start: int, target: list[int], layer: Any, heads: Any) -> Any:
    """The mean weights of each target token, by a pass of its own over the tokens before it: [T, S]."""
    rows = []
    for place in range(len(target)):
        given = torch.tensor([[start, *target[:place]]])
        outputs = model(
            input_ids=torch.tensor([source]), decoder_input_ids=given, output_attentions=True, use_cache=False
        )
        layers = outputs.cross_attentions if layer == "all" else [outputs.cross_attentions[layer]]
        rows.append(torch.stack([weights[0, heads, -1] for weights in layers]).flatten(0, 1).mean(dim=0))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", [*KINDS, *OF_ANY_TOKENIZER])
def test_weights_of_models_of_the_library(kind: str, tmp_path: Path) -> None:
    """Those that every model has by itself, though they are loaded with a kernel that returns none."""
    found = Aligner.from_pretrained(save_translator(kind, tmp_path))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    pairs = [(SOURCES[0], TARGETS[0]), ("the cow", "kleine Kuh")]
    sources = found.pairs.sources.token_ids([source for source, _ in pairs])
    targets = [each.token_ids for each in found.pairs.encode_targets([pair[1] for pair in pairs], [True] * 2)]
    start = found.pairs.start_token_id
    for step in ("predict", "read"):
        weights = attention_of_pairs(found.model, sources, targets, start, step=step)
        for source, target, of_pair in zip(sources, targets, weights, strict=True):
            longer = [*target, 0] if step == "read" else target
            expected = by_hand(model, source, start, longer, -1, slice(None))
            torch.testing.assert_close(of_pair, expected[int(step == "read") :], rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(of_pair.sum(1), torch.ones(len(target)), rtol=1e-4, atol=1e-4)
    assert [alignment.problem for alignment in found(pairs)] == [None, None]


@pytest.mark.parametrize("layer", [None, 0, 1, "all"])
@pytest.mark.parametrize("heads", [None, [1]])
def test_attention_of_the_given_layer_and_heads_is_used(layer: Any, heads: list[int] | None) -> None:
    model = toy_model(decoder_layers=2)
    sources, targets = [[5, 6, 7, 2], [9, 2]], [[11, 12, 2], [13, 14, 15, 16, 2]]
    found = attention_of_pairs(model, sources, targets, 1, layer=layer, heads=heads)
    for source, target, weights in zip(sources, targets, found, strict=True):
        of_layer = -1 if layer is None else layer
        expected = by_hand(model, source, 1, target, of_layer, heads or slice(None))
        torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
    with patch("vaswani.inference.token_log_probs._LOGITS_AT_ONCE", 1):
        for part, whole in zip(
            attention_of_pairs(model, sources, targets, 1, layer=layer, heads=heads), found, strict=True
        ):
            torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-6)


def test_the_default_layer_depends_on_the_depth() -> None:
    for layers, expected in {1: 0, 3: 2, 4: 2, 6: 4}.items():
        model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, "decoder_layers": layers})).eval()
        (by_default,), (given,) = (
            attention_of_pairs(model, [[5, 6, 2]], [[7, 8, 2]], 1, layer=layer) for layer in (None, expected)
        )
        assert torch.equal(by_default, given)


@pytest.mark.parametrize("attention", ["sparse", "full"])
def test_sparse_encoders_keep_their_pattern(attention: str) -> None:
    fields = {"encoder_attention": attention} if attention == "sparse" else {}
    model = toy_model(**fields)
    tokens = [list(range(5, 45))]
    (weights,) = attention_of_pairs(model, tokens, [[9, 8, 2]], 1)
    expected = by_hand(model, tokens[0], 1, [9, 8, 2], 0, slice(None))
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_tokens", [1, 60])
def test_an_alignment_does_not_depend_on_the_batch(max_tokens: int) -> None:
    model = toy_model()
    expected = Aligner(model, toy_tokenizer())(ROWS)
    counts: list[int] = []
    small = Aligner(model, toy_tokenizer(), max_tokens_per_batch=max_tokens)
    assert list(small.stream(ROWS, buffer_size=7, progress=counts.append)) == expected
    assert sum(counts) == len(ROWS)


# Words.


def test_words_are_aligned_by_the_summed_weights_of_their_tokens() -> None:
    weights = torch.tensor([[0.5, 0.2, 0.3, 0.0], [0.0, 0.4, 0.35, 0.25], [0.1, 0.3, 0.3, 0.3]])
    links = aligned_words(weights, [0, 1, 1, None], [0, 1, 1, None])
    assert links == {(0, 0), (1, 1)} or links == {(1, 0), (1, 1)}
    assert aligned_words(weights, [0, 1, 1, None], [0, 0, 0]) == {(1, 0)}  # 0.6 against 1.85
    assert aligned_words(weights, [0, None, 1, 1], [None, None, 0]) == {(1, 0)}
    assert aligned_words(weights[:1], [0, 1, None, None], [0, 1]) == {(0, 0)}  # the last was not read
    assert aligned_words(weights, [None] * 4, [0, 1, 2]) == frozenset()
    assert aligned_words(torch.tensor([[0.4, 0.3, 0.3]]), [0, 1, 1], [0]) == {(1, 0)}  # the mean is smaller


@pytest.mark.parametrize("kind", [*KINDS, *OF_ANY_TOKENIZER])
@pytest.mark.parametrize("side", ["source", "target"])
def test_every_token_is_assigned_to_its_word(kind: str, side: Any, tmp_path: Path) -> None:
    save_translator(kind, tmp_path)
    codec = TextCodec(load_tokenizers(tmp_path)[side == "target"], side)
    texts = [*(SOURCES if side == "source" else TARGETS)[:4], "", "  two  spaces "]
    token_ids = codec.token_ids(texts)
    special = codec.special_ids()
    for text, ids, words in zip(texts, token_ids, words_of_texts(codec, texts, token_ids), strict=True):
        assert words is not None
        assert len(words) == len(ids)
        numbers = [word for word in words if word is not None]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(len(text.split())))
        assert all(word is None for token, word in zip(ids, words, strict=True) if token in special)
        for number, word in enumerate(text.split()):
            own = [token for token, each in zip(ids, words, strict=True) if each == number]
            if codec.unknown_id() not in own:
                assert codec.decode([own])[0].strip() == word


def test_words_of_a_slow_tokenizer_behind_a_prefix(tmp_path: Path) -> None:
    save_translator("marian", tmp_path)
    tokenizer, _ = load_tokenizers(tmp_path)
    tokenizer, _ = for_languages(tokenizer, tokenizer, source_prefix="the big ")
    codec, text = TextCodec(tokenizer), "the small hen"
    (ids,) = codec.token_ids([text])
    (words,) = words_of_texts(codec, [text], [ids])
    assert words is not None
    kept = [token for token, word in zip(ids, words, strict=True) if word is not None]
    assert codec.decode([kept])[0].strip() == text


@pytest.mark.parametrize("kind", ["toy", "marian"])
def test_words_of_a_truncated_source_are_found(kind: str, tmp_path: Path) -> None:
    """With offsets and without."""
    tokenizer = toy_tokenizer() if kind == "toy" else load_tokenizers(save_translator(kind, tmp_path))[0]
    codec, text = TextCodec(tokenizer), "the big small hen"
    assert tokenizer.is_fast == (kind == "toy")
    (ids,) = codec.token_ids([text])
    (whole,) = words_of_texts(codec, [text], [ids])
    assert whole is not None
    for most in range(2, len(ids)):
        cut = codec.frame().cut(ids, most)
        (words,) = words_of_texts(codec, [text], [cut])
        assert words == [*whole[: most - 1], None]


def test_words_by_decoding_agree_with_offsets() -> None:
    codec = TextCodec(toy_tokenizer())
    texts = ["one  two", " thirteen ünd 3", "", "a\tb\nc"]
    token_ids = codec.token_ids(texts)
    for text, ids, words in zip(texts, token_ids, words_of_texts(codec, texts, token_ids), strict=True):
        pairs = zip(words_by_decoding(codec, ids, len(text.split())) or [], words or [], strict=True)
        both = [(one, other) for one, other in pairs if one is not None]  # tokens of a space may differ
        assert [one for one, _ in both] == [other for _, other in both]
        assert {one for one, _ in both} == set(range(len(text.split())))
    assert words_by_decoding(codec, token_ids[0], 7) is None


def test_tokens_of_a_prefix_belong_to_no_word() -> None:
    tokenizer, _ = for_languages(toy_tokenizer(), toy_tokenizer(), source_prefix="nine eight: ")
    codec = TextCodec(tokenizer)
    (ids,) = codec.token_ids(["one two"])
    (words,) = words_of_texts(codec, ["one two"], [ids])
    assert words is not None
    kept = [token for token, word in zip(ids, words, strict=True) if word is not None]
    assert codec.decode([kept])[0].strip() == "one two"
    prefixed = Aligner(toy_model(), toy_tokenizer(), source_prefix="nine eight: ")([("one two", "1 2")])
    assert all(source < 2 for source, _ in prefixed[0].links)


# What is not aligned.


def test_too_long_pairs_have_a_problem_and_empty_sides_no_links() -> None:
    model = toy_model(position_embedding="learned", max_position_embeddings=12)
    long = " ".join(["one"] * 12)
    rows = [("one", "1"), (long, "1"), ("one", " ".join("1" * 12)), ("", "1"), ("one", " ")]
    found = Aligner(model, toy_tokenizer())(rows)
    assert [len(alignment.links) for alignment in found] == [1, 0, 0, 0, 0]
    problems = [alignment.problem for alignment in found]
    assert problems[1:] == [
        "its source has 13 tokens, and the model has positions for 12; too_long=cut would truncate it",
        "its target has 13 tokens, and the model has positions for 12",
        None,
        None,
    ]
    both = SymmetricAligner(Aligner(model, toy_tokenizer()), Aligner(model, toy_tokenizer(), max_length=1))
    (alignment,) = both([("one", "1")])
    assert (
        alignment.problem
        == "in the other direction, its target has 2 tokens, more than max_length=1; raise that"
    )
    limited = Aligner(toy_model(), toy_tokenizer(), max_source_length=2)
    assert "more than max_source_length=2" in (limited([("one two", "1")])[0].problem or "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 1}, "layer=1: the model's decoder has 1; expected 0 to 0, or -1 to -1"),
        ({"layer": -2}, "layer=-2: the model's decoder has 1"),
        ({"heads": [0, 2]}, "heads=2: the model's decoder has 2; expected 0 to 1, or -2 to -1"),
        ({"heads": [1, -1]}, "heads=1,-1 names a head twice; give each once"),
        ({"heads": []}, "heads is empty; give numbers of heads"),
        ({"step": "write"}, "step=write is unknown; expected predict or read"),
        ({"max_length": 0}, "max_length=0 must be at least 1"),
        ({"max_tokens_per_batch": 0}, "max_tokens_per_batch=0 must be at least 1"),
    ],
)
def test_wrong_options_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Aligner(toy_model(), toy_tokenizer(), **options)


def silent_model() -> Any:
    """A model whose class takes no `output_attentions`."""

    class Silent(VaswaniForConditionalGeneration):
        def forward(self, input_ids: Any = None, decoder_input_ids: Any = None) -> Any:
            raise NotImplementedError

    return Silent(toy_model().config)


def test_an_ensemble_aligns_by_the_mean_of_its_members() -> None:
    model = reversing_model()
    expected = Aligner(model, toy_tokenizer())(ROWS)
    assert Aligner(Ensemble([model]), toy_tokenizer())(ROWS) == expected
    other = toy_model(decoder_layers=2)
    both = Aligner(Ensemble([model, other]), toy_tokenizer())
    (weights,) = attention_of_pairs(both.model, [[5, 6, 2]], [[7, 8, 2]], 1)
    each = [attention_of_pairs(member, [[5, 6, 2]], [[7, 8, 2]], 1)[0] for member in (model, other)]
    torch.testing.assert_close(weights, sum(each) / 2)


def test_wrong_pairs_and_models_raise_an_error() -> None:
    found = Aligner(toy_model(), toy_tokenizer())
    with pytest.raises(UserError, match="expected a list of pairs, got one text"):
        found("one")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected a list of pairs, got a set"):
        found({("one", "1"), ("two", "2")})
    with pytest.raises(UserError, match="expected a source and a target, got 'one'"):
        found(["one"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="Silent returns no weights of cross-attention, which an alignment"):
        Aligner(silent_model(), toy_tokenizer())
    model = toy_model()
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[3] = math.nan
    with pytest.raises(RunError, match="not finite numbers"):
        Aligner(model, toy_tokenizer())([("one", "1")])


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\x01"])
def test_a_target_that_tokenizes_to_nothing_has_no_links(
    text: str, library_tokenizers: dict[str, Path]
) -> None:
    source, target = load_tokenizers(library_tokenizers["marian"])
    sizes = {"vocab_size": max(len(source), 1 + max(source.get_vocab().values()))}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**{**SHAPE, **sizes}))
    found = Aligner(model, source, target)([(SOURCES[0], text), (SOURCES[0], TARGETS[0]), (text, TARGETS[0])])
    assert not found[0].links
    assert found[1].links


def test_a_pair_that_only_the_other_direction_cuts_is_reported() -> None:
    limits = {"max_source_length": 3, "too_long": "cut"}
    pairs = [("one two three four", "4 3 2 1")]
    for cut in ((False, False), (True, False), (False, True)):
        one, other = (aligner(turned, **limits if cut[turned] else {}) for turned in (False, True))
        (found,) = SymmetricAligner(one, other)(pairs)
        assert found.source_cut_off is any(cut)
