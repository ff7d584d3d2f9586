"""Attention over short sequences on the CPU, by plain batched matrix products.

PyTorch's fused kernel processes blocks of queries and keys, so that it never holds all weights; on the CPU it
does not support dropout. A sentence has a few dozen tokens: its weights are small, and the fused kernel
spends its time on blocks that are nearly empty. On two cores, forward and backward, this module takes half of
the fused kernel's time for 10 tokens of 8 heads × 64, and four fifths for 30 tokens. With dropout, PyTorch
falls back to a chain of separate operations; this module takes about half of their time.

B batch · T queries · S keys · H heads · Dk, Dv widths of keys and values
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface

from vaswani.kernels.dropout import LEVELS, draw_kept, drop
from vaswani.kernels.one_width import ready_for_fused_kernel
from vaswani.model.attention import ATTENTION_FUNCTIONS, additive_mask
from vaswani.model.input_checks import has_values

MAX_WEIGHTS = 45**2  # of one head and row; with more, the fused kernel is faster on one thread


def unavailable() -> str | None:
    """Return why short attention cannot be used, or None if it can."""
    if not hasattr(torch, "_softmax_backward_data"):
        return "this PyTorch has no torch._softmax_backward_data"
    return None


def hook_in() -> None:
    """Replace the attention implementation "sdpa" for our models; other models keep the library's."""
    ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward


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
    """Compute softmax(QKᵀ · scaling + mask) V by short attention or the library, whichever is faster."""
    is_short = gains_from_short_attention(query, key, attention_mask, dropout)
    attention = short_attention_forward if is_short else _fused_attention_forward
    return attention(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)


_LIBRARY = AttentionInterface()


def _fused_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *inputs: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Call the library's "sdpa", with states of one width if that is faster."""
    states = ready_for_fused_kernel(query, key, value)
    output, _ = _LIBRARY["sdpa"](module, *states, *inputs, **kwargs)
    return output[..., : value.shape[-1]], None


def gains_from_short_attention(
    query: torch.Tensor, key: torch.Tensor, attention_mask: torch.Tensor | None, dropout: float
) -> bool:
    """Return whether short attention is faster for queries [B, H, T, Dk] and keys [B, H, S, Dk]."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    return (
        has_values(query)
        and query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
        and (dropout > 0 or (num_queries > 1 and num_queries * num_keys <= MAX_WEIGHTS))
        and round(dropout * LEVELS) < LEVELS
        and not (attention_mask is not None and attention_mask.requires_grad)
    )


def short_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(QKᵀ · scaling + mask) V (equation 1 of the paper), differentiable once.

    Query [B, H, T, Dk], key [B, H, S, Dk] and value [B, H, S, Dv]; the mask is bool (True: visible) or
    additive float and broadcasts to [B, H, T, S]; None hides nothing, or later keys if `module.is_causal`.
    Returns the output [B, T, H, Dv], and None for the weights, as the library's kernels do. A row that sees
    nothing is zero.
    """
    attention_mask = additive_mask_of(module, query, key, attention_mask)
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if dropout or needs_gradient:
        output = _ShortAttention.apply(query, key, value, attention_mask, scaling, round(dropout * LEVELS))
    else:
        output = _weights(query, key, attention_mask, scaling) @ value
    return output.transpose(1, 2), None


def additive_mask_of(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the mask as additive float, the causal mask if none is given; None if nothing is hidden."""
    if mask is None and module.is_causal and query.shape[2] > 1:
        mask = query.new_ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    return None if mask is None else additive_mask(mask, query.dtype)


def _weights(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Return softmax(QKᵀ · scaling + mask): [B, H, T, S], zero for rows that see nothing."""
    if mask is None:
        return weights_of_seen(query, key, None, scaling)
    sees_something = (mask > torch.finfo(mask.dtype).min).any(-1, keepdim=True)
    if sees_something.all():
        return weights_of_seen(query, key, mask, scaling)
    finite = mask.masked_fill(~sees_something, 0.0)
    return weights_of_seen(query, key, finite, scaling).mul_(sees_something)


def weights_of_seen(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """Return the same weights, assuming that every row sees something."""
    scores = query @ key.transpose(-2, -1)
    if mask is None:
        return scores.mul_(scaling).softmax(-1)
    return torch.add(mask, scores, alpha=scaling, out=scores).softmax(-1)


def _heads_apart(states: torch.Tensor) -> torch.Tensor:
    """Return states [B, H, n, D], copied if every batched product would otherwise copy them."""
    return states.flatten(0, 1).view(states.shape)


class _ShortAttention(torch.autograd.Function):
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
        """[B, H, T, Dk], [B, H, S, Dk] and [B, H, S, Dv] -> [B, H, T, Dv]."""
        query, key, value = map(_heads_apart, (query, key, value))
        weights = _weights(query, key, mask, scaling)
        kept = draw_kept(weights.shape, num_dropped_levels) if num_dropped_levels else None
        ctx.scaling, ctx.num_dropped_levels = scaling, num_dropped_levels
        ctx.save_for_backward(query, key, value, weights, kept)
        return (weights if kept is None else drop(weights, kept, num_dropped_levels)) @ value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Softmax's gradient is w · (g − Σ w g)."""
        query, key, value, weights, kept = ctx.saved_tensors
        grad = _heads_apart(grad)
        grad_weights = grad @ value.transpose(-2, -1)
        dropped = weights
        if kept is not None:
            grad_weights = drop(grad_weights, kept, ctx.num_dropped_levels)
            dropped = drop(weights, kept, ctx.num_dropped_levels)
        grad_value = dropped.transpose(-2, -1) @ grad
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_scores.mul_(ctx.scaling)
        return grad_scores @ key, grad_scores.transpose(-2, -1) @ query, grad_value, None, None, None
