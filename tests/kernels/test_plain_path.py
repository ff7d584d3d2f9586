"""Without kernels, a model computes the same: kernels are never needed for a right result."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from transformers import EncoderDecoderCache

from tiny import batch, tiny_model, tokens
from vaswani import VaswaniForConditionalGeneration
from vaswani.kernels import onednn, products_native, search
from vaswani.kernels.projected_loss import TokenLoss
from vaswani.kernels.registry import active_kernels
from vaswani.model.attention import ATTENTION_FUNCTIONS
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.kernel_slots import KernelSlot, prepare_kernels


@contextmanager
def without_kernels() -> Iterator[None]:
    """Every slot is empty, as in a process without the plugin."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            for slot in vars(module).values() if name.startswith("vaswani.model.") else ():
                if isinstance(slot, KernelSlot) and slot is not prepare_kernels:
                    patch.setattr(slot, "kernel", None)
        patch.delitem(ATTENTION_FUNCTIONS, "sdpa")
        for name in (*search.OVERRIDDEN, "prepare_inputs_for_generation"):
            patch.delattr(VaswaniForConditionalGeneration, name)
        plain_forward = VaswaniForConditionalGeneration.forward.__wrapped__
        patch.setattr(VaswaniForConditionalGeneration, "forward", plain_forward)
        yield


@pytest.mark.parametrize("products", [onednn, products_native])
@pytest.mark.parametrize("loss", ["plain", "smoothed", "any"])
def test_losses_and_gradients_are_the_same(
    loss: str, products: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "MIN_ROWS", 1)
    monkeypatch.setattr(products, "MIN_MULTIPLICATIONS", 0)
    model, data = tiny_model(), batch(rows=5, source=12, target=9)
    if loss == "smoothed":
        data["smoothing"] = 0.1
    elif loss == "any":
        kept = data["labels"] != -100
        data["token_loss"] = TokenLoss(kept, lambda logits, place: logits.logsumexp(-1).sum())
    results = []
    for context in (pytest.MonkeyPatch.context(), without_kernels()):
        with context:
            model.zero_grad()
            output = model(**data).loss
            output.backward()
            results.append([output.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "search_options",
    [
        {},
        {"num_beams": 4, "length_penalty": 0.6},
        {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True},
        {"num_beams": 2, "output_attentions": True, "return_dict_in_generate": True},
    ],
)
@pytest.mark.parametrize("decoder_attention", ["full", "sparse"])
def test_searches_find_the_same(search_options: dict, decoder_attention: str) -> None:
    model, data = tiny_model(decoder_attention=decoder_attention, sparse_block_size=4), batch(rows=5)
    del data["labels"]
    options = {"max_new_tokens": 15, "do_sample": False, "sequence_bias": {(2,): 4.0}, **search_options}
    found = model.generate(**data, **options)
    with without_kernels():
        expected = model.generate(**data, **options)
    if search_options.get("return_dict_in_generate"):
        found, expected = found.sequences, expected.sequences
    assert found.tolist() == expected.tolist()


SEARCHES: dict[str, dict] = {
    "greedy": {},
    "samples": {"do_sample": True, "num_return_sequences": 3},
    "one sample": {"do_sample": True},
    "beams": {"num_beams": 4, "length_penalty": 0.6},
    "several outputs": {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True},
    "beams with attention": {"num_beams": 3, "output_attentions": True},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "fixed size": {"cache_implementation": "static", "do_sample": True, "num_return_sequences": 2},
}


def states_of(cache: EncoderDecoderCache) -> list[torch.Tensor]:
    parts = (cache.self_attention_cache, cache.cross_attention_cache)
    return [states for part in parts for layer in part.layers for states in (layer.keys, layer.values)]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("prompt", [1, 3])
@pytest.mark.parametrize("decoder_attention", ["full", "sparse"])
def test_searches_return_the_same_cache(name: str, prompt: int, decoder_attention: str) -> None:
    """A plain cache of all rows, also of those that ended early."""
    model, data = tiny_model(decoder_attention=decoder_attention, sparse_block_size=4), batch(rows=5)
    model = model.double()  # so that no choice is decided by rounding
    del data["labels"]
    options = {
        "max_new_tokens": 15,
        "do_sample": False,
        "sequence_bias": {(2,): 4.0},
        "decoder_input_ids": tokens(5, prompt),
        "return_dict_in_generate": True,
        "output_scores": True,
        **SEARCHES[name],
    }
    results = []
    for context in (pytest.MonkeyPatch.context(), without_kernels()):
        torch.manual_seed(1)
        with context:
            results.append(model.generate(**data, **options))
    found, expected = results
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert type(found[CACHE_NAME]) is type(expected[CACHE_NAME]) is EncoderDecoderCache
    torch.testing.assert_close(found.scores, expected.scores)
    for actual, plain in zip(states_of(found[CACHE_NAME]), states_of(expected[CACHE_NAME]), strict=True):
        torch.testing.assert_close(actual, plain)


@pytest.mark.parametrize("copies", [1, 3])
def test_a_caller_can_continue_from_the_cache_of_a_search(copies: int) -> None:
    model, data = tiny_model(), batch(rows=4)
    del data["labels"]
    options = {"min_new_tokens": 4, "max_new_tokens": 4}
    samples = {"do_sample": True, "num_return_sequences": copies, "return_dict_in_generate": True}
    found = model.generate(**data, **options, **samples)
    repeated = {name: values.repeat_interleave(copies, dim=0) for name, values in data.items()}
    options |= {"decoder_input_ids": found.sequences, "do_sample": False}
    options["decoder_attention_mask"] = torch.ones_like(found.sequences)  # tells which tokens are cached
    expected = model.generate(**repeated, **options)
    assert model.generate(**repeated, **options, **{CACHE_NAME: found[CACHE_NAME]}).equal(expected)


def test_dropout_drops_as_much() -> None:
    model, data = tiny_model(dropout=0.3, attention_dropout=0.2).train(), batch(rows=40, source=12)
    losses = []
    for context in (pytest.MonkeyPatch.context(), without_kernels()):
        with context:
            losses.append(torch.stack([model(**data).loss.detach() for _ in range(20)]))
    assert abs(losses[0].mean() - losses[1].mean()) < 4 * (losses[0].var() / 20 + losses[1].var() / 20) ** 0.5


def test_every_kernel_is_active_or_gives_a_reason() -> None:
    for name, reason in active_kernels().items():
        assert reason is None or len(reason) > 10, name
