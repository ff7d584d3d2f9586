"""Attention of half precision is trained in float32 on the CPU, where that is faster."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vaswani.kernels import half_attention
from vaswani.kernels.half_attention import MAX_WEIGHTS
from vaswani.kernels.registry import hook_in_kernels
from vaswani.model.attention import ATTENTION_FUNCTIONS, eager_attention_forward

HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture
def calls() -> Iterator[list[tuple[torch.dtype, bool]]]:
    """Of each call of what goes behind: the dtype that it gets, and whether autocast is on."""
    hook_in_kernels()
    found: list[tuple[torch.dtype, bool]] = []
    before = ATTENTION_FUNCTIONS["sdpa"]

    def record(module: Any, query: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        found.append((query.dtype, torch.is_autocast_enabled("cpu")))
        return before(module, query, *arguments, **options)

    ATTENTION_FUNCTIONS["sdpa"] = record
    half_attention.hook_in()
    yield found
    ATTENTION_FUNCTIONS["sdpa"] = before


def states(dtype: torch.dtype, queries: int = 7, keys: int = 9) -> list[torch.Tensor]:
    """Query, key and value [2, 3, n, 16]."""
    return [torch.randn(2, 3, n, 16, dtype=dtype, requires_grad=True) for n in (queries, keys, keys)]


def attend(given: list[torch.Tensor], mask: torch.Tensor | None = None, attention: Any = None) -> list:
    """The output [B, T, H, D] and the gradients of query, key and value."""
    module = SimpleNamespace(is_causal=False, training=True)
    attention = attention or ATTENTION_FUNCTIONS["sdpa"]
    output, _ = attention(module, *given, mask, scaling=0.25, dropout=0.0)
    return [output, *torch.autograd.grad(output.float().square().sum(), given)]


@pytest.mark.parametrize("kind", ["none", "bool", "additive"])
@pytest.mark.parametrize("dtype", HALVES)
def test_outputs_and_gradients_are_those_of_float32_rounded_once(
    dtype: torch.dtype, kind: str, calls: list
) -> None:
    given = states(dtype)
    mask = torch.rand(2, 1, 7, 9) < 0.7 if kind == "bool" else torch.randn(2, 1, 7, 9).to(dtype)
    used = None if kind == "none" else mask
    exact = [each.detach().float().requires_grad_() for each in given]
    exact_mask = used.float() if used is not None and kind == "additive" else used
    results, expected = attend(given, used), attend(exact, exact_mask, eager_attention_forward)
    assert calls == [(torch.float32, False)]
    assert [each.dtype for each in results] == [dtype] * 4
    for actual, exactly in zip(results, expected, strict=True):
        torch.testing.assert_close(actual.float(), exactly, rtol=0.02, atol=0.02)


def test_autocast_does_not_convert_the_states_back(calls: list) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        attend(states(torch.bfloat16))
    assert calls == [(torch.float32, False)]


@pytest.mark.parametrize("case", ["float32", "no gradient", "long"])
def test_everything_else_keeps_its_precision(case: str, calls: list) -> None:
    dtype = torch.float32 if case == "float32" else torch.bfloat16
    long = int(MAX_WEIGHTS**0.5) + 1
    given = states(dtype, *((long, long) if case == "long" else (7, 9)))
    module = SimpleNamespace(is_causal=False, training=True)
    with torch.set_grad_enabled(case != "no gradient"):
        output, _ = ATTENTION_FUNCTIONS["sdpa"](module, *given, None, scaling=0.25)
        expected, _ = eager_attention_forward(module, *given, None, scaling=0.25)
    torch.testing.assert_close(output, expected, rtol=0.02, atol=0.02)
    assert calls == [(dtype, False)]
