"""Scoring in batches and in parts agrees with scoring one sequence at a time."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from unittest.mock import patch

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedConfig,
    PreTrainedModel,
)

from toy_translation import toy_model, toy_rows, toy_tokenizer
from vaswani.inference.token_log_probs import target_log_probs
from vaswani.inference.translate.ensembling import AVERAGES, Ensemble
from vaswani.unwritten_padding import unwritten_padding, without_padding


@pytest.mark.parametrize("logits_at_once", [1, 1 << 26])
@pytest.mark.parametrize("targets_per_source", [1, 3])
def test_log_probs_are_the_summed_losses_of_each_pair(logits_at_once: int, targets_per_source: int) -> None:
    model, tokenizer = toy_model(), toy_tokenizer()
    sources, _ = zip(*toy_rows(4, seed=-1), strict=True)
    _, targets = zip(*toy_rows(4 * targets_per_source, seed=-2), strict=True)
    batch = tokenizer(list(sources), padding=True, return_tensors="pt")
    labels = [tokenizer(target)["input_ids"] for target in targets]
    longest = max(map(len, labels))
    rest = [torch.randint(0, 300, (longest - len(ids),)).tolist() for ids in labels]  # must not count
    sequences = torch.tensor([[1, *ids, *more] for ids, more in zip(labels, rest, strict=True)])
    lengths = torch.tensor([len(ids) for ids in labels])
    with patch("vaswani.inference.token_log_probs._LOGITS_AT_ONCE", logits_at_once):
        log_probs = target_log_probs(
            model, batch["input_ids"], batch["attention_mask"], sequences, lengths
        ).sum(1)
    expected = []
    for row, ids in enumerate(labels):
        source = tokenizer(sources[row // targets_per_source], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            expected.append(-model(input_ids=source, labels=torch.tensor([ids])).loss * len(ids))
    torch.testing.assert_close(log_probs, torch.stack(expected), rtol=1e-4, atol=1e-4)
    assert log_probs.dtype == torch.float32


def library_model(kind: type[PreTrainedModel], config: type[PreTrainedConfig]) -> PreTrainedModel:
    """A small model of the library with random weights and the toy vocabulary."""
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 304, "init_std": 0.5}
    shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 64}
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    return kind(config(**shape, encoder_ffn_dim=16, decoder_ffn_dim=16, **tokens)).eval()


def with_banned_padding(model: PreTrainedModel) -> PreTrainedModel:
    model.generation_config.bad_words_ids = [[0]]
    return model


def ensemble(names: Sequence[str], weights: list[float] | None, average: str) -> PreTrainedModel:
    return Ensemble([MODELS[name]() for name in names], weights, average)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "ours": toy_model,
    "ours, without padding": lambda: with_banned_padding(toy_model()),
    "BART": lambda: library_model(BartForConditionalGeneration, BartConfig),
    "Marian": lambda: with_banned_padding(library_model(MarianMTModel, MarianConfig)),
}
MEMBERS = [("ours", "BART"), ("ours, without padding", "Marian"), ("ours", "Marian")]
ENSEMBLES = {
    f"{' and '.join(names)}, {average}, {weights}": partial(ensemble, names, weights, average)
    for names, weights, average in product(MEMBERS, [None, [0.2, 0.8]], AVERAGES)
}


@pytest.mark.parametrize("name", [*MODELS, *ENSEMBLES])
def test_log_probs_are_those_of_the_logits(name: str) -> None:
    torch.manual_seed(0)
    model = (MODELS | ENSEMBLES)[name]()
    sources, sequences = torch.randint(3, 304, (4, 7)), torch.randint(3, 304, (8, 6))
    sequences[:, 0], mask = 1, torch.ones(4, 7, dtype=torch.long)
    mask[0, 5:] = 0
    lengths = torch.tensor([5, 1, 3, 5, 2, 4, 5, 5])
    found = target_log_probs(model, sources, mask, sequences, lengths)
    with torch.no_grad():
        logits = model(
            input_ids=sources.repeat_interleave(2, dim=0),
            attention_mask=mask.repeat_interleave(2, dim=0),
            decoder_input_ids=sequences[:, :-1],
            use_cache=False,
        ).logits
    expected = without_padding(logits.double(), unwritten_padding(model)).log_softmax(-1)
    expected = expected.gather(-1, sequences[:, 1:, None])[..., 0]
    kept = torch.arange(5) < lengths[:, None]
    torch.testing.assert_close(found[kept].double(), expected[kept], rtol=1e-4, atol=1e-5)
    assert not found[~kept].any()
