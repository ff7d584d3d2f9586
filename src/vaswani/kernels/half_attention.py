"""Attention of half precision on the CPU, computed in float32 where that is faster to train.

PyTorch's fused kernel takes bfloat16, but its backward pass prepares every block for the processor's matrix
units: at 14 tokens of 4 heads × 32 numbers, on one core of a Xeon that has them, it takes seven times as long
as in float32, at 128 tokens twice as long, and from about 400 tokens on it gains. The states are few beside
the products around them, so that converting them costs little.
"""

from typing import Any

import torch
from torch import nn

from vaswani.model.attention import ATTENTION_FUNCTIONS
from vaswani.model.input_checks import has_values

MAX_WEIGHTS = 300**2  # of one head and row


def unavailable() -> None:
    """The conversion relies on nothing but public names."""


def hook_in() -> None:
    """Go before the attention in float32, for what was converted comes there."""
    attention = ATTENTION_FUNCTIONS["sdpa"]

    def sdpa_attention_forward(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """softmax(QKᵀ · scaling + mask) V: [B, H, T, D] and twice [B, H, S, D] -> [B, T, H, D], None."""
        if not gains_from_float32(query, key):
            return attention(module, query, key, value, attention_mask, **kwargs)
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            attention_mask = attention_mask.float()
        states = (query.float(), key.float(), value.float())
        with torch.autocast("cpu", enabled=False):  # which would convert them back
            output, _ = attention(module, *states, attention_mask, **kwargs)
        return output.to(query.dtype), None

    ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward


def gains_from_float32(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Whether queries [B, H, T, D] and keys [B, H, S, D] of half precision are trained faster in float32."""
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and query.device.type == "cpu"
        and has_values(query)
        and torch.is_grad_enabled()
        and query.requires_grad
        and query.shape[2] * key.shape[2] <= MAX_WEIGHTS
    )
