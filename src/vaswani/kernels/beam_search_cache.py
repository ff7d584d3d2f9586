"""A self-attention cache for searches that never moves keys and values.

The usual cache gives each beam its own rows and, after each step, copies whole rows to the new places of the
surviving beams. Here every key and value is written once. The hypotheses of one source form a tree, and a
step changes only a small integer table: the nodes of the tree from which each beam descends. The beams of a
source are query rows that attend to all of its nodes, under a mask that shows each beam its own ancestors. A
step reads as many bytes as with the usual cache, and moves none.

All beams start from one prompt, so its nodes are computed and written once per source, for beam 0.
Greedy search and sampling are searches with one beam, and need no mask.

S sources · K beams · T steps so far · H heads · D width of a head's keys or values
"""

from functools import partial
from typing import Any

import torch
from transformers import Cache, DynamicCache
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
        """Allocate space for the first steps, in the dtype and on the device of this prompt [S, H, T, D]."""
        sources, heads, length, _ = key_states.shape
        shape = sources, heads, max(32, 2 * length), self.num_beams
        self.keys, self.values = (
            states.new_empty(*shape, states.shape[3]) for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new nodes and return what the queries attend to.

        The prompt [S, H, T, D] comes first and attends only to itself, so its own states are returned. For a
        step [S·K, H, 1, D], all nodes of its source are returned, [S, H, steps·K, D], ordered by step, then
        beam, without a copy.
        """
        start, self.length = self.length, self.length + key_states.shape[2]
        if start == 0:
            self.lazy_initialization(key_states, value_states)
        self.reserve(self.length)
        self._write(self.keys[:, :, start : self.length], key_states)
        self._write(self.values[:, :, start : self.length], value_states)
        if start == 0:
            return key_states, value_states
        return self.keys[:, :, : self.length].flatten(2, 3), self.values[:, :, : self.length].flatten(2, 3)

    def reserve(self, length: int) -> int:
        """Allocate space for `length` steps; return the number of steps that fit."""
        if length > self.keys.shape[2]:
            self.keys, self.values = self._grow(self.keys), self._grow(self.values)
        return self.keys.shape[2]

    def _write(self, nodes: torch.Tensor, states: torch.Tensor) -> None:
        """Fill nodes [S, H, T, K, D] with the states of a step [S·K, H, T, D] or of a prompt [S, H, T, D]."""
        if states.shape[0] == nodes.shape[0]:
            nodes[:, :, :, 0] = states
            if self.num_beams > 1:
                nodes[:, :, :, 1:] = 0.0  # never seen, but hidden states must be finite too
        else:
            nodes.copy_(states.unflatten(0, (-1, self.num_beams)).permute(0, 2, 3, 1, 4))

    @staticmethod
    def _grow(buffer: torch.Tensor) -> torch.Tensor:
        """Double the capacity, so that growth costs a constant number of copies per step."""
        return torch.cat([buffer, torch.empty_like(buffer)], dim=2)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the sources at these indices, int64 [sources to keep]."""
        self.keys, self.values = self.keys[indices], self.values[indices]

    def of_rows(self, ancestors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of each beam, [S·K, H, T, D], as the usual cache stores them.

        Args:
            ancestors: the beam at each step, int64 [S·K, T].
        """
        beams = ancestors.unflatten(0, (-1, self.num_beams)).transpose(1, 2)[:, None, :, :, None]
        keys, values = (
            nodes[:, :, : self.length].take_along_dim(beams, dim=3).permute(0, 3, 1, 2, 4).flatten(0, 1)
            for nodes in (self.keys, self.values)
        )
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys that a prompt sees."""
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        """Return the number of steps written so far, T."""
        return self.length

    def get_max_length(self) -> int:
        """Return −1: there is no limit."""
        return -1

    get_max_cache_shape = get_max_length  # the name in older versions of transformers

    def reset(self) -> None:
        """Forget everything and free the memory."""
        self.keys = self.values = None  # type: ignore[assignment]
        self.is_initialized, self.length = False, 0


class BeamSearchCache(Cache):
    """Keys and values of all layers, and the ancestors of each beam: [S·K, T], the beam at each step."""

    def __init__(self, num_beams: int):
        super().__init__(layer_class_to_replicate=partial(BeamSearchLayer, num_beams))  # type: ignore[arg-type]
        self.num_beams = num_beams
        self.ancestors: torch.Tensor | None = None

    def start(self, prompt: torch.Tensor) -> None:
        """Record a prompt [S, T, ...], about to be written, as the ancestor of every beam."""
        rows = prompt.shape[0] * self.num_beams
        self.ancestors = torch.zeros(rows, prompt.shape[1], dtype=torch.long, device=prompt.device)

    def step_mask(self, padding_mask: torch.Tensor | None) -> torch.Tensor | None:
        """Record the nodes of one more step, about to be written, and return the step's attention mask.

        Args:
            padding_mask: [S·K, T] of 0 and 1, including the new step, or None.

        Returns:
            bool [S, 1, K, T·K]: beam k may attend to node (t, j); or None if nothing is hidden.
        """
        if self.num_beams == 1 and padding_mask is None:
            return None
        self.record_step()
        assert self.ancestors is not None
        own = torch.arange(self.num_beams, device=self.ancestors.device)
        visible = self.ancestors[:, :, None] == own
        if padding_mask is not None:
            visible = visible & padding_mask[:, :, None].bool()
        return visible.flatten(1).unflatten(0, (-1, self.num_beams))[:, None]

    def record_step(self) -> None:
        """Record one more step, about to be written: each beam gets its own node."""
        assert self.ancestors is not None, "a search starts from a prompt"
        own = torch.arange(self.num_beams, device=self.ancestors.device)
        new = own.repeat(self.ancestors.shape[0] // self.num_beams)[:, None]
        self.ancestors = torch.cat([self.ancestors, new], dim=1)

    def reserve(self, length: int) -> int:
        """Allocate space for `length` steps in all layers; return the number of steps that fit."""
        return min(layer.reserve(length) for layer in self.layers)  # type: ignore[union-attr]

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Beam r continues the hypothesis of row `beam_idx[r]`: [S·K]. Only the table of ancestors moves."""
        assert self.ancestors is not None, "a cache is reordered only after a first step"
        self.ancestors = self.ancestors.index_select(0, beam_idx.to(self.ancestors.device))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep only the sources at these indices, int64 [sources to keep]."""
        assert self.ancestors is not None, "sources are dropped only after a first step"
        super().batch_select_indices(indices)
        self.ancestors = self.ancestors.unflatten(0, (-1, self.num_beams))[indices].flatten(0, 1)

    def with_all_rows(self) -> DynamicCache:
        """Return the library's cache of the same states: a row for each beam, [S·K]."""
        assert self.ancestors is not None, "a search starts from a prompt"
        rows, layers = DynamicCache(), list[Any](self.layers)
        for index, layer in enumerate(layers):
            if layer.is_initialized:  # somebody may have removed a layer from the model
                rows.update(*layer.of_rows(self.ancestors), index)
        return rows

    def reset(self) -> None:
        """Forget all hypotheses."""
        super().reset()
        self.ancestors = None
