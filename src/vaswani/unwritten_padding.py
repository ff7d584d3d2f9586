"""Padding that a model never writes has no part in its probabilities."""

from typing import Any

import torch
from transformers import PreTrainedModel


def unwritten_padding(model: PreTrainedModel) -> int | None:
    """Return the padding token of a model whose `generation_config` never lets it be written; else None.

    So it is in Marian's models: the token was not in their softmax when they were trained, and transformers
    gives it the logit 0, which can be the highest. It has no part in their probabilities.
    """
    generation: Any = getattr(model, "generation_config", None)
    padding = model.config.pad_token_id
    banned = [*(getattr(generation, "bad_words_ids", None) or ())]
    banned += [[token] for token in getattr(generation, "suppress_tokens", None) or ()]
    return padding if padding is not None and [padding] in banned else None


def without_padding(model: PreTrainedModel, logits: torch.Tensor) -> torch.Tensor:
    """Return the logits [..., V] of a model, −∞ for the padding token that it never writes."""
    if (padding := unwritten_padding(model)) is None:
        return logits
    return logits.index_fill(-1, torch.tensor([padding], device=logits.device), -torch.inf)
