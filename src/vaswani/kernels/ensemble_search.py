"""Beam and greedy search by several of our models; each computes its steps as in a search of its own.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from vaswani.kernels.search import ARGUMENTS, own_loop, prepared_steps, share_sources
from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME

SEARCH_ARGUMENTS = {*ARGUMENTS, "synced_gpus", "streamer"}  # arguments of the search, not of a model


class EnsembleSearchCache:
    """The states of one search by several models, which compute the same rows.

    Args:
        members: each model with its arguments, one of which is its cache, with a tree.
        average: from the logits of each model to the logarithms of averaged probabilities.
    """

    def __init__(
        self,
        members: list[tuple[Any, dict[str, Any]]],
        average: Callable[[list[torch.Tensor]], torch.Tensor],
    ):
        self.members, self.average = members, average
        self.caches: list[SearchCache] = [arguments[CACHE_NAME] for _, arguments in members]
        self.rows_per_source = self.caches[0].rows_per_source

    @property
    def rows(self) -> torch.Tensor | None:
        """Return the indices of the rows that must be computed, int64; None means all."""
        return self.caches[0].rows

    def widen(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows computed, V] -> [S·R, V], uniform for sources that are done."""
        return self.caches[0].widen(scores)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let row r continue row `beam_idx[r]`, [S·R]."""
        for cache in self.caches:
            cache.reorder_cache(beam_idx)

    def drop(self, is_done: torch.Tensor) -> None:
        """Stop computing the sources that are done, bool [S]."""
        for cache in self.caches:
            cache.drop(is_done)

    def next_logits(
        self, model: Any, sequences: torch.Tensor, num_new: int, arguments: dict[str, Any]
    ) -> torch.Tensor:
        """Return the averaged log-probabilities [rows computed, V] after the last of `num_new` tokens."""
        logits = [
            own[CACHE_NAME].next_logits(member, sequences, num_new, own) for member, own in self.members
        ]
        return self.average(logits)


def search_together(
    ensemble: Any, library_search: Callable, input_ids: torch.Tensor, **arguments: Any
) -> Any:
    """Search with this package's loops if they support the call, else with the library's search."""
    config = arguments["generation_config"]
    # The library's search returns a cache that the ensemble can continue from.
    loop = None if config.return_dict_in_generate else own_loop(config, arguments)
    members = None if loop is None else _members(ensemble, input_ids, arguments)
    if loop is None or members is None:
        return library_search(ensemble, input_ids, **arguments)
    arguments[CACHE_NAME] = EnsembleSearchCache(members, ensemble.averaged)
    with prepared_steps(members, input_ids.shape[0]):
        return loop(ensemble, input_ids, **arguments)


def _members(
    ensemble: Any, input_ids: torch.Tensor, arguments: dict[str, Any]
) -> list[tuple[Any, dict[str, Any]]] | None:
    """Return each model with its own arguments and cache; None if a model needs the library's search."""
    given = arguments.get(CACHE_NAME)
    if not isinstance(given, EncoderDecoderCache) or given.get_seq_length():
        return None
    found = []
    states = arguments["encoder_outputs"][0].split(ensemble.widths, dim=-1)
    for member, state in zip(ensemble.members, states, strict=True):
        own = {name: value for name, value in arguments.items() if name not in SEARCH_ARGUMENTS}
        own["encoder_outputs"] = BaseModelOutput(last_hidden_state=state.to(member.dtype))
        own[CACHE_NAME] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache = share_sources(member, input_ids, arguments["generation_config"], own)
        if cache is None or cache.tree is None:
            return None
        found.append((member, own))
    return found
