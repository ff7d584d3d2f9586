"""Plain products for short sequences equal the reference, in outputs, gradients and dropout."""

import pytest
import torch
from torch import nn

from tiny import batch, tiny_model
from vaswani.kernels import attention_native, search, short_attention
from vaswani.kernels.dropout import draw_kept
from vaswani.kernels.short_attention import (
    gains_from_short_attention,
    sdpa_attention_forward,
    short_attention_forward,
)
from vaswani.model.attention import eager_attention_forward


def states(
    rows: int = 3, heads: int = 2, queries: int = 5, keys: int = 7, dtype=torch.float64, widths=(4, 6)
):
    """Query, key and value as a layer makes them: heads beside tokens in memory."""
    key_width, value_width = widths
    shapes = [
        (rows, length, heads, width)
        for length, width in ((queries, key_width), (keys, key_width), (keys, value_width))
    ]
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def masks(rows: int = 3, queries: int = 5, keys: int = 7) -> dict[str, torch.Tensor | None]:
    """Of every form that layers hand over; in one of them rows and single queries see nothing."""
    some = torch.rand(rows, 1, queries, keys) < 0.7
    some[..., 0] = True
    nothing = some.clone()
    nothing[1] = False
    nothing[2, :, 3] = False
    additive = torch.zeros(nothing.shape, dtype=torch.float64).masked_fill_(~nothing, -torch.inf)
    padding = some[:, :, :1].expand(-1, -1, queries, -1)
    return {
        "none": None,
        "some": some,
        "nothing": nothing,
        "additive": additive,
        "padding": padding,
        "lowest": additive.clamp(min=torch.finfo(additive.dtype).min),
        "bias": torch.randn(queries, keys).double(),
    }


def module(is_causal: bool = False) -> nn.Module:
    module = nn.Module()
    module.is_causal = is_causal  # type: ignore[assignment]
    return module


@pytest.mark.parametrize("name", masks())
def test_outputs_and_gradients_equal_the_reference(name: str) -> None:
    inputs, mask = states(), masks()[name]
    results = []
    for attention in (short_attention_forward, eager_attention_forward):
        output, _ = attention(module(), *inputs, mask, scaling=0.3)
        results.append((output, *torch.autograd.grad(output, inputs, torch.ones_like(output).cumsum(1))))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        alone, _ = short_attention_forward(module(), *inputs, mask, scaling=0.3)
    torch.testing.assert_close(alone, results[0][0])


def test_without_a_mask_is_causal_of_the_module_decides() -> None:
    inputs = states(queries=6, keys=6)
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    actual, _ = short_attention_forward(module(is_causal=True), *inputs, None, scaling=0.3)
    expected, _ = eager_attention_forward(module(), *inputs, visible, 0.3)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", masks())
def test_dropout_equals_the_reference_with_the_same_choice(name: str) -> None:
    inputs, mask, levels = states(), masks()[name], 2**14
    torch.manual_seed(5)
    output, _ = short_attention_forward(module(), *inputs, mask, scaling=0.3, dropout=0.25)
    torch.manual_seed(5)
    kept = draw_kept(torch.Size((3, 2, 5, 7)), levels)
    _, weights = eager_attention_forward(module(), *inputs, mask, 0.3)
    expected = ((weights * kept / 0.75) @ inputs[2]).transpose(1, 2)
    torch.testing.assert_close(output, expected)
    grad = torch.randn_like(output)
    for mine, reference in zip(
        torch.autograd.grad(output, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("widths", [(4, 6), (6, 4)])
def test_the_fused_kernel_takes_two_widths(widths: tuple[int, int]) -> None:
    inputs = states(queries=60, keys=60, widths=widths)
    assert not gains_from_short_attention(*inputs[:2], None, 0.0)
    mask, results = masks(queries=60, keys=60)["some"], []
    for attention in (sdpa_attention_forward, eager_attention_forward):
        output, _ = attention(module(), *inputs, mask, scaling=0.3)
        results.append((output, *torch.autograd.grad(output, inputs, torch.ones_like(output).cumsum(1))))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_short_attention_is_used_only_where_it_is_faster() -> None:
    def gains(queries: int, keys: int, dropout: float = 0.0, dtype=torch.float32, mask=None) -> bool:
        query, key, _ = states(queries=queries, keys=keys, dtype=dtype)
        return gains_from_short_attention(query, key, mask, dropout)

    assert gains(10, 10)
    assert gains(4, 500)  # the beams of a step
    assert not gains(1, 10)
    assert not gains(60, 60)
    assert gains(60, 60, dropout=0.1)
    assert not gains(10, 10, dropout=1.0)
    assert not gains(10, 10, dtype=torch.bfloat16)
    assert not gains(10, 10, mask=torch.zeros(10, 10, requires_grad=True))


@pytest.mark.parametrize("fields", [{}, {"attention_dropout": 0.3}])
def test_layers_use_short_attention_in_training(
    fields: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def record(*arguments, **options):
        calls.append(options["dropout"])
        return short_attention_forward(*arguments, **options)

    monkeypatch.setattr(short_attention, "short_attention_forward", record)
    monkeypatch.setattr(attention_native, "library", lambda: None)
    model, data = tiny_model("sdpa", **fields), batch()
    model.train()(**data)
    assert calls == [fields.get("attention_dropout", 0.0)] * 6  # two layers of one, two of two attentions
    model.set_attn_implementation("eager")
    model(**data)
    assert len(calls) == 6


@pytest.mark.parametrize("num_beams", [1, 4])
def test_beam_search_steps_use_short_attention(num_beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []

    def record(module: nn.Module, query: torch.Tensor, *arguments, **options):
        shapes.append(tuple(query.shape))
        return short_attention_forward(module, query, *arguments, **options)

    monkeypatch.setattr(short_attention, "short_attention_forward", record)
    monkeypatch.setattr(search, "is_plain", lambda model: False)  # a step by the calls of modules
    model, data = tiny_model("sdpa"), batch()
    source = {name: data[name] for name in ("input_ids", "attention_mask")}
    model.generate(**source, num_beams=num_beams, max_new_tokens=3)
    layers_times_steps = 2 * 2 * 2  # self-attention and the source's, two layers, two steps after the prompt
    steps = [shape for shape in shapes if shape[:2] == (3, 2)]
    assert steps == ([(3, 2, 4, 16)] * layers_times_steps if num_beams == 4 else [])


def test_dropout_survives_gradient_checkpointing() -> None:
    """The second forward pass drops what the first one did."""
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model, data = tiny_model("sdpa", attention_dropout=0.3), batch()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)
        model.train()(**data).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients))
