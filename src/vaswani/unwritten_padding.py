"""Leave padding that a model never generates out of its probabilities."""

from typing import Any

import torch
from transformers import PreTrainedModel


def unwritten_padding(model: PreTrainedModel) -> int | None:
    """Return the padding token of a model if its `generation_config` bans the token; else None.

    Marian's models ban it: in training, their softmax did not include the token, and transformers gives it
    the logit 0, which can be the highest. So it must not count in their probabilities.
    """
    generation: Any = getattr(model, "generation_config", None)
    padding = model.config.pad_token_id
    phrases, tokens = (getattr(generation, name, None) or () for name in ("bad_words_ids", "suppress_tokens"))
    is_banned = [padding] in phrases or padding in tokens
    return padding if is_banned else None


def without_padding(logits: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Return logits [..., V] with −∞ for a padding token (see `unwritten_padding`), if one is given."""
    if padding is None:
        return logits
    return logits.index_fill(-1, torch.tensor([padding], device=logits.device), -torch.inf)
