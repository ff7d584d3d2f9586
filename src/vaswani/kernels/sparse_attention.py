"""Sparse attention as a standalone function, which checks its arguments and uses the fastest kernel.

The models call `vaswani.model.sparse_attention.attend_by_pattern` directly. Without a model, call
`vaswani.kernels.registry.hook_in_kernels()` once; otherwise PyTorch's operators compute.

B batch · H heads · n tokens · Dk width of queries and keys · Dv width of values
"""

import torch

from vaswani.model.sparse_attention import attend_by_pattern
from vaswani.model.sparse_pattern import SparsePattern


def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Compute self-attention under a pattern.

    Args:
        query, key: [B, H, n, Dk], of one floating dtype.
        value: [B, H, n, Dv], of the same dtype.
        pattern: which tokens see each other; its `num_heads` is H.
        padding_mask: [B, n], 0 or False for hidden keys; None shows all.
        scaling: 1 / sqrt(Dk) by default.
        dropout: the probability of dropping a weight, less than 1. Draws from PyTorch's global random state.

    Returns:
        [B, H, n, Dv]. A row that sees nothing is zero, and so are its gradients.

    Raises:
        ValueError: when shapes or dtypes do not fit each other or the pattern, or for a dropout outside of
            [0, 1).
    """
    _check_inputs(query, key, value, pattern, padding_mask, dropout)
    padding_mask = None if padding_mask is None else padding_mask.bool()
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend_by_pattern(query, key, value, pattern, padding_mask, scaling, dropout)


def _check_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    dropout: float,
) -> None:
    """Raise `ValueError` for arguments that do not fit each other."""
    states = (query, key, value)
    if query.ndim != 4 or key.shape != query.shape or value.shape[:-1] != query.shape[:-1]:
        shapes = ", ".join(str(list(each.shape)) for each in states)
        raise ValueError(
            f"query and key must have one shape [B, H, n, Dk], and value [B, H, n, Dv]; got {shapes}."
        )
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
