"""The cross-attention of an encoder-decoder: how much each token of a given target attends to its source.

S sources · K targets of each · L source length · T target length · H heads
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vaswani.errors import UserError
from vaswani.inference.finite_scores import check_finite_scores
from vaswani.inference.onnx.base import OnnxPreTrainedModel
from vaswani.inference.token_log_probs import masking_inputs, rows_at_once
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.interop.attention_interface import IMPLEMENTATION
from vaswani.model.stacks import VaswaniPreTrainedModel

Layer = int | Literal["all"]
FEW_LAYERS = 3  # up to 3 layers, the last aligns best; in deeper models the last but one (arXiv:1909.02074)


@torch.inference_mode()
def cross_attention(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    *,
    layer: Layer | None = -1,
    heads: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return the attention weights over the source tokens with which each target token is predicted.

    Args:
        model: an encoder-decoder in evaluation mode, or an `Ensemble`, whose members' attention is averaged
            with their weights.
        input_ids: int64 [S, L].
        attention_mask: int64 [S, L], 0 for padding of the source.
        sequences: int64 [S·K, 1 + T]: start token and target; the K targets of a source are adjacent.
        layer: layer of the decoder, counted from 0, or backward from -1; `"all"` averages all layers. None
            means the last layer but one (Garg et al., 2019, arXiv:1909.02074), or the last of up to three.
        heads: heads to average, counted from 0; None means all.

    Returns:
        float32 [S·K, T, L]; the weights of a token sum to 1.

    Raises:
        UserError: the model returns no weights, or has no such layer or head.
        RunError: the model's results are not finite.
    """
    weights = [
        _weights(each, input_ids, attention_mask, sequences, layer, heads) for each in members_of(model)
    ]
    return model.mean(weights) if isinstance(model, Ensemble) else weights[0]


def check_returns_weights(model: PreTrainedModel, option: str) -> None:
    """Raise a UserError if a model's class cannot return the attention weights that an option needs."""
    for member in members_of(model):
        if not takes_output_attentions(member):
            raise _returns_no_weights(member, option)


def takes_output_attentions(model: PreTrainedModel) -> bool:
    """Return whether a model takes `output_attentions`; its layers may still return no weights."""
    if isinstance(model, OnnxPreTrainedModel):  # its files have no such outputs
        return False
    known = inspect.signature(model.forward).parameters
    return "output_attentions" in known or any(each.kind == each.VAR_KEYWORD for each in known.values())


def members_of(model: Any) -> list[Any]:
    """Return the members of an ensemble, or a list of the model itself."""
    return [*model.members] if isinstance(model, Ensemble) else [model]


def _returns_no_weights(model: Any, option: str) -> UserError:
    is_onnx = isinstance(model, OnnxPreTrainedModel)
    name, remedy = ("a model in ONNX", "engine=torch") if is_onnx else (type(model).__name__, "another model")
    return UserError(
        f"{name} returns no weights of cross-attention, which {option} needs; leave it out, or use {remedy}"
    )


def _weights(
    model: Any,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    sequences: torch.Tensor,
    layer: Layer | None,
    heads: Sequence[int] | None,
) -> torch.Tensor:
    """Return the weights of one model, [S·K, T, L]."""
    model = with_attention_weights(model)
    rows_per_source = len(sequences) // len(input_ids)
    states = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    source_of_row = torch.arange(len(input_ids), device=states.device).repeat_interleave(rows_per_source)
    size = _size_of_outputs(model, sequences.shape[1], input_ids.shape[1])
    found = []
    for rows in rows_at_once(len(sequences), size, states.device):
        outputs = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[source_of_row[rows]]),
            attention_mask=attention_mask[source_of_row[rows]],
            decoder_input_ids=sequences[rows, :-1],
            use_cache=False,
            output_attentions=True,
            **masking_inputs(model, sequences[rows, :-1]),
        )
        weights = _mean(model, outputs.cross_attentions, layer, heads)
        is_finite = weights.isfinite().all() & outputs.logits.amax(dim=-1).isfinite().all()
        check_finite_scores(is_finite, model)  # the logits are not finite if a later layer fails
        found.append(weights)
    return torch.cat(found)


def with_attention_weights(model: Any) -> Any:
    """Return a model that can return its attention weights: the given one, or a copy with eager attention.

    Models of vaswani can always return their weights, others only with eager attention. The copy shares all
    tensors with the model but has its own configuration, so other threads can continue to use the model.
    """
    returns = model.config._attn_implementation in ("eager", IMPLEMENTATION)
    if returns or isinstance(model, VaswaniPreTrainedModel):
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    twin.set_attn_implementation("eager")
    return twin


def _size_of_outputs(model: Any, target_length: int, source_length: int) -> int:
    """Return the number of elements in the outputs of a row: logits, and the weights of all layers."""
    config = model.config
    names = ("decoder_layers", "num_hidden_layers"), ("decoder_attention_heads", "num_attention_heads")
    layers, heads = (next((getattr(config, name, None) or 8 for name in each), 8) for each in names)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    return target_length * (vocab_size + layers * heads * (source_length + target_length))


def _mean(model: Any, attentions: Any, layer: Layer | None, heads: Sequence[int] | None) -> torch.Tensor:
    """Return the weights averaged over the chosen layers and heads: float32 [rows, T, L]."""
    if not attentions or any(weights is None for weights in attentions):
        raise _returns_no_weights(model, "this option")
    if layer is None:
        layer = -2 if len(attentions) > FEW_LAYERS else -1
    if layer != "all":
        _check_numbers("layer", [layer], len(attentions))
    chosen = attentions if layer == "all" else [attentions[layer]]
    if heads is not None:
        count = attentions[0].shape[1]
        _check_numbers("heads", heads, count)
        if len({head % count for head in heads}) < len(heads):
            raise UserError(f"heads={','.join(map(str, heads))} names a head twice; give each once")
        chosen = [weights[:, list(heads)] for weights in chosen]
    return torch.stack([weights.float().mean(dim=1) for weights in chosen]).mean(dim=0)


def _check_numbers(option: str, numbers: Sequence[int], count: int) -> None:
    """Raise a UserError for numbers of layers or heads that the model does not have."""
    for number in numbers:
        if not -count <= number < count:
            raise UserError(
                f"{option}={number}: the model's decoder has {count}; expected 0 to {count - 1}, or "
                f"-{count} to -1"
            )


def coverage(weights: torch.Tensor, lengths: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """Return Σ_i log(min(Σ_j p_ij, 1)) of each target: how completely it covers its source, at most 0.

    Wu et al., 2016, arXiv:1609.08144, equation 14: i are the source tokens, the end token included, and j the
    target tokens.

    Args:
        weights: p_ji, float32 [S·K, T, L].
        lengths: int64 [S·K], the tokens of each target; later tokens do not count.
        source_mask: int64 [S·K, L], 0 for padding.

    Returns:
        float32 [S·K].
    """
    counts = torch.arange(weights.shape[1], device=weights.device) < lengths[:, None]  # [S·K, T]
    attended = weights.masked_fill(~counts[..., None], 0.0).sum(dim=1)  # [S·K, L]
    logs = attended.clamp(torch.finfo(weights.dtype).tiny, 1.0).log()
    return logs.masked_fill(source_mask == 0, 0.0).sum(dim=1)
