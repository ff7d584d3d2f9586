"""Dense attention on the CPU for short sequences, in which a sparse pattern shows every token to every other.

B batch · H heads · n tokens · D head width
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from vaswani.kernels.one_width import ready_for_fused_kernel
from vaswani.model.input_checks import has_values
from vaswani.model.sparse_attention import attend_by_pattern
from vaswani.model.sparse_pattern import SparsePattern


def unavailable() -> str | None:
    """Return None: PyTorch's dense attention is always available."""
    return None


def hook_in() -> None:
    """Put this kernel before the others."""
    attend_by_pattern.put_before(attend_to_all)


def attend_to_all(
    fallback: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """`attend_by_pattern`: dense attention for short sequences without dropout, else another kernel."""
    length, is_eager = query.shape[2], query.device.type == "cpu" and has_values(query)
    if dropout or not is_eager or not shows_everything(pattern, length):
        return fallback(query, key, value, pattern, padding_mask, scaling, dropout)
    mask = None
    if padding_mask is not None and not padding_mask.all():  # without a mask the fused kernel is faster
        mask = padding_mask[:, None, None]
        if pattern.causal:
            mask = mask & mask.new_ones(length, length).tril()
    is_causal = pattern.causal and mask is None
    value_width = value.shape[-1]
    query, key, value = ready_for_fused_kernel(query, key, value)
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scaling
    )
    return output[..., :value_width]


@lru_cache(maxsize=4096)
def shows_everything(pattern: SparsePattern, length: int) -> bool:
    """Return whether every token of a sequence sees all others (if causal, all earlier ones)."""
    num_blocks = pattern.num_blocks(length)
    if num_blocks > pattern.in_blocks().global_blocks + pattern.window_blocks + pattern.random_blocks:
        return False
    visible = pattern.block_mask(num_blocks)
    return bool((visible | visible.new_ones(visible.shape).triu(1) if pattern.causal else visible).all())
