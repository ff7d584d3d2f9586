"""Beam and greedy search by several models of ours, each of which computes its steps as it does alone.

S sources · R rows of each (beams or samples) · V tokens in the vocabulary · W the members' widths together
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from vaswani.kernels import beam_search, greedy_search
from vaswani.kernels.search import ARGUMENTS, OVERRIDDEN, prepared_steps, share_sources
from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration

OF_THE_SEARCH = {*ARGUMENTS, "synced_gpus", "streamer"}  # and not of a model


class EnsembleSearchCache:
    """The states of one search by several models, of which the same rows need computing.

    Args:
        members: each model, its cache with a tree and its arguments.
        average: the logarithms of averaged probabilities, from those of each model.
    """

    def __init__(
        self,
        members: list[tuple[Any, SearchCache, dict[str, Any]]],
        average: Callable[[list[torch.Tensor]], torch.Tensor],
    ):
        self.members, self.average = members, average
        self.first = members[0][1]
        self.rows_per_source = self.first.rows_per_source

    @property
    def rows(self) -> torch.Tensor | None:
        """Places of the rows that need computing, int64; None means all."""
        return self.first.rows

    def widen(self, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows computed, V] -> [S·R, V], all alike for sources that are done."""
        return self.first.widen(scores)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Let row r continue row `beam_idx[r]`, [S·R]."""
        for _, cache, _ in self.members:
            cache.reorder_cache(beam_idx)

    def drop(self, is_done: torch.Tensor) -> None:
        """Stop computing the sources that are done, bool [S]."""
        for _, cache, _ in self.members:
            cache.drop(is_done)

    def next_logits(
        self, model: Any, sequences: torch.Tensor, num_new: int, arguments: dict[str, Any]
    ) -> torch.Tensor:
        """Return the averaged log-probabilities [rows computed, V] after the last of `num_new` tokens."""
        log_probs = [
            cache.next_logits(member, sequences, num_new, own).float().log_softmax(-1)
            for member, cache, own in self.members
        ]
        return self.average(log_probs)


def search_together(
    ensemble: Any, library_search: Callable, input_ids: torch.Tensor, **arguments: Any
) -> Any:
    """Search as one of the library's searches does, by the loops of this package where they can."""
    generation_config: GenerationConfig = arguments["generation_config"]
    loop = beam_search if generation_config.num_beams > 1 else greedy_search
    members = (
        _member_searches(ensemble, input_ids, generation_config, arguments)
        if all(map(_has_searches, ensemble.members)) and loop.can_search(generation_config, arguments)
        else None
    )
    if members is None:
        return library_search(ensemble, input_ids, **arguments)
    search: Callable = beam_search.beam_search if loop is beam_search else greedy_search.greedy_search
    arguments[CACHE_NAME] = EnsembleSearchCache(members, ensemble.averaged)
    with prepared_steps(members, input_ids.shape[0]):
        return search(ensemble, input_ids, **arguments)


def _has_searches(member: Any) -> bool:
    """Whether the searches of this package are those of the model."""
    return (
        isinstance(member, VaswaniForConditionalGeneration)
        and OVERRIDDEN.keys() <= vars(VaswaniForConditionalGeneration).keys()
    )


def _member_searches(
    ensemble: Any, input_ids: torch.Tensor, generation_config: GenerationConfig, arguments: dict[str, Any]
) -> list[tuple[Any, SearchCache, dict[str, Any]]] | None:
    """Each model with a cache and arguments of its own; None where one of them needs the library's search."""
    given = arguments.get(CACHE_NAME)
    if not isinstance(given, EncoderDecoderCache) or given.get_seq_length():
        return None
    found = []
    states = arguments["encoder_outputs"][0].split(ensemble.widths, dim=-1)
    for member, state in zip(ensemble.members, states, strict=True):
        own = {name: value for name, value in arguments.items() if name not in OF_THE_SEARCH}
        own["encoder_outputs"] = BaseModelOutput(last_hidden_state=state.to(member.dtype))
        own[CACHE_NAME] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        cache = share_sources(member, input_ids, generation_config, own)
        if cache is None or cache.tree is None:
            return None
        found.append((member, cache, own))
    return found
