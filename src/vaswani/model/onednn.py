# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""float32 products by oneDNN, on CPUs where PyTorch would take MKL.

For the narrow weights of a Transformer and a few thousand rows, oneDNN's products with weights as they are
run 10 to 15 % faster than MKL's on Intel's processors, forward and for the gradient of the states; for the
gradient of the weights MKL's are the faster ones there. On other processors MKL reaches half of what it could
or less, and oneDNN computes everything.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock

import torch
from torch import nn

MIN_ROWS = 256  # below, a call costs more than it saves
# Preparing a new shape takes oneDNN 0.3 ms, which a smaller product never saves. Which of them computes must
# depend on the shape alone: a run that is resumed ends with the same bits as one that was not.
MIN_MULTIPLICATIONS = 1 << 22


def _is_intel() -> bool:
    """Whether the processor is one that MKL is written for; elsewhere than on Linux, its name tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


IS_INTEL_CPU = _is_intel()

# oneDNN is there, and has MKL to beat; its products are no public functions of PyTorch.
_IS_BUILT = (
    torch.backends.mkl.is_available()
    and torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


# oneDNN keeps what it prepares for the shape of a product, and PyTorch keeps it once more in each thread:
# 0.6 MB for each shape, by default of the last 1,024. Texts have ever new shapes, so a process grows by more
# than half a gigabyte, and by as much again because these small pieces stand between large ones that come and
# go. Both limits are read when the first product is computed; one that the user has set stays.
CACHED_SHAPES = 128
if _IS_BUILT:
    for _limit in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(_limit, str(CACHED_SHAPES))


def is_available() -> bool:
    """Whether oneDNN is there, faster than what PyTorch would take, and not switched off."""
    return _IS_BUILT and bool(torch.backends.mkldnn.enabled)


def onednn_product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`states @ weight.T + bias`: float32 [..., K] and [N, K], as they are or rearranged -> [..., N]."""
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


def gains_from_onednn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether oneDNN multiplies states [..., K] by a weight [N, K] faster than PyTorch would."""
    num_outputs, width = weight.shape
    return _gains(states, weight, states.numel() // width, states.numel() * num_outputs)


def _gains(left: torch.Tensor, right: torch.Tensor, num_rows: int, num_multiplications: int) -> bool:
    return (
        left.device.type == "cpu"
        and left.dtype == right.dtype == torch.float32
        and num_rows >= MIN_ROWS
        and num_multiplications >= MIN_MULTIPLICATIONS
        and not torch.is_autocast_enabled("cpu")
        and is_available()
    )


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`states @ weight.T`, without gradients: [..., K] and [N, K] -> [..., N]."""
    if gains_from_onednn(states, weight):
        return onednn_product(states, weight, None)
    return nn.functional.linear(states, weight)


def product_over_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left.T @ right`, without gradients, as for the gradient of a weight: [M, N] and [M, K] -> [N, K]."""
    if IS_INTEL_CPU or not _gains(left, right, len(left), left.numel() * right.shape[1]):
        return left.t() @ right
    if right.shape[1] > left.shape[1]:  # the wider one takes the place of the weight
        return onednn_product(left.t(), right.t(), None)
    return onednn_product(right.t(), left.t(), None).t()


class _Permission:
    """Lets oneDNN have PyTorch's float32 products, for as long as somebody holds it.

    PyTorch gives it those, batched ones among them, only while it may round what it multiplies to bfloat16,
    a setting of the whole process. It does not round unless the processor has units that multiply bfloat16
    faster.
    """

    def __init__(self) -> None:
        self._settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # made at run time
        self._lock = Lock()
        self._holders = 0
        self._before = ""

    def __enter__(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._before, self._settings.fp32_precision = self._settings.fp32_precision, "bf16"
            self._holders += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._settings.fp32_precision = self._before


_PERMISSION = _Permission()


@lru_cache(maxsize=1)
def _keeps_float32() -> bool:
    """Whether products are exact to float32 under the permission to round: numbers tell that cannot be."""
    ones, more = torch.ones(4, 64, 64), torch.full((4, 64, 512), 1 + 2**-16)  # bfloat16 and TF32 round to 1
    with torch.inference_mode(), _PERMISSION:
        return bool((torch.bmm(ones, more) == 64 + 2**-10).all())


def batches_by_onednn() -> bool:
    """Whether oneDNN takes over below."""
    return not IS_INTEL_CPU and is_available() and _keeps_float32()


@contextmanager
def batched_products_by_onednn() -> Iterator[None]:
    """Within, `torch.mm` and `torch.bmm` of float32 are oneDNN's where it is the faster and as exact."""
    if batches_by_onednn():
        with _PERMISSION:
            yield
    else:
        yield
