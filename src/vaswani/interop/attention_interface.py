"""Sparse attention as an attention implementation of transformers, called `"vaswani_sparse"`.

A model of transformers makes one mask for all its layers. For this implementation it is the padding mask; its
dtype and length tell the kernel the rest:

    int8 [B, 1, 1, S]           bidirectional attention, or cross-attention
    int32 [B, 1, 1, P + T]      causal; the queries are the last T of P + T tokens
    int32 [B, 1, 1, S + 1]      causal; the last number is P, which a static cache counts in a tensor

Masks of other dtypes come from users and are refused.

B batch · H heads · T queries · S keys · P tokens before the queries · D head width
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
from transformers.utils import is_torchdynamo_compiling
from transformers.utils.output_capturing import _active_collector

from vaswani.errors import UserError
from vaswani.model.attention import eager_attention_forward, sparse_attention_forward
from vaswani.model.input_checks import can_be_checked, warn_of_left_padding
from vaswani.model.sparse_pattern import SparsePattern

IMPLEMENTATION = "vaswani_sparse"
BOTH_WAYS, CAUSAL = torch.int8, torch.int32

# Arguments of attention functions that sparse attention does not support.
_REFUSED = (
    *("position_bias", "head_mask", "softcap", "s_aux", "sinks", "sliding_window", "block_sequence_ids"),
    *("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx", "cache", "indices", "block_indices"),
)


def sparse_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor:
    """Return the mask that `attend` reads (see the top of this file).

    Args:
        batch_size, q_length, kv_length: B, T and S.
        q_offset: P; a tensor [] if a static cache counts it.
        kv_offset: the number of keys that the cache has dropped.
        mask_function: transformers' causal or bidirectional mask function.
        attention_mask: bool [B, any length], False for padding; tokens beyond its length are padding too.
        device: device of the mask.

    Raises:
        UserError: the mask is more than causal or bidirectional with padding, or has a wrong length.
    """
    _check_mask(mask_function, attention_mask, kv_offset, kwargs.get("local_size"))
    if attention_mask is not None and can_be_checked(attention_mask):
        warn_of_left_padding(attention_mask)
    if mask_function is bidirectional_mask_function:
        return _shown(attention_mask, batch_size, kv_length, device).to(BOTH_WAYS)[:, None, None]
    if isinstance(q_offset, int) and attention_mask is not None:
        given, tokens = attention_mask.shape[1], q_offset + q_length
        if given == kv_length != tokens:  # without a cache, transformers takes kv_length from the mask
            raise UserError(
                f"attention_mask is for {given} tokens and there are {tokens}; give one of {tokens}."
            )
    if isinstance(q_offset, torch.Tensor) and q_length > 1 and not is_torchdynamo_compiling():
        q_offset = int(q_offset)  # worth waiting for the device: a prompt at the start has a faster kernel
    if isinstance(q_offset, torch.Tensor):
        shown = _shown(attention_mask, batch_size, kv_length, device).to(CAUSAL)
        past = q_offset.to(device=device, dtype=CAUSAL).expand(batch_size, 1)
        return torch.cat([shown, past], dim=1)[:, None, None]
    return _shown(attention_mask, batch_size, q_offset + q_length, device).to(CAUSAL)[:, None, None]


def _shown(
    attention_mask: torch.Tensor | None, batch_size: int, length: int, device: torch.device | str
) -> torch.Tensor:
    """Return which tokens are not padding: bool [B, length]."""
    if attention_mask is None:
        return torch.ones(batch_size, length, dtype=torch.bool, device=device)
    return nn.functional.pad(attention_mask, (0, length - attention_mask.shape[1]))  # negative: truncate


def _check_mask(
    mask_function: Callable,
    attention_mask: torch.Tensor | None,
    kv_offset: int,
    local_size: int | None,
) -> None:
    if local_size is not None:
        raise UserError(
            f"sparse attention has no sliding windows or chunks; the model asks for {local_size} tokens. "
            "Set config.sliding_window=None before the model is built, or take the dense model."
        )
    if mask_function not in (causal_mask_function, bidirectional_mask_function):
        name = getattr(mask_function, "__qualname__", repr(mask_function))
        raise UserError(
            f"sparse attention is causal or bidirectional with padding; the model asks for more ({name}): "
            "packed sequences, a sliding window or a mask function of its own. Put one sequence into a row; "
            "where position_ids are given or the model is compiled, give attention_mask too."
        )
    if attention_mask is not None and attention_mask.ndim != 2:
        raise _unknown_mask(attention_mask)
    if kv_offset:
        raise UserError(
            f"the cache has dropped {kv_offset} keys, and sparse attention looks back at all; "
            "take a cache without a sliding window."
        )


def _unknown_mask(attention_mask: torch.Tensor) -> UserError:
    return UserError(
        f"sparse attention takes a padding mask [batch, length]; got {attention_mask.dtype} "
        f"{list(attention_mask.shape)}. A mask for each query needs the dense model."
    )


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention with `module.pattern`, or dense cross-attention if that is None.

    The reference implementation computes if weights are requested, and in training steps that continue a
    cache.

    Args:
        module: an attention module of transformers, with a pattern.
        query: [B, H, T, D].
        key, value: [B, H, S, D], or with fewer heads, each of which serves several query heads. Values may
            have another width.
        attention_mask: from `sparse_mask`.
        scaling: 1 / sqrt(D) by default.
        dropout: dropout probability of the weights.

    Returns:
        [B, T, H, D] and the weights [B, H, T, S], or None from a kernel.

    Raises:
        UserError: an argument or mask is not supported, or the configuration has another pattern.
    """
    pattern = _pattern_of(module)
    if pattern is not None:
        check_pattern(module.config, pattern)
    _check_arguments(module, pattern, kwargs)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    # Under autocast, rotary embeddings return float32.
    query, key = query.to(value.dtype), key.to(value.dtype)
    wants_weights = _wants_weights(kwargs)
    if pattern is None:  # cross-attention, with a mask of any kind
        if attention_mask is not None and attention_mask.dtype == BOTH_WAYS:
            attention_mask = attention_mask.bool()
        inputs = (module, query, key, value, attention_mask)
        if wants_weights:
            return eager_attention_forward(*inputs, scaling, dropout)
        return sdpa_attention_forward(*inputs, dropout=dropout, scaling=scaling, is_causal=False)
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    padding_mask, past_length = _read_mask(attention_mask, pattern, query.shape[2], key.shape[2])
    continues = not (isinstance(past_length, int) and past_length == 0)
    output, weights = sparse_attention_forward(
        *(module, query, key, value, padding_mask, scaling, dropout, past_length),
        output_attentions=wants_weights or (continues and dropout > 0),
    )
    return output.contiguous(), weights  # some models call `view` on it


def _pattern_of(module: nn.Module) -> SparsePattern | None:
    if not hasattr(module, "pattern"):
        raise UserError(
            f"{type(module).__name__} has no sparse pattern. Open a sparse checkpoint with the Auto classes, "
            "not with a dense class; make a dense model sparse with vaswani.sparsify(model)."
        )
    return module.pattern  # type: ignore[return-value]  # a plain attribute


def check_pattern(config: Any, pattern: SparsePattern) -> None:
    """Check that the pattern of an attention module is still that of a configuration.

    A module's pattern is made once. A saved model is loaded with the pattern of its configuration, so a
    changed configuration would silently change the pattern.

    Raises:
        UserError: a field of the configuration was changed.
    """
    for name in ("block_size", "window_blocks", "global_blocks", "random_blocks", "seed"):
        used, configured = getattr(pattern, name), getattr(config, f"sparse_{name}")
        if used != configured:
            raise UserError(
                f"config.sparse_{name} was changed to {configured}, and the model uses {used}; "
                "call vaswani.sparsify(model, ...) again for another pattern."
            )


def refused_arguments(arguments: dict[str, Any]) -> list[str]:
    """Return the names of those arguments of an attention function that sparse attention does not support."""
    return [name for name in _REFUSED if arguments.get(name) is not None]


def _check_arguments(module: nn.Module, pattern: SparsePattern | None, kwargs: dict[str, Any]) -> None:
    for name in refused_arguments(kwargs):
        raise UserError(f"sparse attention does not support {name}; leave it out or take the dense model.")
    is_causal = kwargs.get("is_causal")
    if pattern is not None and is_causal is not None and is_causal != pattern.causal:
        raise UserError(
            f"is_causal={is_causal}, but the pattern of {type(module).__name__} has causal={pattern.causal}; "
            "set config.is_causal or config.is_decoder before vaswani.sparsify."
        )


def _wants_weights(kwargs: dict[str, Any]) -> bool:
    # GPT-2 does not pass `output_attentions` on, and the configuration may request weights: transformers'
    # collector knows both. Gradient checkpointing recomputes without the collector, but with the arguments.
    collected = _active_collector.get() or ()
    return (
        bool(kwargs.get("output_attentions")) or "attentions" in collected or "cross_attentions" in collected
    )


def _read_mask(
    attention_mask: torch.Tensor | None, pattern: SparsePattern, num_queries: int, num_keys: int
) -> tuple[torch.Tensor, int | torch.Tensor]:
    """Return the padding mask [B, at most S] and P.

    P is the int 0 if no tokens precede the queries, also in an export, where lengths are symbolic.

    Raises:
        UserError: the mask is not from `sparse_mask`, or does not fit the pattern.
    """
    if attention_mask is None:
        raise UserError("no mask reached sparse attention; give attention_mask=[batch, length].")
    if attention_mask.dtype not in (BOTH_WAYS, CAUSAL) or attention_mask.shape[1:3] != (1, 1):
        raise _unknown_mask(attention_mask)
    is_causal = attention_mask.dtype == CAUSAL
    if is_causal != pattern.causal:
        raise UserError(
            f"the model's mask is {'' if is_causal else 'not '}causal and its pattern has "
            f"causal={pattern.causal}; set config.is_causal or config.is_decoder before vaswani.sparsify."
        )
    shown = attention_mask[:, 0, 0]
    if not is_causal and not num_queries == num_keys == shown.shape[1]:
        raise UserError(
            f"bidirectional sparse attention takes one sequence; got {num_queries} queries, {num_keys} keys "
            f"and a mask of {shown.shape[1]}. Prefixes and caches need a causal model."
        )
    if shown.shape[1] > num_keys:
        return shown[:, :-1], shown[0, -1].long()
    past_length = shown.shape[1] - num_queries
    return shown, 0 if not is_causal or statically_known_true(past_length == 0) else past_length


AttentionInterface.register(IMPLEMENTATION, attend)
AttentionMaskInterface.register(IMPLEMENTATION, sparse_mask)  # without it, padding would be lost silently
