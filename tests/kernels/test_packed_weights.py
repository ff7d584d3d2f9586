"""Packed weights give the same results, are used only where faster, and are released afterwards."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from marian import marian_like
from tiny import batch, tiny_model
from vaswani.kernels.onednn import MIN_PACKED_ROWS, is_available, packed_weight, packed_weights
from vaswani.model.operators import Linear, OutputProjection

pytestmark = pytest.mark.skipif(not is_available(), reason="this PyTorch has no oneDNN, or no MKL")


def is_packed(module: nn.Module) -> bool:
    """Whether a search that runs now computes with packed weights of this module."""
    return packed_weight(module.weight) is not None


@pytest.mark.parametrize("kind", [Linear, OutputProjection])
@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_packed_layers_compute_the_same(bias: bool, kind: type[nn.Linear]) -> None:
    layer = kind(512, 640, bias)
    states = torch.randn(6, 3, 512)
    expected = layer(states)
    with packed_weights([layer], num_rows=6):
        assert is_packed(layer)
        for rows in (6, 1, 4):  # sources leave the batch on the way
            torch.testing.assert_close(layer(states[:rows]), expected[:rows], rtol=1e-5, atol=1e-5)
    assert not is_packed(layer)


@torch.no_grad()
def test_weights_may_change_between_searches() -> None:
    layer, states = Linear(512, 512), torch.randn(4, 512)
    with packed_weights([layer], num_rows=4):
        before = layer(states)
    layer.weight.data.mul_(2.0)
    with packed_weights([layer], num_rows=4):
        torch.testing.assert_close(
            layer(states) - layer.bias, 2 * (before - layer.bias), rtol=1e-4, atol=1e-5
        )


class _Adapted(Linear):
    """What an adapter or a quantized layer is: a linear layer of another kind."""


def test_only_suitable_linear_layers_are_packed() -> None:
    gains = Linear(512, 512)
    replaced = Linear(512, 512)
    replaced.forward = lambda states: states  # type: ignore[method-assign]
    others = [Linear(512, 511), Linear(512, 512).bfloat16(), _Adapted(512, 512), nn.Linear(512, 512)]
    with torch.no_grad(), packed_weights([gains, replaced, *others, nn.GELU()], MIN_PACKED_ROWS):
        assert is_packed(gains)
        assert not any(map(is_packed, [replaced, *others]))


@pytest.mark.parametrize("case", ["gradients", "few rows", "autocast", "switched off"])
def test_nothing_is_packed_with_gradients_few_rows_or_autocast(case: str) -> None:
    layer = Linear(512, 512)
    switched_off = torch.backends.mkldnn.flags(enabled=False) if case == "switched off" else nullcontext()
    autocast = torch.autocast("cpu", torch.bfloat16) if case == "autocast" else nullcontext()
    rows = MIN_PACKED_ROWS - 1 if case == "few rows" else 100
    context = packed_weights([layer], rows)
    with torch.set_grad_enabled(case == "gradients"), switched_off, autocast, context:
        assert not is_packed(layer)


def test_an_error_leaves_no_layer_packed() -> None:
    layer = Linear(512, 512)
    with pytest.raises(KeyError), torch.no_grad(), packed_weights([layer], 8):
        raise KeyError
    assert not is_packed(layer)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_packs_its_decoder(num_beams: int) -> None:
    wide = {"d_model": 512, "decoder_ffn_dim": 512, "encoder_ffn_dim": 16}
    model, data = tiny_model(**wide), batch(rows=5)
    del data["labels"]
    seen: dict[str, bool] = {}
    for name, module in model.named_modules():
        if isinstance(module, (Linear, OutputProjection)):
            module.register_forward_hook(
                lambda module, inputs, output, name=name: seen.__setitem__(name, is_packed(module))
            )
    options = {"num_beams": num_beams, "max_new_tokens": 12, "do_sample": False}
    actual = model.generate(**data, **options)
    packed = {name.partition("layers.")[2][2:] for name, was_packed in seen.items() if was_packed}
    each_step = {f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")}
    each_step |= {"encoder_attn.q_proj", "encoder_attn.out_proj", "fc1", "fc2"}
    assert packed == each_step
    assert not any("encoder." in name for name, was_packed in seen.items() if was_packed)
    with torch.backends.mkldnn.flags(enabled=False):
        assert model.generate(**data, **options).tolist() == actual.tolist()
        assert not seen["model.decoder.layers.0.fc1"]


def test_a_wide_marian_model_generates_the_same() -> None:
    theirs, ours = marian_like(d_model=512, decoder_ffn_dim=512, init_std=0.05)
    data = batch(rows=6, source=9)
    del data["labels"]
    for num_beams in (1, 4):
        options = {"num_beams": num_beams, "max_new_tokens": 20, "do_sample": False}
        assert ours.generate(**data, **options).tolist() == theirs.generate(**data, **options).tolist()
