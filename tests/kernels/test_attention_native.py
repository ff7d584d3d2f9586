"""Attention by C++ equals the reference, with gradients, and short attention under the same dropout."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vaswani.kernels import attention_native
from vaswani.kernels.attention_native import sdpa_attention_forward
from vaswani.kernels.short_attention import short_attention_forward
from vaswani.model.attention import eager_attention_forward

pytestmark = pytest.mark.skipif(
    attention_native.library() is None,
    reason="NO C++ KERNEL: there is no compiler, or the processor is none of ours",
)

SHAPES = [  # B, H, T, S, Dk, Dv
    *((3, 2, 1, 5, 16, 16), (2, 4, 7, 40, 32, 32), (5, 3, 17, 16, 64, 64), (2, 2, 33, 3, 32, 32)),
    *((2, 3, 9, 20, 16, 48), (2, 3, 20, 9, 48, 16), (2, 3, 5, 20, 12, 12), (2, 1, 20, 5, 21, 1)),
]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The queries that the library attended with."""
    found: list[torch.Size] = []
    apply = attention_native._NativeAttention.apply

    def record(query: torch.Tensor, *arguments: Any) -> torch.Tensor:
        found.append(query.shape)
        return apply(query, *arguments)

    monkeypatch.setattr(attention_native._NativeAttention, "apply", record)
    return found


def states(
    batch: int, heads: int, queries: int, keys: int, width: int, value_width: int | None = None
) -> list[torch.Tensor]:
    """Query, key, value [B, H, n, D], as layers make them, and the gradient of the output."""
    value_width = value_width or width
    of_heads = [
        torch.randn(batch, n, heads, each, requires_grad=True)
        for n, each in ((queries, width), (keys, width), (keys, value_width))
    ]
    return [*(each.transpose(1, 2) for each in of_heads), torch.randn(batch, queries, heads, value_width)]


def results(attention: Any, inputs: list[torch.Tensor], mask: torch.Tensor | None, **options: Any) -> list:
    """The output [B, T, H, Dv] and the gradients."""
    *given, upstream = inputs
    module = SimpleNamespace(is_causal=options.pop("causal", False), training=True)
    torch.manual_seed(0)
    output, _ = attention(module, *given, mask, scaling=0.2, **options)
    return [output, *torch.autograd.grad(output, given, upstream)]


def masks(shape: tuple[int, ...], kind: str) -> torch.Tensor | None:
    batch, heads, queries, keys, *_ = shape
    if kind == "padding":
        mask = torch.rand(batch, 1, 1, keys) < 0.7
        mask[0] = False  # a row that sees nothing
        return mask
    if kind == "any":
        return torch.rand(batch, heads, queries, keys) < 0.6
    return torch.randn(1, heads, queries, keys) if kind == "additive" else None


@pytest.mark.parametrize("kind", ["none", "padding", "any", "additive"])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_equal_the_reference(shape: tuple, kind: str, calls: list) -> None:
    inputs, mask = states(*shape), masks(shape, kind)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    exact_mask = mask.double() if kind == "additive" and mask is not None else mask
    expected = results(eager_attention_forward, exact, exact_mask)
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for actual, reference in zip(
            results(sdpa_attention_forward, inputs, mask, dropout=0.0), expected, strict=True
        ):
            torch.testing.assert_close(actual.double(), reference, rtol=1e-4, atol=1e-5)
    torch.set_num_threads(before)
    assert len(calls) == (0 if shape[2] == 1 else 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_drops_what_short_attention_drops(shape: tuple, calls: list) -> None:
    inputs, mask = states(*shape), masks(shape, "padding")
    ours = results(sdpa_attention_forward, inputs, mask, dropout=0.3)
    for actual, expected in zip(
        ours, results(short_attention_forward, inputs, mask, dropout=0.3), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert calls
    assert not torch.equal(ours[0], results(sdpa_attention_forward, inputs, mask, dropout=0.4)[0])


def test_without_a_mask_a_causal_layer_does_not_see_later_keys(calls: list) -> None:
    inputs = states(2, 2, 9, 9, 16)
    visible = torch.ones(9, 9, dtype=torch.bool).tril().expand(1, 1, 9, 9)
    causal = results(sdpa_attention_forward, inputs, None, causal=True)
    for actual, expected in zip(causal, results(sdpa_attention_forward, inputs, visible), strict=True):
        assert torch.equal(actual, expected)
    assert len(calls) == 2


def test_one_query_of_a_causal_layer_sees_all_keys_before_it(calls: list) -> None:
    inputs = states(2, 2, 1, 9, 16)
    ours = results(sdpa_attention_forward, inputs, None, causal=True, dropout=0.3)
    expected = results(short_attention_forward, inputs, None, causal=True, dropout=0.3)
    for actual, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-5)
    assert calls


def test_non_finite_numbers_are_propagated() -> None:
    inputs = states(2, 2, 5, 6, 16)
    with torch.no_grad():
        inputs[0][1, 0, 2] = torch.nan
    output = results(sdpa_attention_forward, inputs, None)[0]
    assert output[1, 2, 0].isnan().all()
    assert output.isnan().sum() == 16


@pytest.mark.parametrize("case", ["float64", "long", "no gradient", "no library"])
def test_other_cases_fall_back_to_other_kernels(
    case: str, calls: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "no library":
        monkeypatch.setattr(attention_native, "library", lambda: None)
    length = 60 if case == "long" else 5
    inputs = states(2, 2, length, length, 16)
    if case == "float64":
        inputs = [each.double() for each in inputs]
    module = SimpleNamespace(is_causal=False, training=True)
    with torch.set_grad_enabled(case != "no gradient"):
        output, _ = sdpa_attention_forward(module, *inputs[:3], None, scaling=0.2)
        expected, _ = eager_attention_forward(module, *inputs[:3], None, scaling=0.2)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    assert not calls
