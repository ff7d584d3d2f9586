"""Beam search with the paper's length rules, against an enumeration of all outputs."""

import math
import pickle
import re
from copy import deepcopy
from itertools import product

import pytest
import torch
from transformers import StoppingCriteriaList

from tiny import tiny_model
from vaswani import VaswaniForConditionalGeneration
from vaswani.inference.decoding import GNMTLengthPenalty, LengthLimits

VOCABULARY = 5
LONGEST = 4
SOURCE = torch.tensor([[3, 4, 3, 2]])


@pytest.fixture
def model() -> VaswaniForConditionalGeneration:
    """A model whose outputs are about equally likely, so that their lengths decide."""
    model = tiny_model(vocab_size=VOCABULARY, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
    return model


@torch.no_grad()
def all_outputs(model: VaswaniForConditionalGeneration) -> dict[tuple[int, ...], float]:
    """Every output of up to LONGEST tokens that ends with </s> or at that length, and its log-probability."""
    outputs = list(product(range(VOCABULARY), repeat=LONGEST))
    tokens = torch.tensor(outputs)
    decoder_input_ids = torch.cat([torch.ones_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
    logits = model(SOURCE.expand(len(tokens), -1), decoder_input_ids=decoder_input_ids).logits
    log_probs = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    lengths = [output.index(2) + 1 if 2 in output else LONGEST for output in outputs]
    return {
        output[:length]: row[:length].sum().item()
        for output, length, row in zip(outputs, lengths, log_probs, strict=True)
    }


def generated(sequence: torch.Tensor, longest: int) -> tuple[int, ...]:
    """The generated tokens, without the start token and the padding."""
    tokens = tuple(sequence[1 : 1 + longest].tolist())
    return tokens[: tokens.index(2) + 1] if 2 in tokens else tokens


@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_an_exhaustive_search_finds_the_outputs_that_gnmt_ranks_highest(model, alpha: float) -> None:
    scores = {
        output: log_prob / ((5 + len(output)) / 6) ** alpha for output, log_prob in all_outputs(model).items()
    }
    best = sorted(scores, key=lambda output: -scores[output])[:3]
    found = model.generate(
        SOURCE,
        num_beams=VOCABULARY**LONGEST,
        num_return_sequences=3,
        length_penalty=GNMTLengthPenalty(alpha),
        early_stopping="never",
        max_length=1 + LONGEST,
        output_scores=True,
        return_dict_in_generate=True,
    )
    assert [generated(sequence, LONGEST) for sequence in found.sequences] == best
    torch.testing.assert_close(found.sequences_scores, torch.tensor([scores[output] for output in best]))


def test_the_penalty_is_not_that_of_a_plain_float(model) -> None:
    # Of outputs whose tokens are all as likely, |Y|^3 favours the longest, and GNMT's penalty the shortest.
    options = {"num_beams": 16, "early_stopping": "never", "max_length": 1 + LONGEST}
    plain = model.generate(SOURCE, length_penalty=3.0, **options)
    gnmt = model.generate(SOURCE, length_penalty=GNMTLengthPenalty(3.0), **options)
    assert len(generated(plain[0], LONGEST)) == LONGEST
    assert generated(gnmt[0], LONGEST) == (2,)


def test_the_penalty_survives_deepcopy() -> None:
    assert 13 ** deepcopy(GNMTLengthPenalty(0.6)) == pytest.approx((18 / 6) ** 0.6)
    assert GNMTLengthPenalty(0.6).of(torch.tensor([13])) == pytest.approx(13 ** GNMTLengthPenalty(0.6))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_each_source_has_its_own_length_limit(model, num_beams: int) -> None:
    sources = torch.tensor([[3, 4, 3, 2], [4, 4, 2, 0], [3, 2, 0, 0]])
    mask = (sources != 0).long()
    limits = torch.tensor([4, 9, 6])

    def decode(rows: list[int]) -> list[tuple[int, ...]]:
        sequences = model.generate(
            sources[rows],
            attention_mask=mask[rows],
            num_beams=num_beams,
            suppress_tokens=[2],  # only the limits end an output
            max_length=1 + int(limits[rows].max()),
            stopping_criteria=StoppingCriteriaList([LengthLimits(limits[rows])]),
        )
        return [generated(sequence, limits[row]) for sequence, row in zip(sequences, rows, strict=True)]

    together = decode([0, 1, 2])
    assert [len(output) for output in together] == limits.tolist()
    assert together == [decode([row])[0] for row in range(3)]


@pytest.mark.parametrize("alpha", [math.nan, math.inf, -math.inf, 1e308, 1e30, 10.5, -11, None])
def test_an_alpha_that_no_length_can_be_raised_to_is_refused(alpha: float | None) -> None:
    with pytest.raises(ValueError, match=f"length_penalty={re.escape(str(alpha))} must be a"):
        GNMTLengthPenalty(alpha)


def test_a_penalty_can_be_copied_and_pickled() -> None:
    assert deepcopy(GNMTLengthPenalty(0.6)) == pickle.loads(pickle.dumps(GNMTLengthPenalty(0.6))) == 0.6
