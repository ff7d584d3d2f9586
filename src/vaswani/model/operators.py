# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Operators of the layers in plain PyTorch, which kernels may compute faster."""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from transformers.utils.output_capturing import capture_outputs

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


def is_called_alone(module: nn.Module) -> bool:
    """Whether a call of a module runs the methods of its class, and nothing before or after.

    Otherwise a kernel that computes what it does, without calling it, would leave something out: a hook, as
    of pruning and offloading, or a method that somebody replaced.
    """
    kind: Any = type(module)
    return (
        _method_names(kind).isdisjoint(vars(module))
        and not _has_any_global_hook()
        and not module._forward_pre_hooks
        and all(map(_only_records, module._forward_hooks.values()))
        and not module._backward_pre_hooks
        and not module._backward_hooks
    )


@cache
def _method_names(module_class: Any) -> frozenset[str]:
    names = dir(module_class)
    return frozenset(name for name in names if isinstance(getattr(module_class, name, None), FunctionType))


def _only_records(hook: Callable[..., Any]) -> bool:
    """Whether a hook is the library's that records attentions and hidden states.

    The library leaves it there after the first call that asks for them; such a call needs the modules anyway.
    """
    return getattr(hook, "__module__", None) == capture_outputs.__module__
