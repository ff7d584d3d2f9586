"""Attention in half precision on the CPU, computed in float32 where training is faster with it.

PyTorch's fused kernel supports bfloat16, but its backward pass prepares every block for the processor's
matrix units. On one core of a Xeon with matrix units and 4 heads × 32 numbers, it takes seven times as long
as in float32 for 14 tokens and twice as long for 128 tokens; from about 400 tokens on it is faster. The
states are small compared with the products around them, so converting them costs little.
"""

from typing import Any

import torch
from torch import nn

from vaswani.model.attention import ATTENTION_FUNCTIONS
from vaswani.model.input_checks import has_values

MAX_WEIGHTS = 300**2  # of one head and row


def unavailable() -> None:
    """Return None: the conversion relies only on public names."""


def hook_in() -> None:
    """Put this kernel before the attention in float32, which it calls with the converted states."""
    attention = ATTENTION_FUNCTIONS["sdpa"]

    def sdpa_attention_forward(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """softmax(QKᵀ · scaling + mask) V of states as in `short_attention_forward`."""
        if not gains_from_float32(query, key):
            return attention(module, query, key, value, attention_mask, **kwargs)
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            attention_mask = attention_mask.float()
        states = (query.float(), key.float(), value.float())
        with torch.autocast("cpu", enabled=False):  # autocast would convert them back
            output, _ = attention(module, *states, attention_mask, **kwargs)
        return output.to(query.dtype), None

    ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward


def gains_from_float32(query: torch.Tensor, key: torch.Tensor) -> bool:
    """Return whether queries [B, H, T, Dk] and keys [B, H, S, Dk] in half precision gain from float32."""
    return (
        query.dtype in (torch.bfloat16, torch.float16)
        and query.device.type == "cpu"
        and has_values(query)
        and torch.is_grad_enabled()
        and query.requires_grad
        and query.shape[2] * key.shape[2] <= MAX_WEIGHTS
    )
