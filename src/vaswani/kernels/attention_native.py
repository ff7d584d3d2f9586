"""Attention over short sequences on the CPU by C++ (`attention_native.cpp`), compiled at the first call.

The C++ code makes one pass over the heads of all rows, instead of batched products, a softmax and copies of
the heads: for 15 tokens of 4 heads × 32 numbers it takes half the time of `short_attention`, forward and
backward.

B batch · T queries · S keys · P = S, rounded up to whole vectors · H heads · Dk, Dv widths of keys and values
"""

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from vaswani.kernels import short_attention
from vaswani.kernels.dropout import LEVELS, draw_kept
from vaswani.kernels.native_library import native_library, why_not_compiled
from vaswani.model.attention import ATTENTION_FUNCTIONS

SOURCE = Path(__file__).with_name("attention_native.cpp")


def unavailable() -> str | None:
    """Return why nothing can be compiled here or short attention cannot be used; None if both work."""
    return short_attention.unavailable() or why_not_compiled(SOURCE)


def hook_in() -> None:
    """Put this kernel before short attention, for the cases that short attention would compute."""
    ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    compiled = None if unavailable() is not None else native_library(SOURCE, structures=(_Call,))
    if compiled is not None:
        compiled.vaswani_vector_width.restype = ctypes.c_int64
        for function in (compiled.vaswani_attention, compiled.vaswani_attention_backward):
            function.argtypes, function.restype = (ctypes.POINTER(_Call),), None
    return compiled


def sdpa_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute softmax(QKᵀ · scaling + mask) V by the library if it can, else as without this kernel.

    Arguments and results are those of `short_attention.short_attention_forward`. The library always prepares
    gradients, so calls without gradients use the other kernels.
    """
    arguments = (module, query, key, value, attention_mask, scaling, dropout)
    needs_gradient = torch.is_grad_enabled() and query.requires_grad
    if not (needs_gradient and can_compute(query, key, value, attention_mask, dropout)):
        return short_attention.sdpa_attention_forward(*arguments, **kwargs)
    mask = short_attention.additive_mask_of(module, query, key, attention_mask)
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    return _NativeAttention.apply(query, key, value, mask, scaling, round(dropout * LEVELS)), None


def can_compute(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
) -> bool:
    """Return whether the library can compute queries, keys and values: short sequences in float32."""
    return (
        short_attention.gains_from_short_attention(query, key, attention_mask, dropout)
        and query.shape[2] * key.shape[2] <= short_attention.MAX_WEIGHTS
        and query.dtype == key.dtype == value.dtype == torch.float32
        and (attention_mask is None or attention_mask.dtype in (torch.bool, torch.float32))
        and library() is not None
    )


class _NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scaling: float,
        num_dropped_levels: int,
    ) -> torch.Tensor:
        """[B, H, T, Dk], [B, H, S, Dk] and [B, H, S, Dv], mask float [B, H, T, S] -> [B, T, H, Dv]."""
        compiled = library()
        assert compiled is not None  # checked by `can_compute`
        vector = compiled.vaswani_vector_width()
        shape = (*query.shape[:3], key.shape[2])
        weights = query.new_empty(*shape[:3], -(-shape[3] // vector) * vector)  # [B, H, T, P]
        kept = draw_kept(torch.Size(shape), num_dropped_levels) if num_dropped_levels else None
        ctx.scaling, ctx.kept_scale = scaling, LEVELS / (LEVELS - num_dropped_levels)
        output = _with_heads_last(query, value.shape[3])
        states = {"query": query, "key": key, "value": value, "output": output}
        _call(compiled.vaswani_attention, ctx, states, mask, weights, kept)
        ctx.save_for_backward(query, key, value, weights, kept)
        return output.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of query, key and value from that of the output, [B, T, H, Dv]."""
        query, key, value, weights, kept = ctx.saved_tensors
        compiled = library()
        assert compiled is not None
        gradients = {
            f"grad_{name}": _with_heads_last(each, each.shape[3])
            for name, each in (("query", query), ("key", key), ("value", value))
        }
        states = {"query": query, "key": key, "value": value, "upstream": upstream.transpose(1, 2)}
        _call(compiled.vaswani_attention_backward, ctx, states | gradients, None, weights, kept)
        return *gradients.values(), None, None, None


def _with_heads_last(states: torch.Tensor, width: int) -> torch.Tensor:
    """Return new states [B, H, n, width] with the memory layout [B, n, H, width], which the layers use."""
    batch, heads, length, _ = states.shape
    return states.new_empty(batch, length, heads, width).transpose(1, 2)


def _call(
    function: Any,
    ctx: Any,
    states: dict[str, torch.Tensor],
    mask: torch.Tensor | None,
    weights: torch.Tensor,
    kept: torch.Tensor | None,
) -> None:
    """Call a function of the library, which writes its results into some of the `states` [B, H, n, D]."""
    batch, heads, queries, key_width = states["query"].shape
    _, _, keys, value_width = states["value"].shape
    call = _Call(
        *(batch, heads, queries, keys, key_width, value_width),
        threads=min(torch.get_num_threads(), batch * heads),
        mask=None if mask is None else mask.data_ptr(),
        kept=None if kept is None else kept.data_ptr(),
        weights=weights.data_ptr(),
        scaling=ctx.scaling,
        kept_scale=ctx.kept_scale,
    )
    # This keeps copies alive until the call is over.
    in_rows = {name: each if each.stride(-1) == 1 else each.contiguous() for name, each in states.items()}
    for name, each in in_rows.items():
        setattr(call, name, _States(each.data_ptr(), *each.stride()[:3]))
    if mask is not None:
        call.mask_batch, call.mask_head, call.mask_row, call.mask_column = mask.stride()
    function(ctypes.byref(call))


# These two match the structures of the same names in `attention_native.cpp`.
class _States(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("batch", "head", "row")),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("key_width", "value_width", "threads")),
        *((name, _States) for name in ("query", "key", "value", "output", "upstream")),
        *((name, _States) for name in ("grad_query", "grad_key", "grad_value")),
        ("mask", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("mask_batch", "mask_head", "mask_row", "mask_column")),
        *((name, ctypes.c_void_p) for name in ("kept", "weights")),
        *((name, ctypes.c_double) for name in ("scaling", "kept_scale")),
    )
