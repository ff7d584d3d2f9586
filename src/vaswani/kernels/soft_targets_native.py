"""Divergence from a teacher, and its gradient, by C++ (`soft_targets_native.cpp`), else by PyTorch.

PyTorch's operators pass over the vocabulary for each step, and its automatic gradients far more often. The
C++ takes a row at a time.

n tokens · V vocabulary · C classes: V, or k tokens and, last, all the others together
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from vaswani.kernels.native_library import native_library

SOURCE = Path(__file__).with_name("soft_targets_native.cpp")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled library, or None if there is none."""
    compiled = native_library(SOURCE)
    if compiled is not None:
        compiled.vaswani_soft_targets.restype = None
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        compiled.vaswani_soft_targets.argtypes = [
            *(pointer, number, number, number, ctypes.c_float),
            *(pointer, pointer, number, number),
            *(pointer, pointer),
        ]
    return compiled


def divergence_and_gradient(
    logits: torch.Tensor,
    teacher: torch.Tensor,
    tokens: torch.Tensor | None,
    temperature: float,
    wants_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The summed KL(teacher ‖ softmax(logits / T)), in nats, and its gradient in the dtype of the logits.

    Args:
        logits: [n, V].
        teacher: log-probabilities, float32 [n, C].
        tokens: int64 [n, k], of which no two of a row are equal; `None` for the whole vocabulary.
        temperature: T, above 0.
        wants_gradient: without it, the second result is `None`.

    Returns:
        A scalar in float32, and the gradient [n, V].
    """
    compiled = library() if _fits(logits, teacher, tokens) else None
    if compiled is None:  # of what does not fit together, PyTorch tells what
        return _by_operators(logits, teacher, tokens, temperature, wants_gradient)
    logits, teacher = logits.contiguous(), teacher.contiguous()
    tokens = None if tokens is None else tokens.contiguous()
    rows, size = logits.shape
    losses = torch.empty(rows)
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


def _fits(logits: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor | None) -> bool:
    """Whether the C++ takes these; it looks neither at shapes nor at whether tokens are in the vocabulary."""
    classes = logits.shape[1] if tokens is None else tokens.shape[1] + 1
    given = (logits, teacher) if tokens is None else (logits, teacher, tokens)
    return (
        all(each.device.type == "cpu" and len(each) == len(logits) for each in given)
        and logits.dtype in (torch.float32, torch.bfloat16)
        and (teacher.dtype, teacher.shape[1]) == (torch.float32, classes)
        and (tokens is None or bool((tokens.ge(0) & tokens.lt(logits.shape[1])).all()))
    )


def _by_operators(
    logits: torch.Tensor,
    teacher: torch.Tensor,
    tokens: torch.Tensor | None,
    temperature: float,
    wants_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    student, others = (logits.float() / temperature).log_softmax(-1), None
    if tokens is not None:
        student, others = put_together(student, tokens)
    loss = kl(teacher, student).sum()
    if not wants_gradient:
        return loss, None
    gradient = student.exp() - teacher.exp()  # [n, C]
    if others is not None and tokens is not None:  # each takes its share of that of all of them together
        shares = others.sub_(student[:, -1:]).exp_()  # [n, V]
        gradient = shares.mul_(gradient[:, -1:]).scatter_(-1, tokens, gradient[:, :-1])
    return loss, gradient.div_(temperature).to(logits.dtype)


def put_together(log_probs: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [n, V] of k tokens [n, k] and, last, of all the others together, [n, k + 1].

    And those of each of the others, [n, V], in which the lowest number takes the place of the k.
    """
    others = log_probs.scatter(-1, tokens, torch.finfo(log_probs.dtype).min)
    return torch.cat([log_probs.gather(-1, tokens), others.logsumexp(-1, keepdim=True)], dim=-1), others


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Σ p · (log p − log q) of log-probabilities over the last dimension; one of −inf in p adds nothing."""
    lowest = torch.finfo(p.dtype).min  # in place of −inf, whose difference with itself is NaN
    return (p.exp() * (p.clamp(min=lowest) - q.clamp(min=lowest))).sum(-1)
