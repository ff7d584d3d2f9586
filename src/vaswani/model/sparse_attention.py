# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Sparse attention: softmax(QKᵀ / sqrt(D)) V over the pairs that a `SparsePattern` lets see each other.

The truth is plain softmax attention under the pattern's dense mask; every kernel here equals it.

B batch · H heads · n tokens · D head width
"""

from functools import lru_cache

import torch
from torch import nn
from transformers.utils import is_tracing

from .sparse_flex import flex_sparse_attention
from .sparse_kernel import as_numbers, sparse_attention_kernel, sparse_key_blocks
from .sparse_pattern import SparsePattern

STEP = 64  # rows that continue a cache at a time, each with keys of its own


def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """softmax(QKᵀ · scaling) V over the pairs that the pattern and the padding mask let see each other.

    Args:
        query, key, value: [B, H, n, D], of one floating dtype; the CPU computes half precision in float32.
        pattern: who sees whom; its `num_heads` is H.
        padding_mask: [B, n], 0 or False for keys that nobody may see; None shows all.
        scaling: 1 / sqrt(D) by default.
        dropout: the probability with which each weight is dropped, less than 1 (on the CPU to the nearest
            1/65536). The choice hangs on one number drawn from PyTorch's global random state.

    Returns:
        [B, H, n, D]. A row that sees nothing is zero, and so are its gradients.

    Raises:
        ValueError: when shapes or dtypes do not fit each other or the pattern, for a dropout outside of
            [0, 1), and on CUDA for a D less than 16.
    """
    _check_inputs(query, key, value, pattern, padding_mask, dropout)
    if query.device.type == "cuda":
        return flex_sparse_attention(query, key, value, pattern, padding_mask, scaling, dropout)
    if not dropout and not is_tracing(query) and shows_everything(pattern, query.shape[-2]):
        return _dense_attention(query, key, value, pattern.causal, padding_mask, scaling)
    has_gap = pattern.gap and query.shape[-2] > pattern.global_tokens
    if has_gap:  # fill it with tokens that nobody sees
        query, key, value = (_with_gap(states, pattern, dim=2) for states in (query, key, value))
        shown = query.new_ones(1, 1) if padding_mask is None else padding_mask
        shown = shown.bool().expand(query.shape[0], query.shape[2] - pattern.gap)
        padding_mask = _with_gap(shown, pattern, dim=1)
    output, _ = sparse_attention_kernel(
        query,
        key,
        value,
        None if padding_mask is None else padding_mask.bool(),
        torch.randint(2**62, ()) if dropout else None,
        as_numbers(pattern),
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout,
    )
    if has_gap:
        end = pattern.global_tokens + pattern.gap
        output = torch.cat([output[:, :, : pattern.global_tokens], output[:, :, end:]], dim=2)
    return output


@lru_cache(maxsize=4096)
def shows_everything(pattern: SparsePattern, length: int) -> bool:
    """Whether a short sequence of so many tokens is computed by dense attention, as all see all."""
    num_blocks = pattern.num_blocks(length)
    if num_blocks > pattern.in_blocks().global_blocks + pattern.window_blocks + pattern.random_blocks:
        return False
    visible = pattern.block_mask(num_blocks)
    return bool((visible | visible.new_ones(visible.shape).triu(1) if pattern.causal else visible).all())


def _dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    padding_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Of a pattern that shows all pairs, by PyTorch's fused kernel, which is faster without a mask."""
    mask = None
    if padding_mask is not None and not padding_mask.all():
        mask = padding_mask.bool()[:, None, None]
        if causal:
            mask = mask & mask.new_ones(query.shape[-2], query.shape[-2]).tril()
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and mask is None, scale=scaling
    )


def _with_gap(states: torch.Tensor, pattern: SparsePattern, dim: int) -> torch.Tensor:
    """Zeros (False) behind the global tokens, so that the others begin a block."""
    start, rest = states.tensor_split([pattern.global_tokens], dim)
    gap = rest.new_zeros(*rest.shape[:dim], pattern.gap, *rest.shape[dim + 1 :])
    return torch.cat([start, gap, rest], dim)


def _check_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    dropout: float,
) -> None:
    states = (query, key, value)
    if query.ndim != 4 or key.shape != query.shape or value.shape != query.shape:
        shapes = ", ".join(str(list(each.shape)) for each in states)
        raise ValueError(f"query, key and value must have one shape [B, H, n, D]; got {shapes}.")
    if not query.is_floating_point() or not query.dtype == key.dtype == value.dtype:
        dtypes = ", ".join(str(each.dtype) for each in states)
        raise ValueError(f"query, key and value must have one floating dtype; got {dtypes}.")
    batch, heads, length, _ = query.shape
    if heads != pattern.num_heads:
        raise ValueError(f"the query has {heads} heads and the pattern num_heads={pattern.num_heads}.")
    if padding_mask is not None and padding_mask.shape != (batch, length):
        raise ValueError(f"padding_mask must be [{batch}, {length}]; got {list(padding_mask.shape)}.")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout={dropout} must be at least 0 and less than 1.")


def dense_mask(
    pattern: SparsePattern,
    num_rows: int,
    num_tokens: int,
    past_length: int | torch.Tensor = 0,
    padding_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """The reference: who may see whom, bool [B, H, T, S] (B is 1 without padding).

    Args:
        pattern: who sees whom.
        num_rows, past_length: the rows are the T tokens after so many.
        num_tokens: S, at least T more than came before.
        padding_mask: [B, at most S], 0 or False for keys that nobody may see; those behind are hidden too.
        device: of the mask.
    """
    rows = past_length + torch.arange(num_rows, device=device)
    visible = pattern.to_dense(num_tokens, device)[None, :, rows]
    if padding_mask is not None:
        shown = padding_mask.to(device=device, dtype=torch.bool)
        shown = nn.functional.pad(shown, (0, num_tokens - shown.shape[1]))
        visible = visible & shown[:, None, None]
    return visible


def sparse_attention_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    past_length: int | torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
) -> torch.Tensor:
    """The last rows of causal `sparse_attention`, from a cache of keys of which only those seen are read.

    Args:
        query: [B, H, T, D], of the tokens `past_length` to `past_length` + T − 1.
        key, value: [B, H, S, D], S at least `past_length` + T; what lies behind is not looked at.
        pattern: causal.
        past_length: an integer, or an int64 tensor [] for a cache of fixed size.
        padding_mask: [B, at least `past_length` + T], 0 or False for keys that nobody may see.
        scaling: 1 / sqrt(D) by default.

    Returns:
        [B, H, T, D].
    """
    rows = past_length + torch.arange(query.shape[2], device=query.device)
    steps = zip(query.split(STEP, dim=2), rows.split(STEP), strict=True)
    outputs = [_attend(step, key, value, pattern, row, padding_mask, scaling) for step, row in steps]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    rows: torch.Tensor,
    padding_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Attention from some rows [T]: query [B, H, T, D] -> [B, H, T, D]."""
    tokens, seen = visible_tokens(pattern, rows, key.shape[2])  # [H, T, M]
    seen = seen[None]
    if padding_mask is not None:
        seen = seen & padding_mask.bool()[:, tokens.clamp(max=padding_mask.shape[1] - 1)]
    head = torch.arange(len(tokens), device=tokens.device)[:, None, None]
    keys, values = key[:, head, tokens], value[:, head, tokens]  # [B, H, T, M, D]
    # Each row has keys of its own, so that to the kernel it is a head with one query.
    output = nn.functional.scaled_dot_product_attention(
        query.flatten(1, 2)[:, :, None],
        keys.flatten(1, 2),
        values.flatten(1, 2),
        attn_mask=seen.flatten(1, 2)[:, :, None],
        scale=scaling,
    )
    return output.view_as(query)


def visible_tokens(
    pattern: SparsePattern, rows: torch.Tensor, num_tokens: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens in the blocks that each row of a causal pattern sees.

    Args:
        pattern: causal.
        rows: int64 [T], tokens.
        num_tokens: how many there are.

    Returns:
        int64 [H, T, M] and bool [H, T, M], whether the row sees the token; where not, it may be any.
    """
    size = pattern.block_size
    # The pattern of a row does not depend on the length, so that one table serves for twice as many tokens.
    num_blocks = 1 << (pattern.num_blocks(num_tokens) - 1).bit_length()
    blocks = sparse_key_blocks(as_numbers(pattern), num_blocks, pattern.places(rows) // size)  # [H, T, L]
    places = blocks[..., None] * size + torch.arange(size, device=rows.device)
    places = places.flatten(-2)  # [H, T, M]
    is_behind = places >= pattern.global_tokens + pattern.gap
    tokens = places - pattern.gap * is_behind
    is_token = is_behind | (places < pattern.global_tokens) if pattern.gap else tokens >= 0
    seen = is_token & (tokens <= rows[:, None])
    return tokens.clamp(0, num_tokens - 1), seen
