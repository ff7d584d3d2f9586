# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Multi-head attention (Vaswani et al., 2017, section 3.2.2), dense and sparse.

B batch · S source length · T target length · H heads · Dk width of queries and keys · Dv width of values
(usually the same D) · d_model = H·Dv
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, Cache, EncoderDecoderCache
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .configuration_vaswani import VaswaniFamilyConfig
from .operators import Linear
from .sparse_attention import attend_by_pattern, dense_mask, sparse_attention_step
from .sparse_pattern import SparsePattern

# The library's attention implementations. Kernels replace entries here, for our models only.
ATTENTION_FUNCTIONS = AttentionInterface()


def wants_weights(config: VaswaniFamilyConfig, arguments: Mapping[str, Any]) -> bool:
    """Return whether a forward pass must return attention weights, which only the reference can."""
    asked = arguments.get("output_attentions")
    return bool(config.output_attentions if asked is None else asked)


def additive_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a bool mask to 0 where True and −inf where False; return a float mask unchanged."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(QKᵀ / sqrt(Dk)) V (equation 1), the reference for every kernel.

    Query [B, H, T, Dk], key [B, H, S, Dk] and value [B, H, S, Dv]; the mask is bool (True: visible) or
    additive float and broadcasts to [B, H, T, S]; None hides nothing. Returns the output [B, T, H, Dv] and
    the weights [B, H, T, S]. A row that sees nothing has weights of zero.
    """
    precision = torch.promote_types(query.dtype, torch.float32)
    scores = (query @ key.transpose(-2, -1)).to(precision)  # [B, H, T, S]
    if attention_mask is None:
        weights = (scores * scaling).softmax(-1)
    else:
        mask = additive_mask(attention_mask, precision)
        lowest = torch.finfo(mask.dtype).min
        # A finite minimum keeps a row that sees nothing free of NaN; its weights are zeroed afterwards.
        scores = torch.add(mask.clamp(min=lowest), scores, alpha=scaling)
        weights = scores.softmax(-1).masked_fill(mask <= lowest, 0.0)
    weights = weights.to(value.dtype)
    if dropout:
        weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (weights @ value).transpose(1, 2), weights


def _pattern_of_heads(module: nn.Module, num_heads: int) -> SparsePattern:
    """Return `module.pattern` for the heads of this process: some of them under tensor parallelism."""
    pattern: SparsePattern = module.pattern
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    mesh = None if num_heads == pattern.num_heads else next(filter(None, meshes), None)
    if mesh is None:
        return pattern
    return replace(pattern, num_heads=num_heads, first_head=mesh["tp"].get_local_rank() * num_heads)


def sparse_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    past_length: int | torch.Tensor = 0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute sparse self-attention under `module.pattern`; the reference computes it if weights are wanted.

    Query [B, H, T, Dk], key [B, H, S, Dk] and value [B, H, S, Dv]; the mask is the padding mask [B, all
    tokens so far]; `past_length` tokens precede the queries. Returns the output [B, T, H, Dv] and the weights
    or None.
    """
    pattern = _pattern_of_heads(module, query.shape[1])
    if module.config._attn_implementation == "eager" or kwargs.get("output_attentions"):
        visible = dense_mask(pattern, query.shape[2], key.shape[2], past_length, attention_mask, key.device)
        return eager_attention_forward(module, query, key, value, visible, scaling, dropout)
    if isinstance(past_length, int) and past_length == 0:
        length = query.shape[2]  # the rest of a fixed-size cache is still empty
        key, value = key[:, :, :length], value[:, :, :length]
        attention_mask = None if attention_mask is None else attention_mask[:, :length].bool()
        output = attend_by_pattern(query, key, value, pattern, attention_mask, scaling, dropout)
    else:
        output = sparse_attention_step(query, key, value, pattern, past_length, attention_mask, scaling)
    return output.transpose(1, 2), None


class VaswaniAttention(nn.Module):
    """Multi-head attention (section 3.2.2): self-attention, or over `key_value_states` from the encoder.

    The rows of a batch may share keys: with K times as many query rows as key rows (the beams or samples of
    one source), every K consecutive query rows attend to one row of keys, which is not copied.

    With a pattern, self-attention is sparse and takes the padding mask [B, S] directly.
    """

    def __init__(
        self,
        config: VaswaniFamilyConfig,
        num_heads: int,
        layer_idx: int,
        is_causal: bool = False,
        pattern: SparsePattern | None = None,
    ):
        super().__init__()
        self.config = config
        self.pattern = pattern
        self.layer_idx = layer_idx
        self.is_causal = is_causal  # read by the kernels when there is no mask
        self.key_dim, self.value_dim = config.head_widths(num_heads)
        self.scaling = self.key_dim**-0.5
        self.dropout = config.attention_dropout
        self.q_proj = Linear(config.d_model, num_heads * self.key_dim, bias=config.attention_bias)
        self.k_proj = Linear(config.d_model, num_heads * self.key_dim, bias=config.attention_bias)
        self.v_proj = Linear(config.d_model, config.d_model, bias=config.attention_bias)
        self.out_proj = Linear(config.d_model, config.d_model, bias=config.attention_output_bias)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        key_value_states: torch.Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[B, T, d_model] -> [B, T, d_model] and the weights [B, H, T, S], or None from a fused kernel."""
        rows, length = hidden_states.shape[:2]
        past_length = self._past_length(past_key_values)
        key, value = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        query = self.q_proj(hidden_states).view(key.shape[0], -1, key.shape[1], self.key_dim).transpose(1, 2)

        attention: Callable = sparse_attention_forward
        if self.pattern is None:
            attention = self._dense_attention(attention_mask, kwargs)
        else:
            kwargs["past_length"] = past_length  # type: ignore[typeddict-unknown-key]
        dropout = self.dropout if self.training else 0.0
        states = (query, key, value)
        output, weights = attention(
            self, *states, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        if weights is not None and weights.shape[0] != rows:  # [B/K, H, K·T, S] -> [B, H, T, S]
            weights = weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return self.out_proj(output.reshape(rows, length, -1)), weights

    def _past_length(self, past_key_values: Cache | None) -> int | torch.Tensor:
        """Return the number of cached tokens, which only sparse patterns need; 0 for others."""
        if self.pattern is None or past_key_values is None:
            return 0
        if isinstance(past_key_values, EncoderDecoderCache):
            past_key_values = past_key_values.self_attention_cache
        past_length = past_key_values.get_seq_length(self.layer_idx)
        # A fixed-size cache changes its count in place.
        return past_length.clone() if isinstance(past_length, torch.Tensor) else past_length

    def _dense_attention(
        self, attention_mask: torch.Tensor | None, arguments: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return the configured implementation, or another if it does not support the arguments."""
        if arguments.get("output_attentions"):
            return eager_attention_forward
        implementation = self.config._attn_implementation
        if "flash" in implementation and attention_mask is not None and attention_mask.ndim == 4:
            # Flash kernels unpad queries by the mask of the keys, which is wrong for cross-attention.
            implementation = "sdpa"
        kernel = ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        # Flash kernels take heads of one width.
        return (
            with_one_width(kernel) if "flash" in implementation and self.key_dim != self.value_dim else kernel
        )

    def _keys_and_values(
        self,
        hidden_states: torch.Tensor,
        key_value_states: torch.Tensor | None,
        past_key_values: Cache | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [B, H, S, Dk] and values [B, H, S, Dv] and update the cache; a source's come once."""
        is_cross_attention = key_value_states is not None
        cache = past_key_values
        if isinstance(past_key_values, EncoderDecoderCache):
            if is_cross_attention:
                cache = past_key_values.cross_attention_cache
                if past_key_values.is_updated.get(self.layer_idx):
                    return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
                past_key_values.is_updated[self.layer_idx] = True
            else:
                cache = past_key_values.self_attention_cache

        states = key_value_states if is_cross_attention else hidden_states
        shape = states.shape[:-1]
        key = self.k_proj(states).view(*shape, -1, self.key_dim).transpose(1, 2)
        value = self.v_proj(states).view(*shape, -1, self.value_dim).transpose(1, 2)
        return (key, value) if cache is None else cache.update(key, value, self.layer_idx)


def padded_to(width: int, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pad queries, keys and values [B, H, n, at most width] with zeros -> [B, H, n, width].

    Zeros do not change the scores. The caller cuts the output to the width of the values.
    """
    return tuple(
        nn.functional.pad(each, (0, width - each.shape[-1])) if each.shape[-1] < width else each
        for each in states
    )


def with_one_width(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return an attention function of transformers that pads the states for one that needs equal widths."""

    def attend(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        width = max(query.shape[-1], value.shape[-1])
        output, weights = kernel(module, *padded_to(width, query, key, value), *args, **kwargs)
        return output[..., : value.shape[-1]], weights

    return attend
