"""KL divergence of logits from a teacher, and its gradient, on the CPU by C++ (`soft_targets_native.cpp`).

PyTorch's operators pass over the vocabulary once for each step, and its automatic gradients far more often.
The C++ code computes one row at a time.

n tokens · V vocabulary · C classes: V, or k + 1: k tokens and, last, all others together
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from vaswani.kernels.native_library import native_library
from vaswani.model.input_checks import has_values

SOURCE = Path(__file__).with_name("soft_targets_native.cpp")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    types = [
        *(pointer, number, number, number, ctypes.c_float),
        *(pointer, pointer, number, number, pointer, pointer),
    ]
    return native_library(SOURCE, vaswani_soft_targets=types)


def can_compute(logits: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor | None) -> bool:
    """Return whether the C++ code can compute this divergence; the code itself does not check.

    Args:
        logits: [n, V].
        teacher: log-probabilities [n, C].
        tokens: int64 [n, k], or `None` for the whole vocabulary.
    """
    classes = logits.shape[1] if tokens is None else tokens.shape[1] + 1
    given = (logits, teacher) if tokens is None else (logits, teacher, tokens)
    return (
        all(has_values(each) and each.device.type == "cpu" and len(each) == len(logits) for each in given)
        and logits.dtype in (torch.float32, torch.bfloat16)
        and (teacher.dtype, teacher.shape[1]) == (torch.float32, classes)
        and (tokens is None or bool((tokens.ge(0) & tokens.lt(logits.shape[1])).all()))
        and library() is not None
    )


def divergence_and_gradient(
    logits: torch.Tensor,
    teacher: torch.Tensor,
    tokens: torch.Tensor | None,
    temperature: float,
    wants_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the summed KL(teacher ‖ softmax(logits / T)), in nats, and its gradient, where `can_compute`.

    Args:
        logits: float32 or bfloat16 [n, V].
        teacher: log-probabilities, float32 [n, C].
        tokens: int64 [n, k], all different within a row; `None` for the whole vocabulary.
        temperature: T, above 0.
        wants_gradient: whether to compute the gradient; without it, the second result is `None`.

    Returns:
        A scalar in float32, and the gradient [n, V] in the dtype of the logits.
    """
    compiled = library()
    assert compiled is not None
    logits, teacher = logits.contiguous(), teacher.contiguous()
    tokens = None if tokens is None else tokens.contiguous()
    rows, size = logits.shape
    losses = torch.empty(rows, dtype=torch.float32)
    gradient = torch.empty_like(logits) if wants_gradient else None
    compiled.vaswani_soft_targets(
        *(logits.data_ptr(), logits.dtype == torch.bfloat16, rows, size, 1 / temperature),
        teacher.data_ptr(),
        *((None, 0) if tokens is None else (tokens.data_ptr(), tokens.shape[1])),
        torch.get_num_threads(),
        None if gradient is None else gradient.data_ptr(),
        losses.data_ptr(),
    )
    return losses.sum(), gradient
