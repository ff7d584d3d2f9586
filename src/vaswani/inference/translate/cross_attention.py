"""What each token of a given translation attends to in its source.

The weights are those of the decoder's last layer, the mean of its heads; of an ensemble, the mean of its
members too. Other choices are possible: the last layer is the one that the output is computed from.

S sources · K targets of each · L source length · T target length · H heads
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from vaswani.errors import UserError
from vaswani.inference.decoding import masking_inputs
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.model.stacks import VaswaniPreTrainedModel

_WEIGHTS_AT_ONCE = 1 << 25  # 128 MiB in float32, of a layer


@torch.inference_mode()
def cross_attention(
    model: PreTrainedModel, input_ids: torch.Tensor, attention_mask: torch.Tensor, sequences: torch.Tensor
) -> torch.Tensor:
    """Return the weights by which each target token is predicted from the source tokens.

    Args:
        model: an encoder-decoder in evaluation mode, or an `Ensemble`.
        input_ids: int64 [S, L].
        attention_mask: int64 [S, L], 0 for padding of the source.
        sequences: int64 [S·K, 1 + T]: start token and target; the K targets of a source are adjacent.

    Returns:
        float32 [S·K, T, L]; the weights of a token sum to 1.

    Raises:
        UserError: the model does not return its weights.
    """
    members = _members(model)
    weights = [_weights(member, input_ids, attention_mask, sequences) for member in members]
    return torch.stack(weights).mean(dim=0)


def check_returns_weights(model: PreTrainedModel, option: str) -> None:
    """Raise a UserError if the class of a model cannot return its weights, which an option needs."""
    for member in _members(model):
        known = inspect.signature(member.forward).parameters
        if "output_attentions" not in known and all(each.kind != each.VAR_KEYWORD for each in known.values()):
            raise _returns_no_weights(member, option)


def _returns_no_weights(model: Any, option: str) -> UserError:
    return UserError(
        f"{option} needs the weights of the cross-attention, which {type(model).__name__} does not return; "
        "leave it out"
    )


def _members(model: Any) -> list[Any]:
    return [*model.members] if isinstance(model, Ensemble) else [model]


def _weights(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, sequences: torch.Tensor
) -> torch.Tensor:
    """Return the weights of one model, [S·K, T, L]."""
    model = _returning_weights(model)
    rows_per_source = len(sequences) // len(input_ids)
    states = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    source_of_row = torch.arange(len(input_ids), device=states.device).repeat_interleave(rows_per_source)
    of_a_row = sequences.shape[1] * (input_ids.shape[1] + sequences.shape[1]) * 16  # heads, about
    rows_at_once = max(1, _WEIGHTS_AT_ONCE // of_a_row)
    found = []
    for rows in torch.arange(len(sequences), device=states.device).split(rows_at_once):
        outputs = model(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[source_of_row[rows]]),
            attention_mask=attention_mask[source_of_row[rows]],
            decoder_input_ids=sequences[rows, :-1],
            use_cache=False,
            output_attentions=True,
            **masking_inputs(model, sequences[rows, :-1]),
        )
        if not outputs.cross_attentions or outputs.cross_attentions[-1] is None:
            raise _returns_no_weights(model, "an option of decoding")
        found.append(outputs.cross_attentions[-1].float().mean(dim=1))  # [rows, H, T, L]
    return torch.cat(found)


def _returning_weights(model: Any) -> Any:
    """Return a model that can return its weights: ours always can, others with attention in plain operations.

    The other one shares all tensors with the model, and has a configuration of its own, so that other threads
    can go on with the model.
    """
    if model.config._attn_implementation == "eager" or isinstance(model, VaswaniPreTrainedModel):
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    twin.set_attn_implementation("eager")
    return twin


def coverage(weights: torch.Tensor, lengths: torch.Tensor, source_mask: torch.Tensor) -> torch.Tensor:
    """Return Σ_i log(min(Σ_j p_ij, 1)) of each target: how much of its source it has read, at most 0.

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
