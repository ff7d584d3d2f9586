"""Checks of the inputs of exported models, whose files check nothing and would compute something else."""

from __future__ import annotations

from typing import Any

import torch

from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.model.input_checks import (
    check_attention_mask,
    check_ids,
    check_is_tensor,
    check_no_lost_arguments,
    check_position_ids,
)

# What `generate` and pipelines pass on to every model.
IGNORED = ("tokenizer", "assistant_tokenizer", "return_dict")


def checked_ids(name: str, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Return token ids, or token types, as int64; ONNX would count negative ids from the end.

    Args:
        name: of the argument, for messages.
        ids: integers [..., T].
        count: number of tokens, or of types, that the model knows.

    Raises:
        ValueError: the ids have another dtype or shape, there are none, or one is unknown to the model.
    """
    check_is_tensor(name, ids)
    check_ids(name, ids.flatten(0, -2) if ids.ndim > 2 else ids)
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= count:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, and the model knows 0 to {count - 1}; use the "
            "tokenizer that belongs to this model."
        )
    return ids.long()


def checked_mask(mask: torch.Tensor | None, ids: torch.Tensor, before: int = 0) -> torch.Tensor:
    """Return a padding mask as int64 [..., P + T], all ones by default.

    Args:
        mask: 1 for tokens and 0 for padding.
        ids: token ids [..., T].
        before: P, number of tokens in the cache.

    Raises:
        ValueError: the mask has another shape or other values.
    """
    shape = (*ids.shape[:-1], before + ids.shape[-1])
    if mask is None:
        return torch.ones(shape, dtype=torch.long)
    check_is_tensor("attention_mask", mask)
    rows = mask.flatten(0, -2) if mask.ndim == ids.ndim else mask
    if rows.ndim != 2:
        raise ValueError(
            f"attention_mask has the shape {list(mask.shape)}; expected {list(shape)}: an exported model "
            "takes a mask of padding alone."
        )
    check_attention_mask("attention_mask", rows, ids[..., 0].numel(), ids.shape[-1], [shape[-1]])
    return mask.long()


def counted(config: VaswaniFamilyConfig, mask: torch.Tensor) -> int:
    """Return the number of positions of the longest row of a mask [..., S], padding counted or not."""
    return int(mask.sum(-1).max()) if config.position_from_mask else mask.shape[-1]


def check_length(config: VaswaniFamilyConfig, length: int) -> None:
    """Raise a ValueError for more tokens than there are learned positions."""
    if config.position_embedding == "learned" and length > config.max_position_embeddings:
        raise ValueError(
            f"a sequence of {length} tokens is longer than max_position_embeddings="
            f"{config.max_position_embeddings}; shorten it."
        )


def checked_positions(positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return positions as int64 [B, T].

    Raises:
        ValueError: a position is negative or has another shape; or positions restart within a row, as in
            packed documents, which exported models do not separate.
    """
    check_position_ids(positions, *ids.shape)
    if positions.diff(dim=-1).lt(0).any():
        raise ValueError(
            "position_ids restart within a row, as in packed documents, which an exported model does not "
            "separate; give each document a row."
        )
    return positions.long().expand_as(ids)


def check_ignored(arguments: dict[str, Any]) -> None:
    """Raise for an argument that an exported model does not take, unless it has no effect on any model.

    Raises:
        TypeError: there is such an argument.
        ValueError: it is one that has no effect on vaswani models.
    """
    check_no_lost_arguments(arguments)
    unknown = [name for name, value in arguments.items() if name not in IGNORED and value is not None]
    if unknown:
        raise TypeError(f"{unknown[0]} cannot be used by a model in ONNX; leave it out.")
