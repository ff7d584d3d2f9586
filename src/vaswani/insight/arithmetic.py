"""Floating-point operations of a model, and the measured peak of a machine.

Only matrix products, which dominate, are counted: two operations for each weight and token, and for each pair
of tokens in attention and feature. A training step takes three times the forward pass (Kaplan et al., 2020,
arXiv:2001.08361, section 2.1): the backward pass has two products for each one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from vaswani.kernels.onednn import product
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)

Number = TypeVar("Number", int, torch.Tensor)

FORWARD_AND_BACKWARD = 3
SECONDS_OF_MEASURING = 0.05


def forward_flops(config: VaswaniConfig, rows: int, source_length: int, target_length: int) -> int:
    """Return the floating-point operations of one forward pass of an encoder-decoder.

    Args:
        config: of the model.
        rows: of the batch.
        source_length: tokens of each, padding included.
        target_length: likewise.
    """
    width = config.d_model
    encoder_layer = 4 * width**2 + 2 * width * config.encoder_ffn_dim
    decoder_layer = 6 * width**2 + 2 * width * config.decoder_ffn_dim  # without the source's keys and values
    per_source = config.encoder_layers * encoder_layer + config.decoder_layers * 2 * width**2
    per_target = config.decoder_layers * decoder_layer + (config.decoder_vocab_size or 0) * width
    weights = source_length * per_source + target_length * per_target
    pairs = sum(_pairs(config, kind, source_length) for kind in config.layer_attention("encoder"))
    pairs += sum(_pairs(config, kind, target_length) for kind in config.layer_attention("decoder"))
    pairs += config.decoder_layers * source_length * target_length
    return 2 * rows * (weights + 2 * pairs * width)  # two products for each pair: score and value


def training_flops(config: VaswaniConfig, rows: int, source_length: int, target_length: int) -> int:
    """Return the floating-point operations of a forward and backward pass (see `forward_flops`)."""
    return FORWARD_AND_BACKWARD * forward_flops(config, rows, source_length, target_length)


def stack_flops(config: VaswaniEncoderConfig | VaswaniDecoderConfig, rows: int, length: int) -> int:
    """Return the floating-point operations of one forward pass of an encoder or a decoder without head.

    Args:
        config: of the model.
        rows: of the batch.
        length: tokens of each, padding included.
    """
    (stack,) = config.stacks
    width, layers = config.d_model, config.layer_attention(stack)
    layer = 4 * width**2 + 2 * width * getattr(config, f"{stack}_ffn_dim")
    pairs = sum(_pairs(config, kind, length) for kind in layers)
    return 2 * rows * (length * len(layers) * layer + 2 * pairs * width)


def prediction_flops(config: VaswaniEncoderConfig | VaswaniDecoderConfig, num_tokens: Number) -> Number:
    """Return the floating-point operations of the logits of `num_tokens` tokens."""
    transform = config.d_model if getattr(config, "mlm_transform", False) else 0
    return 2 * num_tokens * config.d_model * (config.vocab_size + transform)


def _pairs(config: VaswaniFamilyConfig, kind: str, length: int) -> int:
    """Return the pairs of tokens in a self-attention layer; for a sparse layer an upper bound."""
    if kind == "full":
        return length**2
    first = config.sparse_global_tokens or config.sparse_global_blocks * config.sparse_block_size
    blocks = config.sparse_window_blocks + config.sparse_random_blocks
    keys = min(length, first + blocks * config.sparse_block_size)
    return length * keys + min(first, length) * (length - keys)


def matrix_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations per second of a large matrix product: the best of some, measured now.

    On a CPU by the faster of its two libraries (see `vaswani.kernels.onednn`).
    """
    size = 1024 if device.type == "cpu" else 8192
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones_like(left)
    products = (torch.matmul, product) if device.type == "cpu" else (torch.matmul,)
    return 2 * size**3 / min(_fastest(multiply, left, right) for multiply in products)


def _fastest(multiply: Callable, left: torch.Tensor, right: torch.Tensor) -> float:
    """Seconds: the least of some runs, of which the first of all warms up."""
    best, start = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - start < SECONDS_OF_MEASURING:
        multiply(left, right)
        _synchronize(left.device)
        begin = time.perf_counter()
        multiply(left, right)
        _synchronize(left.device)
        best = min(best, time.perf_counter() - begin)
    return best


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
