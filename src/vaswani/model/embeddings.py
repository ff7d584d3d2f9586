# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Token and position embeddings (Vaswani et al., 2017, sections 3.4 and 3.5).

B batch · T length
"""

import math

import torch
from torch import nn
from transformers.utils import is_torchdynamo_compiling

from .configuration_vaswani import VaswaniFamilyConfig
from .input_checks import can_be_checked, check_not_meta, is_fake

TABLE_LENGTH = 1024  # positions whose sinusoids are cached; longer sequences compute theirs in each call


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(same) (section 3.5), at any length.

    The module has no buffer: it could be too short, get lost on the meta device or be rounded to bfloat16.
    """

    def __init__(self, config: VaswaniFamilyConfig):
        super().__init__()
        self.d_model = config.d_model
        self.layout = config.sinusoidal_layout
        self.offset = config.sinusoidal_offset
        self._table: torch.Tensor | None = None

    def forward(self, positions: torch.Tensor, length: int | None, dtype: torch.dtype) -> torch.Tensor:
        """int64 [B, T] positions, all below `length` if that is known -> [B, T, d_model]."""
        # Tracing skips the comparison, which would limit the lengths that the traced model accepts.
        is_traced = is_torchdynamo_compiling() or is_fake(positions)  # a fake table must not be kept
        if length is not None and not is_traced and length <= TABLE_LENGTH:
            return nn.functional.embedding(positions, self.table(positions.device, dtype))
        if length is not None and positions.shape[0] > 1:
            return nn.functional.embedding(
                positions, self.encode(torch.arange(length, device=positions.device), dtype)
            )
        return self.encode(positions, dtype)

    def table(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Return the first positions, [TABLE_LENGTH, d_model], cached for the last device and dtype."""
        if self._table is None or self._table.device != device or self._table.dtype != dtype:
            with torch.inference_mode(False):  # training may use a table made by inference
                self._table = self.encode(torch.arange(TABLE_LENGTH, device=device), dtype)
        return self._table

    def encode(self, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Encode positions: [...] -> [..., d_model].

        Computes in float64 if the device has it, because float32 angles lose digits at distant positions. The
        layouts of other systems reproduce the digits of their float32 tables.
        """
        positions = positions + self.offset
        if self.layout == "tensor2tensor":
            angles = positions[..., None].float() * self._frequencies_of_tensor2tensor(positions.device)
        else:
            precision = torch.float32 if positions.device.type == "mps" else torch.float64
            even = torch.arange(0, self.d_model, 2, dtype=precision, device=positions.device)
            angles = positions[..., None].to(precision) * 10000.0 ** -(
                even / self.d_model
            )  # [..., d_model / 2]
        interleaved = self.layout == "interleaved"
        pair = torch.stack((angles.sin(), angles.cos()), dim=-1 if interleaved else -2).flatten(-2)
        return (pair if interleaved else pair.float()).to(dtype)

    def _frequencies_of_tensor2tensor(self, device: torch.device) -> torch.Tensor:
        """Return 10000^(-i / (d/2 - 1)), from 1 to 1/10000: float32 [d_model / 2]."""
        waves = self.d_model // 2
        return torch.exp(torch.arange(waves, device=device).float() * -(math.log(10000) / (waves - 1)))


class LearnedPositions(nn.Embedding):
    """A trained vector per position (section 3.5, table 3 row E)."""

    def __init__(self, config: VaswaniFamilyConfig):
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(self, positions: torch.Tensor, length: int | None, dtype: torch.dtype) -> torch.Tensor:
        """int64 [B, T] -> [B, T, d_model]. Raise `ValueError` for a position beyond the trained ones."""
        if self._may_be_too_long(positions, length) and positions.max() >= self.num_embeddings:
            raise ValueError(
                f"a sequence of {int(positions.max()) + 1} tokens is longer than max_position_embeddings="
                f"{self.num_embeddings}; shorten it, give the model more (resize_position_embeddings), or "
                "train with sinusoidal positions, which have no limit."
            )
        return super().forward(positions).to(dtype)

    def _may_be_too_long(self, positions: torch.Tensor, length: int | None) -> bool:
        """Return whether to check positions; False while tracing, because a check would limit the lengths."""
        if is_torchdynamo_compiling():
            return False
        return can_be_checked(positions) if length is None else length > self.num_embeddings

    def repeat_to(self, num_positions: int) -> None:
        """Repeat the positions until there are `num_positions`."""
        places = torch.arange(num_positions, device=self.weight.device) % self.num_embeddings
        self.weight = nn.Parameter(self.weight.detach()[places], self.weight.requires_grad)
        self.num_embeddings = num_positions


def make_positions(config: VaswaniFamilyConfig) -> SinusoidalPositions | LearnedPositions | None:
    """Return the position embeddings of a configuration, or None."""
    if config.position_embedding == "none":
        return None
    return (LearnedPositions if config.position_embedding == "learned" else SinusoidalPositions)(config)


class TokenEmbeddings(nn.Embedding):
    """Token embeddings times sqrt(d_model) (section 3.4)."""

    def __init__(self, config: VaswaniFamilyConfig, vocab_size: int):
        super().__init__(vocab_size, config.d_model, config.pad_token_id)
        # PEFT reads the scale under this name, which the library's models use.
        self.embed_scale = config.d_model**0.5 if config.scale_embedding else 1.0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """int64 [B, T] -> [B, T, d_model]. Raise `ValueError` for an id outside the vocabulary."""
        check_not_meta(input_ids, self.weight)
        if can_be_checked(input_ids):
            low, high = (int(bound) for bound in input_ids.aminmax())
            size = self.num_embeddings
            if low < 0 or high >= size:
                raise ValueError(
                    f"token id {low if low < 0 else high} lies outside the vocabulary of {size} tokens "
                    f"(0 to {size - 1}); use the tokenizer that belongs to this model."
                )
        return super().forward(input_ids) * self.embed_scale
