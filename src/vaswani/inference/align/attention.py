"""Compute how much each target token of a pair attends to each source token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from transformers import PreTrainedModel

from vaswani.inference.batches import padded
from vaswani.inference.cross_attention import Layer, cross_attention

Step = Literal["predict", "read"]
STEPS = ("predict", "read")


def attention_of_pairs(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    start_token_id: int,
    *,
    layer: Layer | None = None,
    heads: Sequence[int] | None = None,
    step: Step = "predict",
) -> list[torch.Tensor]:
    """Return the attention of each target token to the tokens of its source.

    Args:
        model: an encoder-decoder in evaluation mode, or an `Ensemble`.
        sources: token ids of the sources, in the form that the model was trained with.
        targets: token ids of the targets, without the start token; the end token is optional.
        start_token_id: begins the decoder's input.
        layer, heads: as in `cross_attention`.
        step: the decoder step whose attention represents a token: `"predict"` is the step that predicts the
            token, `"read"` the next step, which reads it as input.

    Returns:
        The weights of each pair, float32 [T, S] on the CPU; rows sum to 1.

    Raises:
        UserError, RunError: as `cross_attention`.
    """
    device, padding = model.device, model.config.pad_token_id or 0
    first = int(step == "read")
    sequences, _ = padded(
        [[start_token_id, *target, *[padding] * first] for target in targets], padding, device
    )
    sides = *padded(sources, padding, device), sequences
    found = cross_attention(model, *sides, layer=layer, heads=heads).cpu()
    return [
        weights[first : first + len(target), : len(source)]
        for weights, source, target in zip(found, sources, targets, strict=True)
    ]
