"""The greedy search loop gives the results of transformers' loop, and falls back to it where needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from test_beam_search import EndsByTheSum, Records, ending_model, own_cache, ragged
from transformers import GenerationMixin, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from tiny import tokens
from vaswani.errors import RunError
from vaswani.inference.decoding import LengthLimits, MinimumLengths
from vaswani.inference.finite_scores import FiniteScores
from vaswani.kernels import greedy_search
from vaswani.model.compatibility import CACHE_NAME


@contextmanager
def library_loop() -> Iterator[None]:
    with patch.object(greedy_search, "can_search", lambda *_: False):
        yield


@contextmanager
def only_our_loop() -> Iterator[None]:
    """Where transformers' loop fails: it looks whether rows are unfinished."""
    with patch.object(GenerationMixin, "_has_unfinished_sequences", side_effect=AssertionError):
        yield


def assert_same(model: Any, **options: Any) -> torch.Tensor:
    """Both loops find the same tokens; in float64, so that no tie is decided by rounding."""
    arguments: dict[str, Any] = {**ragged(), "max_new_tokens": 20, **options}
    model = model.double()
    with only_our_loop():
        found = model.generate(**arguments)
    with library_loop():
        assert model.generate(**arguments).tolist() == found.tolist()
    return found


ENDS = [2, 5, 7]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one token": {"max_new_tokens": 1},
    "least length": {"min_new_tokens": 9},
    "forced start": {"forced_bos_token_id": 8},
    "forced end": {"forced_eos_token_id": 2},
    "several ends": {"eos_token_id": ENDS},
    "no end": {"eos_token_id": None},
    "padding": {"pad_token_id": 1},
    "no padding": {"pad_token_id": None},
    "repetition": {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3},
    "banned": {"bad_words_ids": [[5], [6, 7]]},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rows", [1, 7])
def test_every_option_gives_the_result_of_the_library(name: str, rows: int) -> None:
    model = ending_model(ends=OPTIONS[name].get("eos_token_id") or (2,))
    found = assert_same(model, **ragged(rows), **OPTIONS[name])
    if name == "plain" and rows > 1:
        assert (found == model.config.pad_token_id).any()  # some rows end early
        assert (found[:, -1] != model.config.pad_token_id).any()


@pytest.mark.parametrize("masked", [False, True])
def test_prompts_give_the_result_of_the_library(masked: bool) -> None:
    options = {"decoder_input_ids": tokens(5, 4)}
    if masked:
        options["decoder_attention_mask"] = torch.ones_like(options["decoder_input_ids"])
        options["decoder_attention_mask"][::2, 0] = 0
    assert_same(ending_model(), **options)


@pytest.mark.parametrize(
    "criterion", [LengthLimits(torch.tensor([3, 14, 1, 9, 20])), EndsByTheSum()], ids=["limits", "sum"]
)
@pytest.mark.parametrize("ends", [{}, {"eos_token_id": None}], ids=["end token", "none"])
def test_stopping_criteria_give_the_result_of_the_library(
    criterion: StoppingCriteria, ends: dict[str, Any]
) -> None:
    assert_same(ending_model(), stopping_criteria=StoppingCriteriaList([criterion]), **ends)


def test_logits_processors_give_the_result_of_the_library() -> None:
    minimum = MinimumLengths(torch.tensor([3, 14, 1, 9, 18]), 2)
    assert_same(ending_model(), logits_processor=LogitsProcessorList([FiniteScores(1), minimum]))
    records = Records()
    ending_model().generate(**ragged(), max_new_tokens=5, logits_processor=LogitsProcessorList([records]))
    assert records.shapes == [(5, 61)] * 5


def test_scores_kept_by_a_processor_are_not_overwritten() -> None:
    """The next step does not overwrite it."""

    class Keeps(Records):
        def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
            kept.append((scores, scores.clone()))
            return scores

    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    ending_model().generate(**ragged(), max_new_tokens=6, logits_processor=LogitsProcessorList([Keeps()]))
    assert len(kept) > 3
    assert all(torch.equal(then, now) for now, then in kept)


def test_non_finite_scores_are_detected() -> None:
    model, finite = ending_model(), FiniteScores(1)
    with torch.no_grad():
        model.lm_head.bias[50] = torch.nan
    model.generate(**ragged(), max_new_tokens=8, logits_processor=LogitsProcessorList([finite]))
    with pytest.raises(RunError, match="scores are not finite numbers in float32"):
        finite.check(model)


def test_a_streamer_receives_the_same_calls_as_from_the_library() -> None:
    class Streamer(BaseStreamer):
        def __init__(self) -> None:
            self.calls: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.calls.append(value.tolist())

        def end(self) -> None:
            self.calls.append("end")

    calls: list[list[Any]] = []
    model, data = ending_model(), ragged(1)
    for loop in (only_our_loop, library_loop):
        streamer = Streamer()
        with loop():
            model.generate(**data, max_new_tokens=9, streamer=streamer)
        calls.append(streamer.calls)
    assert calls[0] == calls[1]
    assert len(calls[0]) > 3


def test_several_return_sequences_raise_an_error() -> None:
    with pytest.raises(ValueError, match="num_return_sequences"):
        ending_model().generate(**ragged(), max_new_tokens=5, num_return_sequences=2)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": True},
        {"return_dict_in_generate": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {CACHE_NAME: own_cache},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unsupported_options_fall_back_to_the_library(options: dict[str, Any]) -> None:
    model, arguments = ending_model(), {**ragged(), "max_new_tokens": 6}
    given = {name: value(model) if callable(value) else value for name, value in options.items()}
    with patch.object(greedy_search, "greedy_search", side_effect=AssertionError):
        found = model.generate(**arguments, **given)
    if not options.get("do_sample"):
        sequences = found.sequences if options.get("return_dict_in_generate") else found
        assert sequences.tolist() == model.generate(**arguments).tolist()
