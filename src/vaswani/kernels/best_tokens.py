"""The best tokens of each row of scores, by C++ (`best_tokens.cpp`) on the CPU, else by PyTorch.

Log-softmax and `topk` write and sort all log-probabilities; a search needs only a few of each row.
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from vaswani.kernels.native_library import native_library

SOURCE = Path(__file__).with_name("best_tokens.cpp")


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    pointer, numbers = ctypes.c_void_p, [ctypes.c_int64] * 5
    return native_library(SOURCE, vaswani_best_tokens=[pointer, *numbers, pointer, pointer])


def best_tokens(scores: torch.Tensor, count: int, normalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest scores of each row and their tokens, int64, both [R, count], in descending order.

    With `normalize`, a row with a NaN has only NaN.

    Args:
        scores: float [R, V].
        count: at most V.
        normalize: treat the scores as logits and return log-probabilities.
    """
    is_float_on_cpu = scores.device.type == "cpu" and scores.dtype == torch.float32
    compiled = library() if is_float_on_cpu else None
    if compiled is None:
        best = (scores.log_softmax(-1) if normalize else scores).topk(count)
        return best.values, best.indices
    scores = scores.contiguous()
    rows, size = scores.shape
    values, tokens = scores.new_empty(rows, count), torch.empty(rows, count, dtype=torch.long)
    numbers = (rows, size, count, normalize, torch.get_num_threads())
    compiled.vaswani_best_tokens(scores.data_ptr(), *numbers, values.data_ptr(), tokens.data_ptr())
    return values, tokens
