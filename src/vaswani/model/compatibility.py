# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""What the versions of transformers that this package supports do not share."""

from typing import Any

import torch
import transformers
from transformers import Cache

TOO_NEW = (5, 24)  # its `generate` hands over caches by another name, and models of before write other tokens


def check_version(version: str) -> None:
    """Raise `ImportError` for a version of transformers that the models do not fit."""
    if tuple(int(part) for part in version.split(".")[:2]) >= TOO_NEW:
        needed = ".".join(map(str, TOO_NEW))
        raise ImportError(
            f"vaswani needs transformers before {needed}, and {version} is installed; "
            f"pip install 'transformers<{needed}'"
        )


check_version(transformers.__version__)


def cache_capacity(cache: Cache) -> int:
    """The number of tokens that a cache holds; −1 without a limit."""
    layers: Any = getattr(cache, "self_attention_cache", cache)  # of an encoder-decoder's cache
    if hasattr(layers, "get_max_length"):
        return layers.get_max_length(0)
    return layers.get_max_cache_shape(0)  # the name in older versions


def keep_positions(states: torch.Tensor, kept: int | torch.Tensor) -> torch.Tensor:
    """The states [B, T, K] of some positions, like `slice_logits_to_keep` of newer versions.

    Args:
        states: [B, T, K].
        kept: the last so many positions (0: all of them); or positions, int64 [N] or [B, N]; or bool [B, T].

    Returns:
        [B, N, K]; for a bool mask [the number of its Trues, K].
    """
    if isinstance(kept, int):
        return states[:, -kept:]
    if kept.ndim == 2 and kept.dtype != torch.bool:
        return torch.take_along_dim(states, kept[..., None], dim=1)
    return states[kept] if kept.ndim == 2 else states[:, kept]
