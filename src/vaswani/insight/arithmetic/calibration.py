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
    """Measure the floating-point operations per second of a large matrix product: the best of several runs.

    On a CPU, the faster of PyTorch and the kernels of our linear layers counts.
    """
    size = 1024 if device.type == "cpu" else 8192
    left = torch.ones(size, size, device=device, dtype=dtype)
    right = torch.ones_like(left)
    products = (torch.matmul, product) if device.type == "cpu" else (torch.matmul,)
    return 2 * size**3 / min(_fastest(multiply, left, right) for multiply in products)


def copy_bandwidth() -> float:
    """Measure the bytes per second that a large copy reads and writes in memory: the best of several runs."""
    source = torch.ones(COPIED_BYTES // 4, device="cpu")
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _fastest(torch.Tensor.copy_, target, source)


def memory_size() -> float:
    """Return the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _fastest(operation: Callable, left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the shortest time of several runs in seconds; each measured run follows a warm-up run."""
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
