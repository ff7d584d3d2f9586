# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""What the kernels for sparse attention on the CPU are given.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens
L = g + w + r key blocks at most for each query block · G query blocks that see everything
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch

from .sparse_pattern import SparsePattern


@lru_cache(maxsize=256)
def key_blocks(pattern: SparsePattern, num_blocks: int, device: torch.device) -> torch.Tensor:
    """What the query blocks see that do not see everything: int64 [H, N − G, L], N where there is none.

    Drawn once for each layer, length and device.
    """
    with torch.inference_mode(False):
        blocks = pattern.key_blocks(num_blocks, device=device)
        return torch.where(blocks < 0, num_blocks, blocks).contiguous()


def compute_dtype(query: torch.Tensor) -> torch.dtype:
    """Half precision is computed in float32."""
    return torch.promote_types(query.dtype, torch.float32)


@dataclass
class Inputs:
    """Query, key, value [B, H, n, D], padding mask bool [B, n] or None, dropout's seed int64 [] or None."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    padding_mask: torch.Tensor | None
    seed: torch.Tensor | None
    pattern: SparsePattern
    scaling: float
    dropout: float

    @property
    def num_blocks(self) -> int:
        """N."""
        return self.pattern.num_blocks(self.query.shape[-2])

    @property
    def key_blocks(self) -> torch.Tensor:
        """int64 [H, N − G, L]."""
        return key_blocks(self.pattern, self.num_blocks, self.query.device)

    @cached_property
    def bias(self) -> torch.Tensor:
        """0 for keys that may be seen, the lowest number for others: [B, N + 1, b]; the last is no block."""
        batch, _, length, _ = self.query.shape
        dtype = compute_dtype(self.query)
        places = (self.num_blocks + 1) * self.pattern.block_size
        bias = self.query.new_full((batch, places), torch.finfo(dtype).min, dtype=dtype)
        if self.padding_mask is None:
            bias[:, :length] = 0.0
        else:
            bias[:, :length].masked_fill_(self.padding_mask, 0.0)
        return bias.view(batch, -1, self.pattern.block_size)


@dataclass
class BackwardInputs:
    """What the backward pass is given besides the inputs, and where it writes.

    Attributes:
        output, upstream: the output [B, H, n, D] and its gradient.
        log_sums: log2 Σ 2^score [B, H, N · b] of the scores of each row.
        query, key, value: where to write the gradients of these.
    """

    upstream: torch.Tensor
    output: torch.Tensor
    log_sums: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
