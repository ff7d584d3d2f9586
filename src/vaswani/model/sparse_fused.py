# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Sparse attention of short sequences on the CPU, by PyTorch's fused attention.

A pattern shows most pairs of a short sequence, or all of them, and fused attention computes a pair sooner
than our kernel does. But a mask costs it a fifth to a half of its time. So, where blocks are large and whole,
query blocks that see everything attend to the keys as they are, and others to those that they see, gathered.

B batch · H heads · n tokens · D head width · N blocks of b tokens
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import torch
from torch import nn

from .sparse_pattern import SparsePattern

# Measured in `benchmarks/sparse_attention.py`'s setting: from here on fused attention is the faster one.
LEAST_SHARE_GATHERED = 0.6  # of the pairs that are visible
LEAST_SHARE_MASKED = 0.75
LEAST_BLOCK_GATHERED = 64  # tokens; of smaller ones the fused kernel has too few queries at a time
LONGEST_MASK = 1024  # tokens


class Way(Enum):
    """In which fused attention computes a sequence."""

    DENSE = "all pairs are visible"
    GATHERED = "each query block attends to the keys that it sees"
    MASKED = "all keys, and a mask"


def fused_sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor | None:
    """What `sparse_attention` returns, without dropout; None where our kernel is the faster one."""
    length = query.shape[-2]
    way = fastest_way(pattern, length)
    if way is None:
        return None
    if padding_mask is not None and padding_mask.all():
        padding_mask = None
    if way is Way.DENSE:
        return _dense_attention(query, key, value, pattern.causal, padding_mask, scaling)
    if padding_mask is not None:
        return None
    if way is Way.GATHERED:
        return _gathered_attention(query, key, value, pattern, scaling)
    mask = pattern.to_dense(length, query.device)[None]
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)


def fastest_way(pattern: SparsePattern, length: int) -> Way | None:
    """Of fused attention without padding; None where our kernel is faster."""
    share = visible_share(pattern, length)
    if share == 1.0:
        return Way.DENSE
    if share >= LEAST_SHARE_GATHERED and _has_large_blocks(pattern, length):
        return Way.GATHERED
    if share >= LEAST_SHARE_MASKED and length <= LONGEST_MASK:
        return Way.MASKED
    return None


@lru_cache(maxsize=4096)
def visible_share(pattern: SparsePattern, length: int) -> float:
    """How many of the pairs that dense attention computes the pattern shows; 0 where it is clearly little."""
    most = pattern.window_blocks + pattern.random_blocks + 2 * pattern.in_blocks().global_blocks
    if length * LEAST_SHARE_GATHERED > 2 * most * pattern.block_size:
        return 0.0
    num_blocks = pattern.num_blocks(length)
    sizes = (pattern.places(torch.arange(length)) // pattern.block_size).bincount(minlength=num_blocks)
    pairs, all_pairs = sizes[:, None] * sizes, length**2
    if pattern.causal:
        pairs.diagonal().copy_(sizes * (sizes + 1) // 2)
        all_pairs = length * (length + 1) // 2
    return (pattern.block_mask(num_blocks) * pairs).sum().item() / (all_pairs * pattern.num_heads)


def _dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: bool,
    padding_mask: torch.Tensor | None,
    scaling: float | None,
) -> torch.Tensor:
    """Of a pattern that shows all pairs."""
    mask = None
    if padding_mask is not None:
        length = query.shape[-2]
        mask = padding_mask.bool()[:, None, None]
        if causal:
            mask = mask & mask.new_ones(length, length).tril()
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal and mask is None, scale=scaling
    )


def _has_large_blocks(pattern: SparsePattern, length: int) -> bool:
    """Whether blocks are large, and each is seen as a whole or not at all."""
    size = pattern.block_size
    return size >= LEAST_BLOCK_GATHERED and length % size == pattern.gap == 0 and not pattern.causal


@dataclass(frozen=True)
class _Group:
    """Query blocks that see as many key blocks each, which is the same number in every head.

    Attributes:
        query_blocks: int64 [T], which of the H · N of a sequence.
        key_blocks: int64 [T, L], what each of them sees; None for all blocks of its head.
    """

    query_blocks: torch.Tensor
    key_blocks: torch.Tensor | None


@lru_cache(maxsize=256)
def _groups(pattern: SparsePattern, num_blocks: int) -> tuple[list[_Group], torch.Tensor]:
    """All query blocks of a sequence, and where in the groups each of them stands: int64 [H · N]."""
    with torch.inference_mode(False):
        visible = pattern.block_mask(num_blocks)
        of_head = num_blocks * torch.arange(pattern.num_heads)[:, None]
        counts, groups = visible[0].sum(dim=-1), []
        for num_seen in counts.unique().tolist():
            rows = (counts == num_seen).nonzero()[:, 0]
            key_blocks = None
            if num_seen < num_blocks:
                seen = visible[:, rows].nonzero()[:, -1].view(pattern.num_heads, -1)
                key_blocks = (of_head + seen).view(-1, num_seen)
            groups.append(_Group((of_head + rows).flatten(), key_blocks))
        return groups, torch.cat([group.query_blocks for group in groups]).argsort()


def _gathered_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    scaling: float | None,
) -> torch.Tensor:
    """Without a mask: to the fused kernel each query block that does not see everything is a head.

    It is faster the more queries a head has, so that all that see everything are called together.
    """
    (batch, heads, length, width), size = query.shape, pattern.block_size
    groups, order = _groups(pattern, length // size)
    queries, keys, values = (
        states.reshape(batch, heads * length // size, size * width) for states in (query, key, value)
    )
    outputs = []
    for group in groups:
        rows = queries.index_select(1, group.query_blocks.to(query.device))
        if group.key_blocks is None:
            heads_of_group = (batch, heads, -1, width)
            seen_keys, seen_values = key, value
        else:
            heads_of_group = (batch, len(group.query_blocks), -1, width)
            seen = group.key_blocks.flatten().to(query.device)
            seen_keys, seen_values = (
                states.index_select(1, seen).view(heads_of_group) for states in (keys, values)
            )
        output = nn.functional.scaled_dot_product_attention(
            rows.view(heads_of_group), seen_keys, seen_values, scale=scaling
        )
        outputs.append(output.reshape(rows.shape))
    output = torch.cat(outputs, dim=1).index_select(1, order.to(query.device))
    return output.view(batch, heads, length, width)
