# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Linear layers with weights laid out for the CPU's matrix kernels, for as long as a search runs.

A decoding step multiplies a few rows by every weight of the decoder. PyTorch's default library (MKL) then
rearranges each weight for its kernel in every step, which costs as much as the product where rows are few.
oneDNN takes weights that were rearranged before: on two cores it multiplies 4 rows of 512 numbers by
2048 × 512 weights three times as fast, 32 rows 1.6 times, 128 rows 1.3 times. Rearranging costs about one
step, so it is done for a whole search, and forgotten afterwards: weights may change between searches.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeGuard

import torch
from torch import nn

from .linear import Linear
from .onednn import is_available, onednn_product

MIN_WEIGHTS = 512 * 512  # below, calling oneDNN costs more than it saves
MIN_ROWS = 4  # below, a search is over before the packing has paid for itself


def _gains(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a module is a plain linear layer whose product oneDNN computes faster."""
    if type(module) not in (nn.Linear, Linear) or "forward" in vars(module):
        return False  # something else, or somebody replaced what it does
    weight = module.weight
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= MIN_WEIGHTS
    )


@contextmanager
def packed_linear_layers(modules: Iterable[nn.Module], num_rows: int) -> Iterator[None]:
    """Let those of the modules that gain from it compute with packed weights, until the block ends.

    Args:
        modules: of any kind; only plain float32 `nn.Linear` on the CPU are touched.
        num_rows: that each of their inputs will have.
    """
    autocast = torch.is_autocast_enabled("cpu")
    usable = num_rows >= MIN_ROWS and not torch.is_grad_enabled() and not autocast and is_available()
    packed = [module for module in modules if _gains(module)] if usable else []
    try:
        for module in packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach())
            vars(module)["forward"] = partial(onednn_product, weight=weight, bias=module.bias)
        yield
    finally:
        for module in packed:
            vars(module).pop("forward", None)
