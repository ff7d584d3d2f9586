"""The memory of a model: its keys and values, and the activations that training keeps for the backward pass.

B batch · K beams · S source length · T target length · H heads · d width · f inner width of feed-forward
"""

from __future__ import annotations

from functools import cache

import torch
from torch import nn
from transformers.activations import ACT2FN

from vaswani.kernels import half_attention, short_attention
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

SINGLE = 4  # bytes of float32, the dtype of norms, master weights, gradients and Adam's moments
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BYTES_OF_AN_ID = 8
BYTES_OF_A_CHOICE = 1  # kept by dropout for each element


def self_cache_bytes(config: VaswaniFamilyConfig, rows: int, tokens: int, dtype: str) -> int:
    """Return the bytes of keys and values of `tokens` tokens in each of B·K rows of a decoder."""
    return config.decoder_layers * config.key_value_width("decoder") * rows * tokens * BYTES[dtype]


def cross_cache_bytes(config: VaswaniFamilyConfig, rows: int, source: int, dtype: str) -> int:
    """Return the bytes of keys and values of the sources [B, S], which beams share; 0 without an encoder."""
    return self_cache_bytes(config, rows, source, dtype) if config.is_encoder_decoder else 0


def activation_bytes(
    config: VaswaniFamilyConfig,
    rows: int,
    source_length: int,
    target_length: int,
    dtype: str = "float32",
    on_cpu: bool = False,
    devices: int = 1,
) -> int:
    """Return the bytes that autograd keeps for the backward pass of a training step, without parameters.

    Under autocast, the input of each product is kept in half precision, once per product; norms keep float32.
    The loss over the vocabulary is computed a few tokens at a time and keeps no logits. Other heads keep
    little, which is left out.

    Args:
        config: of the model.
        rows: number of rows of the batch.
        source_length: tokens per source; for a model of one stack, all of its tokens.
        target_length: tokens per target; 0 for a model of one stack.
        dtype: dtype of the products.
        on_cpu: whether the CPU's kernels compute attention; they keep the weights of short sequences.
        devices: number of devices, which divide heads and inner features; the result is for one device.
    """
    keeps = _ActivationBytes(config, rows, dtype, on_cpu, devices)
    if isinstance(config, VaswaniConfig):
        memory = keeps.stack("encoder", source_length)
        return memory + keeps.stack("decoder", target_length, source_length)
    return keeps.stack(config.stacks[0], source_length)


class _ActivationBytes:
    """The bytes that the parts of a model keep for the backward pass."""

    def __init__(self, config: VaswaniFamilyConfig, rows: int, dtype: str, on_cpu: bool, devices: int):
        self.config, self.rows, self.on_cpu, self.devices = config, rows, on_cpu, devices
        self.number = BYTES[dtype]  # bytes of a number in products
        self.is_half = self.number < SINGLE
        self.choices = BYTES_OF_A_CHOICE if config.dropout else 0
        self.norm = SINGLE * (config.d_model + 2)  # per token: its input, mean and deviation

    def stack(self, stack: str, length: int, source_length: int | None = None) -> int:
        """Return the bytes of a stack, from its embeddings to its output."""
        config, width = self.config, self.config.d_model
        tokens = self.rows * length
        ends = BYTES_OF_AN_ID + self.choices * width + SINGLE * width  # ids; the output, for the next layer
        ends += self.norm * (config.embedding_norm + bool(config.final_norm))
        if getattr(config, "mlm_transform", False):
            ends += self.norm + width * (self.number + self._activation())
        layers = sum(
            tokens * (self._self_attention(stack) + self._feed_forward(stack))
            + self._weights(stack, length, length, config.sparse_pattern(stack, layer) is not None)
            for layer in range(getattr(config, f"{stack}_layers"))
        )
        if source_length is not None:
            each = tokens * self._cross_attention() + self._weights(stack, length, source_length)
            inputs = 2 if self.is_half else 0  # in float32, the encoder's output, already counted
            divided = config.key_value_width(stack) // self.devices
            sources = self.rows * source_length * self.number * (inputs * width + divided)
            layers += config.decoder_layers * (each + sources)
        return tokens * ends + layers

    def _self_attention(self, stack: str) -> int:
        """Return bytes per token: input (under autocast once per projection), q, k, v, output, and norm."""
        inputs, width = 3 if self.is_half else 1, self.config.d_model
        divided = 2 * self.config.key_value_width(stack) // self.devices
        return (inputs * width + divided) * self.number + width * self.choices + self.norm

    def _cross_attention(self) -> int:
        """Return bytes per target token: the input, q, the output, and the norm."""
        width, divided = self.config.d_model, self.config.key_value_width("decoder") // self.devices
        return (width + divided) * self.number + width * self.choices + self.norm

    def _feed_forward(self, stack: str) -> int:
        """Return bytes per token: the input, the tensors that the activation keeps, and the norm."""
        drops = bool(self.config.activation_dropout)
        inner = self._activation(drops) + (BYTES_OF_A_CHOICE if drops else 0)
        inputs = self.config.d_model * (self.number + self.choices)
        return inputs + getattr(self.config, f"{stack}_ffn_dim") // self.devices * inner + self.norm

    def _activation(self, drops: bool = False) -> int:
        return self.number * tensors_of_activation(self.config.activation_function, drops)

    def _weights(self, stack: str, length: int, keys: int, is_sparse: bool = False) -> int:
        """Return the bytes of attention weights if the kernel keeps them, else of a sum for each query."""
        queries = self.rows * getattr(self.config, f"{stack}_attention_heads") // self.devices * length
        drops = bool(self.config.attention_dropout)
        width = self.rows * self.config.d_model // self.devices
        key_width = self.rows * self.config.key_width(stack) // self.devices
        widest = max(width, key_width)
        if is_sparse:  # the output once more, in the layout of the next product
            padded = 2 * (2 * widest - key_width - width) if self.on_cpu else 0  # q, k, v and the output
            return queries * SINGLE + (width + padded) * length * self.number
        if not self.on_cpu:
            return queries * SINGLE
        stays_half = self.is_half and length * keys > half_attention.MAX_WEIGHTS
        converts = self.is_half and (drops or not stays_half)
        is_short = not stays_half and (drops or length * keys <= short_attention.MAX_WEIGHTS)
        number = SINGLE if converts else self.number
        states = key_width * (length + keys) + width * keys  # q, k and v
        padded = states if is_short else widest * (length + 2 * keys)
        copies = padded * number - states * self.number
        if is_short:
            return copies + queries * keys * (SINGLE + (BYTES_OF_A_CHOICE if drops else 0))
        if drops:
            return copies + queries * keys * 3 * SINGLE  # PyTorch's separate operations, in float32
        is_copied = converts or widest > width  # the output, which is then converted back or cut
        return copies + is_copied * widest * length * number + queries * SINGLE


@cache
def tensors_of_activation(name: str, drops: bool = False) -> int:
    """Return the number of tensors of inner width that an activation and the product after it keep.

    Args:
        name: one of transformers' `ACT2FN`.
        drops: whether dropout is between the two; its own memory is not counted.
    """
    states, weight = (torch.zeros(1, 1, requires_grad=True) for _ in range(2))
    kept = []  # keeps the tensors alive, because a new tensor can reuse the address of a freed one

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = ACT2FN[name](states + 0)  # not a leaf, like the result of the first product
        nn.functional.linear(hidden + 0 if drops else hidden, weight)
    return len({tensor.untyped_storage().data_ptr() for tensor in kept} - {weight.data_ptr()})
