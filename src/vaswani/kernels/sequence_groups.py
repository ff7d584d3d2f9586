"""Group the sequences of a padded batch by number of blocks, for kernels that take one pattern at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import groupby
from typing import Any

import torch

from vaswani.model.sparse_attention import blocks_of_sequences
from vaswani.model.sparse_pattern import SparsePattern


@dataclass(frozen=True)
class Group:
    """Neighbouring sequences with equal numbers of blocks, up to the block of their last visible token.

    Args:
        rows: their rows in the batch.
        length: number of tokens, including those that fill the last block.
    """

    rows: slice
    length: int

    def states(self, states: torch.Tensor) -> torch.Tensor:
        """Return the group's part of states [B, H, n, D], as a view."""
        return states[self.rows, :, : self.length]

    def mask(self, padding_mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return the group's part of a mask [B, n], as a view."""
        return None if padding_mask is None else padding_mask[self.rows, : self.length]


def whole_batch(query: torch.Tensor) -> Group:
    """Return the group of all sequences [B, H, n, D] with all their tokens."""
    return Group(slice(0, len(query)), query.shape[2])


def groups_of_sequences(
    query: torch.Tensor, pattern: SparsePattern, padding_mask: torch.Tensor | None
) -> list[Group]:
    """Return the groups of a batch [B, H, n, D]; sequences without a visible token may be in no group.

    The whole batch is one group if the numbers of blocks do not change the pattern.
    """
    length = query.shape[2]
    blocks = blocks_of_sequences(pattern, length, padding_mask)
    if blocks is None:
        return [whole_batch(query)]
    groups, start = [], 0
    for own, run in groupby(blocks.tolist()):
        rows = slice(start, start := start + len(list(run)))
        if own:
            groups.append(Group(rows, min(length, pattern.length(own))))
    return groups


def in_groups(attend: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Decorator that runs a kernel like `attend_by_pattern` group by group; all other outputs are zero."""

    @wraps(attend)
    def attend_in_groups(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pattern: SparsePattern,
        padding_mask: torch.Tensor | None,
        *options: Any,
    ) -> torch.Tensor:
        groups = groups_of_sequences(query, pattern, padding_mask)
        if groups == [whole_batch(query)]:
            return attend(query, key, value, pattern, padding_mask, *options)
        output = torch.zeros_like(value)
        for group in groups:
            states = map(group.states, (query, key, value))
            group.states(output)[...] = attend(*states, pattern, group.mask(padding_mask), *options)
        return output

    return attend_in_groups
