"""The cross-attention of an encoder-decoder: how much each target token attends to each source token.

R pairs of a batch · H heads · S source length · T target length
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vaswani.errors import UserError
from vaswani.inference.decoding import masking_inputs
from vaswani.inference.translate.finite_scores import check_finite_scores
from vaswani.inference.translate.scoring import rows_at_once
from vaswani.interop.attention_interface import IMPLEMENTATION
from vaswani.model.stacks import VaswaniPreTrainedModel

Layer = int | Literal["all"]
Step = Literal["predict", "read"]
STEPS = ("predict", "read")
FEW_LAYERS = 3  # of which the last aligns best; of more it is the last but one (arXiv:1909.02074)


def use_reference_attention(model: PreTrainedModel) -> None:
    """Let a model compute attention by its reference, which returns weights; fused kernels return none.

    Models of vaswani, and sparse ones of transformers, choose it themselves where weights are asked for.
    """
    implementation = model.config._attn_implementation
    if not isinstance(model, VaswaniPreTrainedModel) and implementation not in ("eager", IMPLEMENTATION):
        model.set_attn_implementation("eager")


@torch.inference_mode()
def cross_attention(
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
        model: an encoder-decoder in evaluation mode that returns weights (see `use_reference_attention`).
        sources: token ids, as the model was trained with.
        targets: token ids of the targets, without the start token; an end token may lack.
        start_token_id: begins the decoder's input.
        layer: of the decoder, from 0; `"all"` is the mean of all. None means the last but one, or of up to
            three the last.
        heads: whose mean is taken, from 0; None means all.
        step: the decoder's step that tells for a token: that which predicts it, or the next one, which reads
            it as input.

    Returns:
        For each pair the weights, float32 [T, S] on the CPU; rows sum to 1.

    Raises:
        UserError: the model returns no weights, or has no such layer or head.
        RunError: the model's results are not finite.
    """
    arguments = inspect.signature(model.forward).parameters.values()
    if not any(each.name == "output_attentions" or each.kind == each.VAR_KEYWORD for each in arguments):
        raise _no_weights(model)
    device, padding = model.device, model.config.pad_token_id or 0
    rows = [torch.tensor(source, device=device) for source in sources]
    input_ids = pad_sequence(rows, True, padding)
    mask = pad_sequence([torch.ones_like(row) for row in rows], True)
    states = model.get_encoder()(input_ids=input_ids, attention_mask=mask).last_hidden_state
    inputs = [[start_token_id, *(target if step == "read" else target[:-1])] for target in targets]
    decoder_input_ids = pad_sequence([torch.tensor(each, device=device) for each in inputs], True, padding)
    found: list[torch.Tensor] = []
    for part in rows_at_once(
        len(inputs), _size(model, decoder_input_ids.shape[1], input_ids.shape[1]), device
    ):
        outputs = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[part]),
            attention_mask=mask[part],
            decoder_input_ids=decoder_input_ids[part],
            output_attentions=True,
            use_cache=False,
            **masking_inputs(model, decoder_input_ids[part]),
        )
        weights = _mean(model, outputs.cross_attentions, layer, heads)  # [R, T, S]
        is_finite = weights.isfinite().all() & outputs.logits.amax(dim=-1).isfinite().all()
        check_finite_scores(is_finite, model)  # logits tell of later layers too
        found += weights.cpu()
    first = int(step == "read")
    return [
        weights[first : first + len(target), : len(source)]
        for weights, source, target in zip(found, sources, targets, strict=True)
    ]


def _size(model: PreTrainedModel, target_length: int, source_length: int) -> int:
    """Return how many numbers the outputs of a pair hold: logits, and the weights of all layers."""
    config: Any = model.config
    output: Any = model.get_output_embeddings()
    names = ("decoder_layers", "num_hidden_layers"), ("decoder_attention_heads", "num_attention_heads")
    layers, heads = (next((getattr(config, name, None) or 8 for name in each), 8) for each in names)
    return target_length * (output.weight.shape[0] + layers * heads * (source_length + target_length))


def _mean(
    model: PreTrainedModel, attentions: Any, layer: Layer | None, heads: Sequence[int] | None
) -> torch.Tensor:
    """Return the mean of the weights of layers and heads: float32 [R, T, S]."""
    if not attentions or any(weights is None for weights in attentions):
        raise _no_weights(model)
    if layer is None:
        layer = -2 if len(attentions) > FEW_LAYERS else -1
    if layer != "all":
        check_numbers("layer", [layer], len(attentions))
    chosen = attentions if layer == "all" else [attentions[layer]]
    if heads is not None:
        check_numbers("heads", heads, attentions[0].shape[1])
        if len({head % attentions[0].shape[1] for head in heads}) < len(heads):
            raise UserError(f"heads={','.join(map(str, heads))} names a head twice; give each once")
        chosen = [weights[:, list(heads)] for weights in chosen]
    return torch.stack([weights.float().mean(dim=1) for weights in chosen]).mean(dim=0)


def _no_weights(model: PreTrainedModel) -> UserError:
    return UserError(
        f"{type(model).__name__} returns no weights of cross-attention; use another model, or load it with "
        "attn_implementation='eager'"
    )


def check_numbers(option: str, numbers: Sequence[int], count: int) -> None:
    """Raise a UserError for numbers of layers or heads that the model does not have."""
    for number in numbers:
        if not -count <= number < count:
            raise UserError(
                f"{option}={number}: the model's decoder has {count}; expected 0 to {count - 1}, or "
                f"-{count} to -1"
            )
