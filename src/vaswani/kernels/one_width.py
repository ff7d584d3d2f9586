"""Pad heads so that queries, keys and values have one width, for kernels that take only one.

B batch · H heads · n tokens · D width of a head, of queries and keys or of values
"""

import torch
from torch import nn


def padded_to(width: int, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pad queries, keys and values [B, H, n, at most width] with zeros -> [B, H, n, width].

    Zeros do not change the scores. The caller cuts the output to the width of the values.
    """
    return tuple(
        nn.functional.pad(each, (0, width - each.shape[-1])) if each.shape[-1] < width else each
        for each in states
    )


def ready_for_fused_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Pad states [B, H, n, D] to one width if PyTorch's attention is faster with it.

    For two widths, PyTorch does not use its fused kernel of the CPU. It keeps all weights and takes more than
    twice as long for 1,024 tokens. A single query has few weights.
    """
    if query.shape[-1] == value.shape[-1] or query.shape[2] == 1 or query.device.type != "cpu":
        return query, key, value
    return padded_to(max(query.shape[-1], value.shape[-1]), query, key, value)
