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
    phrases, tokens = (getattr(generation, name, None) or () for name in ("bad_words_ids", "suppress_tokens"))
    is_banned = [padding] in phrases or padding in tokens
    return padding if is_banned else None


def without_padding(logits: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Return logits [..., V], −∞ for the padding of a model (see `unwritten_padding`), if it has such."""
    if padding is None:
        return logits
    return logits.index_fill(-1, torch.tensor([padding], device=logits.device), -torch.inf)
