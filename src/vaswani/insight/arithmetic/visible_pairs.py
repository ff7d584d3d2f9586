"""Count the visible pairs of tokens in sparse attention."""

from __future__ import annotations

from functools import lru_cache

import torch

from vaswani.model.sparse_attention import block_table
from vaswani.model.sparse_pattern import SparsePattern


@lru_cache(maxsize=4096)  # the lengths of a training repeat
def visible_pairs(pattern: SparsePattern, length: int) -> int:
    """Return the number of True elements in `pattern.to_dense(length)`: visible pairs, summed over the heads.

    Counts them from the table of blocks, so that time and memory do not grow with the square of the length.
    """
    num_blocks = pattern.num_blocks(length)
    first = pattern.num_global_rows(num_blocks)
    tokens = tokens_of_blocks(pattern, length)  # [N]
    of_block = torch.cat([tokens, tokens.new_zeros(1)])  # the table has N for no block
    table = block_table(pattern, num_blocks, torch.device("cpu"))  # [H, N - first, L]
    keys = of_block[table].sum(-1)  # [H, N - first]
    pairs = int((keys * tokens[first:]).sum())
    if pattern.causal:  # the block on the diagonal is triangular
        pairs -= pattern.num_heads * int((tokens * (tokens - 1) // 2).sum())
    return pairs + pattern.num_heads * int(tokens[:first].sum()) * length


def tokens_of_blocks(pattern: SparsePattern, length: int) -> torch.Tensor:
    """Return the number of tokens in each block, int64 [N]; the last global and last block may be partial."""
    places = pattern.places(torch.arange(length))
    return torch.bincount(places // pattern.block_size, minlength=pattern.num_blocks(length))
