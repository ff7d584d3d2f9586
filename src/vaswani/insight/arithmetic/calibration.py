"""The measured rates of a machine: its largest matrix product and its largest copy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from vaswani.kernels.products_native import product

SECONDS_OF_MEASURING = 0.05
COPIED_BYTES = 1 << 28  # far more than any cache holds


def matrix_peak(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Floating-point operations per second of a large matrix product: the best of some, measured now.

    On a CPU by the faster of PyTorch and of what computes our linear layers.
    """
    size = 1024 if device.type == "cpu" else 8192
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones_like(left)
    products = (torch.matmul, product) if device.type == "cpu" else (torch.matmul,)
    return 2 * size**3 / min(_fastest(multiply, left, right) for multiply in products)


def copy_bandwidth() -> float:
    """Bytes per second that this machine's memory reads and writes in a large copy: the best of some."""
    source = torch.ones(COPIED_BYTES // 4, device="cpu")
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _fastest(torch.Tensor.copy_, target, source)


def memory_size() -> float:
    """Bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _fastest(operation: Callable, left: torch.Tensor, right: torch.Tensor) -> float:
    """Seconds: the least of some runs, of which the first of all warms up."""
    best, start = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - start < SECONDS_OF_MEASURING:
        operation(left, right)
        _synchronize(left.device)
        begin = time.perf_counter()
        operation(left, right)
        _synchronize(left.device)
        best = min(best, time.perf_counter() - begin)
    return best


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
