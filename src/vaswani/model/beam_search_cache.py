# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""A self-attention cache for beam search in which nothing is ever moved.

The usual cache gives each beam rows of its own and, after each step, copies whole rows to where the surviving
beams now stand. Here every key and value is written once. The hypotheses of one source form a tree, and the
only thing that changes from step to step is which nodes of the tree each beam descends from: a small integer
table. A step then attends from the beams of one source, as so many query rows, to the one set of all nodes,
under a mask that shows each beam its own ancestors. The bytes read are the same, the bytes moved are none.

S sources · K beams · T steps so far · H heads · D head width
"""

from functools import partial
from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class BeamSearchLayer(CacheLayerMixin):
    """Keys and values of one layer, each [S, H, capacity, K, D]: node (step t, beam k) of source s."""

    is_sliding = False

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, num_beams: int):
        super().__init__()
        self.num_beams = num_beams
        self.length = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make room for a first few steps, in the dtype and on the device of these states [S·K, H, T, D]."""
        rows, heads, length, head_dim = key_states.shape
        shape = (rows // self.num_beams, heads, max(32, 2 * length), self.num_beams, head_dim)
        self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new nodes [S·K, H, T, D] and return what the queries attend to.

        A prompt (T > 1 into an empty cache) attends within itself, so it gets its own states back. A step
        gets all nodes of its source, [S, H, steps·K, D], ordered by step, then beam, without a copy.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, self.length = self.length, self.length + key_states.shape[2]
        if self.length > self.keys.shape[2]:
            self.keys, self.values = self._grow(self.keys), self._grow(self.values)
        self.keys[:, :, start : self.length] = self._by_source(key_states)
        self.values[:, :, start : self.length] = self._by_source(value_states)
        if start == 0 and self.length > 1:
            return key_states, value_states
        return self.keys[:, :, : self.length].flatten(2, 3), self.values[:, :, : self.length].flatten(2, 3)

    def _by_source(self, states: torch.Tensor) -> torch.Tensor:
        """[S·K, H, T, D] -> [S, H, T, K, D]."""
        return states.unflatten(0, (-1, self.num_beams)).permute(0, 2, 3, 1, 4)

    @staticmethod
    def _grow(buffer: torch.Tensor) -> torch.Tensor:
        """Double the capacity, so that growing costs a constant number of copies per step."""
        return torch.cat([buffer, torch.empty_like(buffer)], dim=2)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that a prompt sees."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Number of steps written so far, T."""
        return self.length

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def reset(self) -> None:
        """Forget everything, keep nothing allocated."""
        self.keys = self.values = None  # type: ignore[assignment]
        self.is_initialized, self.length = False, 0


class BeamSearchCache(Cache):
    """All layers' keys and values, and the ancestors of each beam: [S·K, T], the beam slot at each step."""

    def __init__(self, num_beams: int):
        super().__init__(layer_class_to_replicate=partial(BeamSearchLayer, num_beams))  # type: ignore[arg-type]
        self.num_beams = num_beams
        self.ancestors: torch.Tensor | None = None

    def step_mask(
        self, rows: int, length: int, padding_mask: torch.Tensor | None, device: torch.device
    ) -> torch.Tensor | None:
        """Record the `length` nodes about to be written and return who sees what in this step.

        Args:
            rows: S·K.
            length: number of new positions; 1, or that of a prompt in the first call.
            padding_mask: [S·K, T] of 0 and 1, or None.
            device: of the states.

        Returns:
            bool [S, 1, K, T·K]: beam k may attend to node (t, j); or None for a prompt, whose beams are still
            separate rows under an ordinary causal mask.
        """
        own = torch.arange(self.num_beams, device=device)
        new = own.repeat(rows // self.num_beams)[:, None].expand(rows, length)
        is_prompt = self.ancestors is None and length > 1
        self.ancestors = new if self.ancestors is None else torch.cat([self.ancestors, new], dim=1)
        if is_prompt:
            return None
        visible = self.ancestors[:, :, None] == own
        if padding_mask is not None:
            visible = visible & padding_mask[:, :, None].bool()
        return visible.flatten(1).unflatten(0, (-1, self.num_beams))[:, None]

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Beam r continues the hypothesis of row `beam_idx[r]`: [S·K]. Only the table of ancestors moves."""
        assert self.ancestors is not None, "a cache is reordered only after a first step"
        self.ancestors = self.ancestors.index_select(0, beam_idx.to(self.ancestors.device))

    def reset(self) -> None:
        """Forget all hypotheses."""
        super().reset()
        self.ancestors = None
