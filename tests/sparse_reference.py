"""What tests of sparse attention share: any pattern, inputs, paddings, and the dense reference."""

import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vaswani.model.attention import eager_attention_forward
from vaswani.model.sparse_attention import dense_mask
from vaswani.model.sparse_pattern import SparsePattern

any_pattern = st.builds(
    SparsePattern,
    num_heads=st.integers(1, 3),
    block_size=st.integers(1, 9),
    window_blocks=st.sampled_from([1, 3, 5]),
    global_blocks=st.integers(0, 3),
    random_blocks=st.integers(0, 4),
    seed=st.integers(-(2**63), 2**63 - 1),
    layer=st.integers(0, 100),
    causal=st.booleans(),
)


def states(
    batch: int,
    heads: int,
    length: int,
    width: int,
    dtype: torch.dtype = torch.float64,
    value_width: int | None = None,
):
    """Query, key, value [B, H, n, D] as a projection leaves them (the heads behind the tokens in memory)."""
    return tuple(
        torch.randn(batch, length, heads, each, dtype=dtype).transpose(1, 2).requires_grad_()
        for each in (width, width, value_width or width)
    )


def dense_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """The model's reference for every kernel, under the pattern's dense mask."""
    visible = dense_mask(pattern, query.shape[-2], query.shape[-2], padding_mask=padding_mask)
    output, _ = eager_attention_forward(nn.Module(), query, key, value, visible, query.shape[-1] ** -0.5)
    return output.transpose(1, 2)


def under_pattern(
    pattern: SparsePattern,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    lowest: float,
) -> torch.Tensor:
    """The library's additive mask [B, 1, T, S], or None, with `lowest` where a pattern shows nothing."""
    mask = query.new_zeros(len(query), 1, query.shape[2], key.shape[2]) if mask is None else mask
    mask, shown = mask.clamp(min=lowest), mask[:, 0, -1] > lowest  # the last row sees all but padding
    return torch.where(dense_mask(pattern, *mask.shape[2:], padding_mask=shown), mask, lowest)


PADDINGS = ["none", "left", "right", "holes", "empty"]


def paddings(length: int, kind: str) -> torch.Tensor | None:
    """[3, n]: sequences of different lengths, padded where `kind` says."""
    if kind == "none":
        return None
    mask = torch.ones(3, length, dtype=torch.long)
    for row in range(3):
        hidden = row * length // 4
        if kind == "right":
            mask[row, length - hidden :] = 0
        elif kind == "left":
            mask[row, :hidden] = 0
        elif kind == "holes":
            mask[row, torch.randperm(length)[:hidden]] = 0
        elif row == 1:  # "empty"
            mask[row] = 0
    return mask


def assert_equal(
    actual: torch.Tensor, expected: torch.Tensor, inputs: tuple[torch.Tensor, ...], tolerance: float = 1e-12
) -> None:
    """Outputs, and gradients of the inputs."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(output, inputs, upstream) for output in (actual, expected)]
    for of_ours, of_reference in zip(*gradients, strict=True):
        torch.testing.assert_close(of_ours, of_reference, rtol=0, atol=tolerance)


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor made."""

    size = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.size = max(self.size, tensor.numel())
        return result
