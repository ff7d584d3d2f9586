# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Sparse attention: softmax(QKᵀ / sqrt(D)) V over the pairs that a `SparsePattern` lets see each other.

The truth is plain softmax attention under the pattern's dense mask; every kernel here equals it.

B batch · H heads · n tokens · D head width
"""

from dataclasses import astuple

import torch

from .sparse_kernel import sparse_attention_kernel
from .sparse_pattern import SparsePattern


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
        query, key, value: [B, H, n, D], of one floating dtype; half precision is computed in float32.
        pattern: who sees whom; its `num_heads` is H.
        padding_mask: [B, n], 0 or False for keys that nobody may see; None shows all.
        scaling: 1 / sqrt(D) by default.
        dropout: the probability with which each weight is dropped (to the nearest 1/65536). The choice hangs
            on one number drawn from PyTorch's global random state.

    Returns:
        [B, H, n, D]. A row that sees nothing is zero, and so are its gradients.

    Raises:
        ValueError: when the shapes do not fit each other or the pattern.
    """
    _check_shapes(query, key, value, pattern, padding_mask)
    return sparse_attention_kernel(
        query,
        key,
        value,
        None if padding_mask is None else padding_mask.bool(),
        torch.randint(2**62, ()) if dropout else None,
        [int(number) for number in astuple(pattern)],
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout,
    )


def _check_shapes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
) -> None:
    batch, heads, length, _ = query.shape
    if key.shape != query.shape or value.shape != query.shape:
        shapes = ", ".join(str(list(states.shape)) for states in (query, key, value))
        raise ValueError(f"query, key and value must have one shape [B, H, n, D]; got {shapes}.")
    if heads != pattern.num_heads:
        raise ValueError(f"the query has {heads} heads and the pattern num_heads={pattern.num_heads}.")
    if padding_mask is not None and padding_mask.shape != (batch, length):
        raise ValueError(f"padding_mask must be [{batch}, {length}]; got {list(padding_mask.shape)}.")
