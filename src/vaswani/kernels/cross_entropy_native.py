"""Cross-entropy of logits and its gradient on the CPU, by C++ (`cross_entropy_native.cpp`), else by PyTorch.

PyTorch's operators pass over the logits for the maximum, the softmax, the loss and each conversion. The C++
code computes one row at a time: 256 rows of 10,000 logits take half the time, in bfloat16 a fifth.

n tokens · V vocabulary
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from vaswani.kernels.native_library import native_library

SOURCE = Path(__file__).with_name("cross_entropy_native.cpp")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    pointer, number, share = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    types = [pointer, number, number, number, pointer, share, share, number, number, pointer]
    return native_library(SOURCE, vaswani_cross_entropy=types)


def library_for(logits: torch.Tensor) -> ctypes.CDLL | None:
    """Return the library if it accepts these logits, else None."""
    is_float_on_cpu = logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.bfloat16)
    return library() if is_float_on_cpu else None


def cross_entropy_and_gradient(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    share: float,
    share_of_each: float = 0.0,
    wants_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of logsumexp(logits) − Σ q · logits, and its gradient in the dtype of the logits.

    Args:
        logits: [n, V]; this function overwrites them.
        targets: int64 [n], each a token of the vocabulary.
        share: the target's share in the learned distribution q; 1 − ε with label smoothing.
        share_of_each: the share of every token, including the target; ε / V with label smoothing.
        wants_gradient: whether to compute the gradient; without it, the second result is meaningless.

    Returns:
        A scalar in float32, or in the logits' dtype if that is wider, and softmax(logits) − q, [n, V].
    """
    compiled = library_for(logits)
    if compiled is None:
        return _by_operators(logits, targets, share, share_of_each, wants_gradient)
    logits = logits.contiguous()
    return _by_rows(compiled, logits, targets, share, share_of_each, wants_gradient).sum(), logits


def log_probs_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the natural log-probabilities of targets int64 [...] from logits [..., V]: float32 [...].

    Raises:
        RuntimeError: a target is not a token of the vocabulary.
    """
    compiled, size = library_for(logits), logits.shape[-1]
    are_tokens = targets.ge(0) & targets.lt(size)  # C++ reads their places unchecked
    if compiled is None or not are_tokens.all():
        logits = logits.float()
        return logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(dim=-1)
    rows = logits.reshape(-1, size).contiguous()
    return -_by_rows(compiled, rows, targets.flatten(), 1.0, 0.0, False).view(targets.shape)


def _by_rows(
    compiled: ctypes.CDLL,
    logits: torch.Tensor,
    targets: torch.Tensor,
    share: float,
    share_of_each: float,
    wants_gradient: bool,
) -> torch.Tensor:
    """Return the loss of each row: float32 [n]; a gradient overwrites the contiguous logits."""
    rows, size = logits.shape
    losses = torch.empty(rows, dtype=torch.float32)
    shape = (logits.dtype == torch.bfloat16, rows, size)
    options = (share, share_of_each, wants_gradient, torch.get_num_threads())
    targets = targets.contiguous()
    compiled.vaswani_cross_entropy(logits.data_ptr(), *shape, targets.data_ptr(), *options, losses.data_ptr())
    return losses


def _by_operators(
    logits: torch.Tensor, targets: torch.Tensor, share: float, share_of_each: float, wants_gradient: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype, columns = logits.dtype, targets[:, None]
    logits = logits.to(torch.promote_types(dtype, torch.float32))
    loss = -share * logits.gather(1, columns).sum()
    if share_of_each:
        loss -= share_of_each * logits.sum()
    highest = logits.amax(-1)
    probs = torch.softmax(logits, dim=-1, out=logits)
    loss += (highest - probs.amax(-1).log()).sum()  # log-sum-exp: the highest logit is in both terms
    if wants_gradient:
        probs.scatter_add_(1, columns, probs.new_full((), -share).expand_as(columns))
        if share_of_each:
            probs -= share_of_each
    return loss, probs.to(dtype)
