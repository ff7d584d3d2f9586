"""The loop of greedy search: the best token of each row, until all rows have ended.

Its results are those of transformers' loop, which spends more time between two steps than a small model
spends in one step.

S·R rows: R samples of each of S sources · T tokens so far · V tokens in the vocabulary
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME


def can_search(generation_config: GenerationConfig, arguments: dict[str, Any]) -> bool:
    """Return whether `greedy_search` supports all options of a call of `generate`."""
    return not (
        generation_config.do_sample
        or generation_config.return_dict_in_generate
        or arguments.get("synced_gpus")
    )


def greedy_search(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: Any = None,
    **arguments: Any,
) -> torch.Tensor:
    """Replace `GenerationMixin._sample` if `can_search`, with a `SearchCache` that has a tree.

    Returns:
        Tokens int64 [S·R, T]; rows that ended earlier are padded if the model has an end token.
    """
    cache: SearchCache = arguments[CACHE_NAME]
    sequences, num_new = input_ids, input_ids.shape[1]
    padding = _padding(generation_config) if pads_finished_rows(stopping_criteria) else None
    may_drop = may_drop_finished(input_ids, stopping_criteria)
    has_ended = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    while not bool(has_ended.all()):
        logits = cache.next_logits(model, sequences, num_new, arguments)
        scores: Any = cache.widen(logits.to(torch.float32, copy=True))  # the next step may overwrite them
        tokens = logits_processor(sequences, scores).argmax(dim=-1)  # type: ignore[arg-type]
        if padding is not None:
            tokens.masked_fill_(has_ended, padding)
        if streamer is not None:
            streamer.put(tokens.cpu())
        sequences = torch.cat([sequences, tokens[:, None]], dim=1)
        has_ended = has_ended | stopping_criteria(sequences, None)
        if may_drop:
            cache.drop(has_ended.view(-1, cache.rows_per_source).all(dim=1))
        num_new = 1
    if streamer is not None:
        streamer.end()
    return sequences


def pads_finished_rows(criteria: StoppingCriteriaList) -> bool:
    """Return whether rows are padded after their end, which needs an end token."""
    return any(hasattr(criterion, "eos_token_id") for criterion in criteria)


def may_drop_finished(input_ids: torch.Tensor, criteria: StoppingCriteriaList) -> bool:
    """Return whether finished sources leave the batch: if rows are padded. A GPU would wait for it."""
    return pads_finished_rows(criteria) and input_ids.device.type == "cpu"


def _padding(generation_config: GenerationConfig) -> int:
    padding, end = generation_config.pad_token_id, generation_config.eos_token_id
    if padding is None:
        padding = torch.as_tensor(end).flatten()[0]
    return int(padding)
