"""Pad heads so that queries, keys and values have one width, for kernels that take only one.

B batch · H heads · n tokens · Dk width of queries and keys · Dv width of values
"""

import torch
from torch import nn


def padded_to_one_width(*states: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Pad queries, keys and values [B, H, n, Dk or Dv] with zeros to the wider of both.

    Zeros do not change the scores. The caller cuts the output to the width of the values.
    """
    width = max(each.shape[-1] for each in states)
    return tuple(
        nn.functional.pad(each, (0, width - each.shape[-1])) if each.shape[-1] < width else each
        for each in states
    )
