# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Checks of the models' arguments. Each raises a `ValueError` that gives the value and the remedy.

Shapes and dtypes are checked on every device; values only on the CPU, because reading them from another
device would make the host wait for it. Nothing is checked while a model is traced, compiled or exported, or
called with fake tensors.

B batch · T tokens · S tokens that a mask covers: those in the cache and the new ones
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import torch
from transformers.utils import logging
from transformers.utils.import_utils import is_fake_tensor

logger = logging.get_logger(__name__)

IGNORED_LABEL = -100

# Arguments of the library's models that would have no effect on ours.
WITHOUT_EFFECT = ("head_mask", "decoder_head_mask", "cross_attn_head_mask", "decoder_position_ids")


def is_fake(tensor: Any) -> bool:
    """Return whether a tensor is of a `FakeTensorMode`: it has shape, dtype and device, but no values."""
    return not torch.compiler.is_compiling() and is_fake_tensor(tensor)


def has_values(tensor: Any) -> bool:
    """Return whether a tensor has values: it is not traced, compiled, exported, transformed or fake."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not isinstance(tensor, torch.Tensor):
        return False
    if is_fake(tensor):
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # transformed by `torch.func`, or without storage
        return False
    return True


def can_be_checked(values: torch.Tensor) -> bool:
    """Return True if the tensor has values and they can be read without waiting for a device."""
    return values.device.type == "cpu" and values.numel() > 0 and has_values(values)


def check_is_tensor(name: str, value: Any) -> None:
    """Raise unless the value is a tensor, neither sparse nor nested."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(
            f"{name} is a {type(value).__name__}; expected a tensor: convert it with torch.as_tensor()."
        )
    if value.is_nested or value.layout != torch.strided:
        kind = "nested" if value.is_nested else value.layout
        raise ValueError(
            f"{name} is a {kind} tensor; expected a dense one: pad its rows, or use .to_dense()."
        )


def check_shape(name: str, tensor: torch.Tensor, expected: Sequence[int]) -> None:
    """Raise for another shape, which could be broadcast to a wrong result."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} has the shape {list(tensor.shape)}; expected {list(expected)}.")


def warn_of_left_padding(mask: torch.Tensor) -> None:
    """Warn once if a mask [B, S] has padding on the left, which shifts the sparse pattern."""
    if has_values(mask) and not bool(mask[:, 0].all()):
        logger.warning_once(
            "Sparse attention counts blocks from the first column of a batch: with padding on the left, a "
            "sequence has other results than alone. Pad on the right, or batch sequences of one length."
        )


def check_attention_mask(
    name: str, mask: Any, rows: int, queries: int, lengths: Sequence[int | torch.Tensor]
) -> None:
    """Raise unless the mask is [B, S] of 0 and 1, or [B or 1, H or 1, T, S], boolean or additive.

    Args:
        name: of the argument, for messages.
        mask: a tensor, None, or an object that only a kernel can read (flex attention's block masks).
        rows: B.
        queries: T.
        lengths: the allowed S; a cache of fixed size also takes a mask of that size.
    """
    if isinstance(mask, torch.Tensor | np.ndarray | Sequence):
        check_is_tensor(name, mask)
    if not has_values(mask):
        return
    shape, allowed = list(mask.shape), [int(length) for length in lengths]
    if mask.ndim == 2:
        fits = shape[0] == rows and shape[1] in allowed
        expected = f"{[rows, allowed[0]]}: a number for each token, those in the cache included."
    elif mask.ndim == 4:
        fits = shape[0] in (1, rows) and shape[2] in (1, queries) and shape[3] in allowed
        expected = f"[{rows} or 1, heads or 1, {queries}, {allowed[0]}]: rows, heads, queries, keys."
    else:
        fits = False
        expected = "[rows, tokens], or, for a mask of each query, [rows, heads, queries, keys]."
    if not fits:
        raise ValueError(f"{name} has the shape {shape}; expected {expected}")
    check_values = _check_padding_values if mask.ndim == 2 else _check_additive_values
    check_values(name, mask)


def _check_padding_values(name: str, mask: torch.Tensor) -> None:
    if mask.dtype == torch.bool or not can_be_checked(mask):
        return
    if not mask.is_floating_point():  # one pass instead of three
        low, high = mask.aminmax()
        if low >= 0 and high <= 1:
            return
    strange = (mask != 0) & (mask != 1)
    if strange.any():
        raise ValueError(
            f"{name} holds {mask[strange][0].item()}; expected 1 for tokens to be seen and 0 for padding."
        )


def _check_additive_values(name: str, mask: torch.Tensor) -> None:
    if mask.dtype == torch.bool:
        return
    if not mask.is_floating_point():
        raise ValueError(
            f"{name} has four dimensions and the dtype {mask.dtype}; convert it to torch.bool (True may be "
            "seen) or to floats that are added to the scores (0 or -inf)."
        )
    if can_be_checked(mask) and not mask.max() <= 0:
        raise ValueError(
            f"{name} has four dimensions and holds {mask.max().item()}; floats are added to the scores: "
            "give 0 where a key may be seen and -inf where not, or convert the mask to torch.bool."
        )


def check_ids(name: str, ids: torch.Tensor, shape: Sequence[int] | None = None) -> None:
    """Raise unless the ids are integers of this shape; of any shape [B, T] with a token if it is None."""
    check_is_tensor(name, ids)
    if not has_values(ids):
        return
    if ids.dtype not in (torch.long, torch.int):
        raise ValueError(f"{name} has the dtype {ids.dtype}; expected integers: convert it with .long().")
    if shape is not None:
        check_shape(name, ids, shape)
    elif ids.ndim != 2:
        raise ValueError(f"{name} has the shape {list(ids.shape)}; expected [rows, tokens].")
    elif not ids.numel():
        raise ValueError(f"{name} has the shape {list(ids.shape)}; give one row of one token or more.")


def check_not_meta(ids: torch.Tensor, weight: torch.Tensor) -> None:
    """Raise if the ids have no values and the embeddings have: PyTorch would return unwritten memory."""
    if ids.is_meta and not weight.is_meta:
        raise ValueError(
            f"input_ids are on the device meta, which holds no values; move them to {weight.device}, where "
            "the model is."
        )


def check_embeddings(name: str, states: torch.Tensor, width: int) -> None:
    """Raise unless the states are floats [B, T, width], of a token or more."""
    check_is_tensor(name, states)
    is_right = states.ndim == 3 and states.shape[2] == width and states.is_floating_point()
    if not is_right and has_values(states):
        raise ValueError(
            f"{name} has the shape {list(states.shape)} and the dtype {states.dtype}; expected floats "
            f"[rows, tokens, {width}]."
        )
    if has_values(states) and not states.numel():
        raise ValueError(f"{name} has the shape {list(states.shape)}; give one row of one token or more.")


def check_position_ids(position_ids: torch.Tensor, rows: int, length: int) -> None:
    """Raise unless these are positions of 0 or more, [B, T] or [1, T]."""
    check_is_tensor("position_ids", position_ids)
    check_ids("position_ids", position_ids, (1 if position_ids.shape[:1] == (1,) else rows, length))
    if can_be_checked(position_ids) and position_ids.min() < 0:
        raise ValueError(f"position_ids holds {int(position_ids.min())}; positions are counted from 0.")


def check_not_packed(position_ids: torch.Tensor) -> None:
    """Raise unless positions [B, T] increase by one; a restart would begin a packed document."""
    if has_values(position_ids) and position_ids.diff(dim=-1).ne(1).any():
        raise ValueError(
            "position_ids restart within a row, as in packed documents, which sparse attention does not "
            "separate; give each document a row, or set decoder_attention='full'."
        )


def check_labels(name: str, labels: torch.Tensor | None, shape: Sequence[int], num_classes: int) -> None:
    """Raise unless the labels are None, or int64 of this shape, each a class or −100, which is ignored."""
    if labels is None:
        return
    check_is_tensor(name, labels)
    if not has_values(labels):
        return
    if labels.dtype != torch.long:
        raise ValueError(
            f"{name} has the dtype {labels.dtype}; expected torch.int64: convert it with .long()."
        )
    if tuple(labels.shape) != tuple(shape):
        raise ValueError(f"{name} has the shape {list(labels.shape)}; expected {list(shape)}, as the inputs.")
    if not can_be_checked(labels):
        return
    strange = (labels >= num_classes) | ((labels < 0) & (labels != IGNORED_LABEL))
    if strange.any():
        raise ValueError(
            f"{name} holds {int(labels[strange][0])}; expected 0 to {num_classes - 1}, or {IGNORED_LABEL} to "
            "ignore a place."
        )


def check_choices(
    input_ids: torch.Tensor | None,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    position_ids: torch.Tensor | None,
    inputs_embeds: torch.Tensor | None,
) -> None:
    """Raise unless there are tokens, and all inputs are [B, C, T, ...], for the C choices of each row."""
    inputs = {name: value for name, value in locals().items() if value is not None}
    if input_ids is None and inputs_embeds is None:
        raise ValueError("give exactly one of input_ids and inputs_embeds; got neither.")
    for name, values in inputs.items():
        check_is_tensor(name, values)
        if values.ndim < 3:
            raise ValueError(f"{name} has the shape {list(values.shape)}; expected [rows, choices, tokens].")


def check_loss_options(smoothing: float | None, num_items_in_batch: torch.Tensor | int | None) -> None:
    """Raise unless label smoothing is from 0 to 1 and the number of items is positive."""
    if smoothing is not None and not 0 <= smoothing <= 1:
        raise ValueError(f"smoothing={smoothing} must be from 0 to 1.")
    items: float | None
    if isinstance(num_items_in_batch, torch.Tensor):
        items = num_items_in_batch.min().item() if can_be_checked(num_items_in_batch) else None
    else:
        items = num_items_in_batch
    if items is not None and not (items > 0 and isfinite(items)):
        raise ValueError(f"num_items_in_batch={items} must be positive: it counts the whole batch's labels.")


def check_logits_to_keep(logits_to_keep: int | torch.Tensor, labels: torch.Tensor | None) -> None:
    """Raise unless `logits_to_keep` is positive, or 0 for all logits, which a loss needs."""
    if isinstance(logits_to_keep, int) and logits_to_keep < 0:
        raise ValueError(f"logits_to_keep={logits_to_keep} must be 0, for all, or positive.")
    if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
        raise ValueError("a loss needs the logits of all tokens; leave out logits_to_keep or labels.")


def check_no_lost_arguments(arguments: dict[str, Any]) -> None:
    """Raise if an argument would have no effect."""
    for name in WITHOUT_EFFECT:
        if arguments.get(name) is not None:
            raise ValueError(f"{name} has no effect on this model; leave it out.")
    if arguments.get("label_smoothing") is not None:
        raise ValueError("label_smoothing has no effect on this model, which calls it smoothing.")
    token_types = arguments.get("token_type_ids")
    if isinstance(token_types, torch.Tensor) and can_be_checked(token_types) and token_types.any():
        raise ValueError(
            "token_type_ids have no effect on this model; leave them out: "
            "tokenizer(..., return_token_type_ids=False)."
        )


def check_no_chunks(generation_config: Any) -> None:
    """Raise if an encoder-decoder is to compute its prompt in chunks, which the library does not do."""
    if (size := generation_config.prefill_chunk_size) is not None:
        raise ValueError(
            f"prefill_chunk_size={size} has no meaning for an encoder-decoder, which encodes its source as a "
            "whole; leave it out. Causal models take it."
        )


def check_class_labels(labels: torch.Tensor, rows: int, config: Any) -> None:
    """Raise `ValueError` unless each row has one class, one number, or a number for each label."""
    check_is_tensor("labels", labels)
    count, kind = config.num_labels, config.problem_type
    is_number = count == 1 or kind == "regression"
    is_class = not is_number and kind != "multi_label_classification"
    if is_class and (labels.dtype in (torch.long, torch.int) or kind):
        check_labels("labels", labels, (rows, 1) if labels.ndim == 2 else (rows,), count)
        return
    shapes = [(rows,), (rows, 1)] if count == 1 else [(rows, count)]
    if has_values(labels) and tuple(labels.shape) not in shapes:
        raise ValueError(
            f"labels has the shape {list(labels.shape)} and the dtype {labels.dtype}; expected "
            f"{list(shapes[0])} with num_labels={count} and problem_type={kind!r}."
        )


def check_answers(
    rows: int, start_positions: torch.Tensor | None, end_positions: torch.Tensor | None
) -> None:
    """Raise `ValueError` unless both ends of the answers are given, one for each row, or none."""
    if (start_positions is None) != (end_positions is None):
        missing = "start_positions" if start_positions is None else "end_positions"
        raise ValueError(f"{missing} is missing: give both ends of the answers, or none.")
    for name, positions in (("start_positions", start_positions), ("end_positions", end_positions)):
        if positions is None:
            continue
        check_is_tensor(name, positions)
        check_ids(name, positions, (rows,) if positions.ndim == 1 else (rows, 1))
        if can_be_checked(positions) and positions.min() < 0:
            raise ValueError(
                f"{name} holds {int(positions.min())}; tokens are counted from 0; the text's length "
                "stands for no answer."
            )
