# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Operators of the layers in plain PyTorch, which kernels may compute faster."""

import torch
from torch import nn

from .kernel_slots import KernelSlot


@KernelSlot
def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`states @ weight.T + bias`: [..., K], [N, K] and [N] -> [..., N]."""
    return nn.functional.linear(states, weight, bias)


class Linear(nn.Linear):
    """`torch.nn.Linear` whose product a kernel may compute."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features]."""
        return linear(states, self.weight, self.bias)


@KernelSlot
def output_projection(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same onto the vocabulary: [..., K], [V, K] and [V] -> [..., V]."""
    return nn.functional.linear(states, weight, bias)


class OutputProjection(nn.Linear):
    """`torch.nn.Linear` onto the vocabulary, whose product a kernel may compute."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., V]."""
        return output_projection(states, self.weight, self.bias)


@KernelSlot
def dropout(states: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Zero each element with probability p, and divide the others by 1 - p (section 5.4 of the paper)."""
    return nn.functional.dropout(states, p, training)


def word_dropout(embeddings: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
    """Zero each whole embedding with probability p, divide the others by 1 - p: [B, T, D] -> [B, T, D].

    Gal & Ghahramani (2016, arXiv:1512.05287) drop all tokens of one type together. Here each token is drawn
    by itself, as in Nematus, with which Sennrich & Zhang train (2019, arXiv:1905.11901).
    """
    if p == 0.0 or not training:
        return embeddings
    return embeddings * dropout(embeddings.new_ones(*embeddings.shape[:-1], 1), p, training)
