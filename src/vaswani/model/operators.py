# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Operators of the layers in plain PyTorch, which faster kernels can replace."""

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
    """Project onto the vocabulary, as `linear` does: [..., K], [V, K] and [V] -> [..., V]."""
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
    independently, as in Nematus, which Sennrich & Zhang use (2019, arXiv:1905.11901).
    """
    if p == 0.0 or not training:
        return embeddings
    return embeddings * dropout(embeddings.new_ones(*embeddings.shape[:-1], 1), p, training)


def is_called_alone(module: nn.Module) -> bool:
    """Return whether calling a module runs the methods of its class and nothing else.

    Otherwise a kernel that computes the module's result without calling it would skip something: a hook, such
    as those of pruning and offloading, or a replaced method.
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
    """Return whether a hook is the library's, which records attentions and hidden states.

    The library keeps the hook after the first call that records them; such a call uses the modules anyway.
    """
    return getattr(hook, "__module__", None) == capture_outputs.__module__
