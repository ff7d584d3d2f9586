"""Give heads one width where PyTorch's attention is faster with it.

A head has a width of its queries and keys, and one of its values.

B batch · H heads · n tokens · D width of a head, of queries and keys or of values
"""

import torch

from vaswani.model.attention import padded_to


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
