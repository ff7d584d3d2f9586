"""Floating-point operations of a model.

Only matrix products, which dominate, are counted: two operations for each weight and token, and, in
attention, for each pair of tokens and feature. `torch.utils.flop_counter.FlopCounterMode` counts the same for
the reference implementation. Dense attention counts all pairs, also in a decoder, whichever kernel computes
it; sparse attention counts the pairs that its pattern makes visible. A training step takes three times as
many operations as the forward pass (Kaplan et al., 2020, arXiv:2001.08361, section 2.1): the backward pass
takes two products for each product of the forward pass.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from vaswani.insight.arithmetic.visible_pairs import visible_pairs
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

Number = TypeVar("Number", int, torch.Tensor)

FORWARD_AND_BACKWARD = 3
# Linear layers above the stacks that are applied to every token; others are applied once per text.
HEADS_OF_TOKENS = ("lm_head", "mlm_transform.dense", "qa_outputs")


def stack_flops(config: VaswaniFamilyConfig, stack: str, rows: int, length: int) -> int:
    """Return the operations of a stack's self-attention and feed-forward layers, without the head.

    Args:
        config: of the model.
        stack: "encoder" or "decoder".
        rows: number of rows of the batch.
        length: tokens per row, including padding.
    """
    heads, layers = (getattr(config, f"{stack}_{size}") for size in ("attention_heads", "layers"))
    patterns = (config.sparse_pattern(stack, layer) for layer in range(layers))
    pairs = sum(visible_pairs(pattern, length) if pattern else heads * length**2 for pattern in patterns)
    return _layers_flops(config, stack, rows, length, pairs)


def decoding_flops(config: VaswaniFamilyConfig, rows: int, past: int, steps: int) -> int:
    """Return the operations of a decoder's self-attention and feed-forward layers in steps of one token.

    Args:
        config: of the model.
        rows: number of rows of the batch.
        past: tokens before the first step, whose keys and values are in the cache.
        steps: number of steps.
    """
    return _layers_flops(config, "decoder", rows, steps, decoding_pairs(config, past, steps))


def decoding_pairs(config: VaswaniFamilyConfig, past: int, steps: int) -> int:
    """Return the number of keys that the steps' queries see, summed over heads and layers of the decoder."""
    pairs = 0
    for layer in range(config.decoder_layers):
        if pattern := config.sparse_pattern("decoder", layer):
            # In causal attention, later rows do not change what a row sees.
            pairs += visible_pairs(pattern, past + steps) - (visible_pairs(pattern, past) if past else 0)
        else:
            pairs += config.decoder_attention_heads * (steps * past + steps * (steps + 1) // 2)
    return pairs


def _layers_flops(config: VaswaniFamilyConfig, stack: str, rows: int, tokens: int, pairs: int) -> int:
    """Return the operations of all weights for the tokens of each row, and of two products for each pair."""
    heads, layers, inner = (
        getattr(config, f"{stack}_{size}") for size in ("attention_heads", "layers", "ffn_dim")
    )
    width, widths = config.d_model, config.key_value_width(stack)
    weights = layers * (2 * width * widths + 2 * width * inner)
    return 2 * rows * (tokens * weights + pairs * (widths // heads))


def cross_attention_flops(config: VaswaniFamilyConfig, rows: int, source_length: int, length: int) -> int:
    """Return the operations of cross-attention for [rows, length] queries, without keys and values."""
    per_token = (config.d_model + source_length) * config.key_value_width("decoder")
    return 2 * rows * length * config.decoder_layers * per_token


def source_projection_flops(config: VaswaniFamilyConfig, rows: int, source_length: int) -> int:
    """Return the operations of the projections to the source's keys and values in all decoder layers."""
    per_token = config.d_model * config.key_value_width("decoder")
    return 2 * rows * source_length * config.decoder_layers * per_token


def prediction_flops(config: VaswaniFamilyConfig, num_tokens: Number) -> Number:
    """Return the operations of the logits over the vocabulary of `num_tokens` tokens."""
    vocab_size = config.decoder_vocab_size if "decoder" in config.stacks else config.vocab_size
    transform = config.d_model if getattr(config, "mlm_transform", False) else 0
    return 2 * num_tokens * config.d_model * (vocab_size + transform)


def head_flops(model: nn.Module, rows: int, tokens: int) -> int:
    """Return the operations of the layers above the stacks, for any head.

    Args:
        model: a model of this project; it may be on the meta device.
        rows: number of texts; a classifier is applied once to each.
        tokens: number of tokens in all rows together to which a token head is applied.
    """
    return sum(
        2 * module.weight.numel() * (tokens if is_head_of_tokens(model, name) else rows)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ".layers." not in name
    )


def is_head_of_tokens(model: nn.Module, name: str) -> bool:
    """Return whether a linear layer above the stacks is applied to every token."""
    return name in HEADS_OF_TOKENS or (name == "classifier" and "Token" in type(model).__name__)


def encoder_decoder_flops(
    config: VaswaniFamilyConfig, rows: int, source_length: int, target_length: int
) -> int:
    """Return the operations of all layers of an encoder-decoder, without the logits.

    Arguments as in `forward_flops`.
    """
    return (
        stack_flops(config, "encoder", rows, source_length)
        + source_projection_flops(config, rows, source_length)
        + stack_flops(config, "decoder", rows, target_length)
        + cross_attention_flops(config, rows, source_length, target_length)
    )


def forward_flops(config: VaswaniConfig, rows: int, source_length: int, target_length: int) -> int:
    """Return the operations of one forward pass of an encoder-decoder, including the logits.

    Args:
        config: of the model.
        rows: number of rows of the batch.
        source_length: tokens per source, including padding.
        target_length: tokens per target, including padding.
    """
    layers = encoder_decoder_flops(config, rows, source_length, target_length)
    return layers + prediction_flops(config, rows * target_length)


def training_flops(config: VaswaniConfig, rows: int, source_length: int, target_length: int) -> int:
    """Return the operations of a forward and backward pass (see `forward_flops`)."""
    return FORWARD_AND_BACKWARD * forward_flops(config, rows, source_length, target_length)
