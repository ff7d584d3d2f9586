# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Differences between the supported versions of transformers."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import transformers
from transformers import Cache
from transformers.modeling_outputs import Seq2SeqLMOutput

TOO_NEW = (5, 25)  # not tested: models unaware of the caches renamed in 5.24 generated other tokens


def check_version(version: str) -> None:
    """Raise `ImportError` if this version of transformers is too new for the models."""
    if tuple(int(part) for part in version.split(".")[:2]) >= TOO_NEW:
        needed = ".".join(map(str, TOO_NEW))
        raise ImportError(
            f"vaswani needs transformers before {needed}, and {version} is installed; "
            f"pip install 'transformers<{needed}'"
        )


check_version(transformers.__version__)

# The name of a cache in `generate` and in outputs: `cache` from 5.24 on.
CACHE_NAME = "cache" if hasattr(Seq2SeqLMOutput(), "cache") else "past_key_values"


def takes_cache(function: Callable) -> Callable:
    """Decorator that accepts `past_key_values` as `cache` too; the signature shows `CACHE_NAME`.

    Calls with both names raise `ValueError`.
    """

    @wraps(function)
    def by_either_name(*args: Any, **kwargs: Any) -> Any:
        if (cache := kwargs.pop("cache", None)) is not None:
            if kwargs.get("past_key_values") is not None:
                raise ValueError("cache and past_key_values are two names of one argument; give one of them.")
            kwargs["past_key_values"] = cache
        return function(*args, **kwargs)

    signature = inspect.signature(function)
    parameters = [
        parameter.replace(name=CACHE_NAME) if parameter.name == "past_key_values" else parameter
        for parameter in signature.parameters.values()
    ]
    by_either_name.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return by_either_name


def cache_capacity(cache: Cache) -> int:
    """Return the largest number of tokens that a cache can hold; −1 without a limit."""
    layers: Any = getattr(cache, "self_attention_cache", cache)  # an encoder-decoder's cache has two parts
    if hasattr(layers, "get_max_length"):
        return layers.get_max_length(0)
    return layers.get_max_cache_shape(0)  # the name in older versions


@takes_cache
def padding_mask_of_cache(
    config: Any,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None,
    past_key_values: Cache,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return the padding mask of a step, extended to the size of its fixed-size cache: [B, size].

    Models use it as `create_masks_for_generate`. The library's version returns a mask [B, 1, T, size], which
    sparse attention does not accept and from which positions cannot be computed.
    """
    if attention_mask is None:
        return None
    size = cache_capacity(past_key_values)
    return torch.nn.functional.pad(attention_mask, (0, size - attention_mask.shape[1]))


def keep_positions(states: torch.Tensor, kept: int | torch.Tensor) -> torch.Tensor:
    """Select the states of some positions, like `slice_logits_to_keep` of newer versions.

    Args:
        states: [B, T, K].
        kept: the number of last positions (0 for all); or positions, int64 [N] or [B, N]; or bool [B, T].

    Returns:
        [B, N, K]; for a bool mask with N True values, [N, K].
    """
    if isinstance(kept, int):
        return states[:, -kept:]
    if kept.ndim == 2 and kept.dtype != torch.bool:
        return torch.take_along_dim(states, kept[..., None], dim=1)
    return states[kept] if kept.ndim == 2 else states[:, kept]
