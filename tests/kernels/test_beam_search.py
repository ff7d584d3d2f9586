"""The beam search loop gives the results of transformers' loop, and falls back to it where needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from tiny import batch, tiny_model, tokens
from vaswani.errors import RunError
from vaswani.inference.decoding import GNMTLengthPenalty, LengthLimits, MinimumLengths
from vaswani.inference.finite_scores import FiniteScores
from vaswani.kernels import best_tokens, search
from vaswani.kernels.beam_search import BeamSearch
from vaswani.model.compatibility import CACHE_NAME

LEAST = -1e8  # scores below are of places that hold no hypothesis


class EndsByTheSum(StoppingCriteria):
    """Ends a hypothesis by its last three tokens."""

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> Any:
        return input_ids[:, -3:].sum(dim=1) % 11 == 0


class Records(LogitsProcessor):
    """Records how many scores a row has."""

    def __init__(self, takes_best_tokens: bool = False) -> None:
        self.takes_best_tokens = takes_best_tokens
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        assert len(input_ids) == len(scores)
        self.shapes.append(tuple(scores.shape))
        return scores


def ending_model(bias: float = 2.0, ends: Any = (2,), **fields: Any) -> Any:
    """A model whose hypotheses end, here and there."""
    sizes = {"decoder_ffn_dim": 80, "encoder_ffn_dim": 48, "lm_head_bias": True}
    model = tiny_model(**{**sizes, **fields})
    with torch.no_grad():
        model.lm_head.bias[list(ends)] += bias
    return model


def ragged(rows: int = 5) -> dict[str, torch.Tensor]:
    data = batch(rows=rows, source=rows + 3)
    del data["labels"]
    return data


@dataclass
class Found:
    """What a search found: hypotheses, their scores, and the rows that their tokens continued."""

    sequences: torch.Tensor
    scores: torch.Tensor
    rows: torch.Tensor


def found_by_ours(model: Any, **arguments: Any) -> Found:
    """The beams of a search that returns its cache; tokens and scores of one that drops finished sources."""
    searches = []

    def output(search: BeamSearch, *rest: Any) -> Any:
        searches.append(search)
        return real(search, *rest)

    real = BeamSearch.output
    with patch.object(BeamSearch, "output", output):
        found = model.generate(**arguments, return_dict_in_generate=True)
        sequences = model.generate(**arguments)
    kept, scores = (each.ended.scores[:, : each.config.num_return_sequences].flatten() for each in searches)
    if arguments.get("output_scores"):
        assert torch.equal(found.sequences_scores, kept)
    else:
        assert found.sequences_scores is None
    return Found(sequences, scores, found.beam_indices)


@contextmanager
def library_loop() -> Iterator[None]:
    """Searches by transformers' loop."""
    with (
        patch.object(search, "can_search", lambda *_: False),
        patch.object(BeamSearch, "advance", side_effect=AssertionError),
    ):
        yield


def found_by_the_library(model: Any, **arguments: Any) -> Found:
    with library_loop():
        found = model.generate(**{**arguments, "output_scores": True}, return_dict_in_generate=True)
    return Found(found.sequences, found.sequences_scores, found.beam_indices)


def assert_same(model: Any, exact: bool = True, **options: Any) -> None:
    """Both loops find the same.

    Args:
        model: in float32; searched in float64 where `exact`, so that both loops see the same logits.
        exact: compare scores bit by bit, with PyTorch's log-softmax.
    """
    arguments: dict[str, Any] = {"max_new_tokens": 20, "num_beams": 4, "do_sample": False, **options}
    if exact:
        with patch.object(best_tokens, "library", lambda: None):
            actual = found_by_ours(model.double(), **arguments)
    else:
        actual = found_by_ours(model, **arguments)
    expected = found_by_the_library(model, **arguments)
    is_found = expected.scores > LEAST
    assert is_found[:: arguments.get("num_return_sequences", 1)].all()
    assert actual.sequences[is_found].tolist() == expected.sequences[is_found].tolist()
    assert actual.rows[is_found].tolist() == expected.rows[is_found].tolist()
    assert actual.rows.dtype == expected.rows.dtype
    if exact:
        assert actual.scores.tolist() == expected.scores.tolist()
    else:
        torch.testing.assert_close(actual.scores, expected.scores, rtol=1e-5, atol=1e-5)


ENDS = [2, 5, 7]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two beams": {"num_beams": 2},
    "many beams": {"num_beams": 16, "num_return_sequences": 16},
    "no penalty": {"length_penalty": 0.0},
    "long outputs": {"length_penalty": 3.0, "num_return_sequences": 4},
    "short outputs": {"length_penalty": -1.0},
    "GNMT": {"length_penalty": GNMTLengthPenalty(0.6), "num_return_sequences": 2},
    "early": {"early_stopping": True, "num_return_sequences": 4},
    "never early": {"early_stopping": "never", "length_penalty": 2.0},
    "never early, no penalty": {"early_stopping": "never", "length_penalty": 0.0},
    "never early, short outputs": {"early_stopping": "never", "length_penalty": -1.0},
    "one token": {"max_new_tokens": 1},
    "least length": {"min_new_tokens": 9},
    "forced start": {"forced_bos_token_id": 8},
    "forced end": {"forced_eos_token_id": 2},
    "several ends": {"eos_token_id": ENDS, "num_return_sequences": 3},
    "no end": {"eos_token_id": None},
    "padding": {"pad_token_id": 1},
    "repetition": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "banned": {"bad_words_ids": [[5], [6, 7]]},
    "bias": {"sequence_bias": {(5,): 2.0, (6, 7): -3.0}},
    "scores": {"output_scores": True, "num_return_sequences": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_gives_the_result_of_the_library(name: str) -> None:
    assert_same(ending_model(ends=OPTIONS[name].get("eos_token_id") or (2,)), **ragged(), **OPTIONS[name])


@pytest.mark.parametrize("masked", [False, True])
def test_prompts_give_the_result_of_the_library(masked: bool) -> None:
    prompt = tokens(5, 4)
    options = {"decoder_input_ids": prompt}
    if masked:
        options["decoder_attention_mask"] = torch.ones_like(prompt)
        options["decoder_attention_mask"][::2, 0] = 0
    assert_same(ending_model(), **ragged(), **options)


@pytest.mark.parametrize(
    "criterion", [LengthLimits(torch.tensor([3, 14, 1, 9, 20])), EndsByTheSum()], ids=["limits", "sum"]
)
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_stopping_criteria_give_the_result_of_the_library(
    criterion: StoppingCriteria, early_stopping: Any
) -> None:
    criteria = StoppingCriteriaList([criterion])
    assert_same(ending_model(), **ragged(), stopping_criteria=criteria, early_stopping=early_stopping)


def test_logits_processors_give_the_result_of_the_library() -> None:
    minimum = MinimumLengths(torch.tensor([3, 14, 1, 9, 18]), 2)
    for processors in ([FiniteScores(4)], [FiniteScores(4), minimum]):
        assert_same(ending_model(), **ragged(), logits_processor=LogitsProcessorList(processors))


@pytest.mark.parametrize("vocab_size", [13, 97, 2000])
def test_every_vocabulary_size_gives_the_result_of_the_library(vocab_size: int) -> None:
    data = {name: value % vocab_size for name, value in ragged().items()}
    assert_same(ending_model(vocab_size=vocab_size), **data, num_beams=3)


@pytest.mark.parametrize("rows", [1, 2, 9])
@pytest.mark.parametrize("num_beams", [2, 5])
def test_the_compiled_search_gives_the_same_result(rows: int, num_beams: int) -> None:
    """Up to the last digits of the scores."""
    assert_same(ending_model(), exact=False, **ragged(rows), num_beams=num_beams)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_combination_of_options_gives_the_result_of_the_library(data: st.DataObject) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 10_000)))
    ends = draw(st.sampled_from([[2], ENDS]))
    most = draw(st.sampled_from([2, 7, 25]))
    rows = draw(st.integers(1, 8))
    model = ending_model(
        bias=draw(st.sampled_from([0.0, 1.0, 3.0])),
        ends=ends,
        norm_order=draw(st.sampled_from(["pre", "post"])),
        vocab_size=draw(st.sampled_from([61, 300])),
    )
    options: dict[str, Any] = {
        "num_beams": (num_beams := draw(st.integers(2, 6))),
        "num_return_sequences": draw(st.integers(1, num_beams)),
        "length_penalty": draw(st.sampled_from([0.0, 0.6, 1.0, 2.0, -1.0, GNMTLengthPenalty(0.6)])),
        "early_stopping": draw(st.sampled_from([False, True, "never"])),
        "eos_token_id": ends,
        "max_new_tokens": most,
        "min_new_tokens": draw(st.sampled_from([None, 2])),
        "output_scores": draw(st.booleans()),
    }
    prompt_length = draw(st.sampled_from([1, 3]))
    if prompt_length > 1:
        options["decoder_input_ids"] = tokens(rows, prompt_length)
    if draw(st.booleans()):
        limits = LengthLimits(torch.randint(1, most + 1, (rows,)), prompt_length)
        options["stopping_criteria"] = StoppingCriteriaList([limits])
    assert_same(model, exact=draw(st.booleans()), **ragged(rows), **options)


def test_hypotheses_of_equal_scores_are_equally_good() -> None:
    """Which of two tokens alike is chosen is not defined; each token has a twin here."""
    model = ending_model(vocab_size=61, share_encoder_decoder_embeddings=False).double()
    with torch.no_grad():
        weight = model.model.decoder.embed_tokens.weight
        weight[4::2] = weight[3:-1:2]
        model.lm_head.bias[4::2] = model.lm_head.bias[3:-1:2]
    arguments = {**ragged(), "num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 12}
    actual, expected = found_by_ours(model, **arguments), found_by_the_library(model, **arguments)
    torch.testing.assert_close(actual.scores, expected.scores, rtol=1e-6, atol=1e-6)


def test_the_output_has_the_type_of_the_library() -> None:
    model, options = ending_model(), {**ragged(), "num_beams": 3, "max_new_tokens": 9}
    bare = model.generate(**options)
    assert isinstance(bare, torch.Tensor)
    results = [model.generate(**options, return_dict_in_generate=True, output_scores=True)]
    with library_loop():
        assert model.generate(**options).tolist() == bare.tolist()
        results.append(model.generate(**options, return_dict_in_generate=True, output_scores=True))
    actual, expected = results
    assert type(actual) is type(expected)
    assert actual.keys() == expected.keys()
    assert actual.sequences.tolist() == bare.tolist()
    assert len(actual.scores) == len(expected.scores)
    torch.testing.assert_close(actual.scores[0], expected.scores[0], rtol=1e-4, atol=1e-5)


def test_a_processor_that_only_reads_gets_the_best_tokens() -> None:
    model = ending_model()
    options = {**ragged(), "num_beams": 3, "max_new_tokens": 5}
    for reads, others, width in ((True, [], 6), (False, [], 61), (True, [Records()], 61)):
        processor = Records(takes_best_tokens=reads)
        model.generate(**options, logits_processor=LogitsProcessorList([processor, *others]))
        assert processor.shapes == [(15, width)] * 5


def test_non_finite_scores_are_detected() -> None:
    model, finite = ending_model(), FiniteScores(3)
    with torch.no_grad():
        model.lm_head.bias[50] = torch.nan
    processors = LogitsProcessorList([finite])
    model.generate(**ragged(), num_beams=3, max_new_tokens=8, logits_processor=processors)
    with pytest.raises(RunError, match="scores are not finite numbers in float32"):
        finite.check(model)


def own_cache(model: Any) -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"output_attentions": True},
        {"output_hidden_states": True},
        {"output_logits": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {CACHE_NAME: own_cache},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unsupported_options_fall_back_to_the_library(options: dict[str, Any]) -> None:
    model = ending_model()
    given = {name: value(model) if callable(value) else value for name, value in options.items()}
    arguments = {**ragged(), "num_beams": 3, "max_new_tokens": 6, "return_dict_in_generate": True}
    with patch.object(BeamSearch, "__init__", side_effect=AssertionError):
        found = model.generate(**arguments, **given)
    if not options.get("do_sample"):
        assert found.sequences.tolist() == model.generate(**arguments).sequences.tolist()


def test_low_memory_raises_the_error_of_the_library() -> None:
    with pytest.raises(ValueError, match="low_memory"):
        ending_model().generate(**ragged(), num_beams=3, max_new_tokens=6, low_memory=True)


def test_a_sparse_decoder_falls_back_to_the_library() -> None:
    model = ending_model(decoder_attention="sparse", sparse_block_size=4)
    with patch.object(BeamSearch, "__init__", side_effect=AssertionError):
        model.generate(**ragged(), num_beams=3, max_new_tokens=6)
