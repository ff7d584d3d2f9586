# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Attention over the blocks that a `SparsePattern` names, in time and memory that grow with the length alone.

For a few query blocks at a time, their key and value blocks are gathered into a buffer that stays in the
cache; two batched products around one softmax do the rest. The backward pass gathers and computes the weights
again, and adds the gradients back block by block. The rows that see everything (global blocks of a
bidirectional pattern) are dense rows over all keys. Nothing of the size n² is ever made.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens
L = g + w + r key blocks at most for each query block
"""

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch

from .sparse_pattern import SparsePattern

CHUNK = 8  # query blocks at a time: what they gather should fit into the second-level cache


def sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
) -> torch.Tensor:
    """softmax(QKᵀ · scaling) V over the pairs that the pattern and the padding mask let see each other.

    Args:
        query, key, value: [B, H, n, D], of one floating dtype; half precision is computed in float32.
        pattern: who sees whom; its `num_heads` is H.
        padding_mask: [B, n], 0 or False for keys that nobody may see; None shows all.
        scaling: 1 / sqrt(D) by default.

    Returns:
        [B, H, n, D]. A row that sees nothing is zero, and so are its gradients.

    Raises:
        ValueError: when the shapes do not fit each other or the pattern.
    """
    _check_shapes(query, key, value, pattern, padding_mask)
    return torch.ops.vaswani.sparse_attention(
        query,
        key,
        value,
        None if padding_mask is None else padding_mask.bool(),
        [int(number) for number in astuple(pattern)],
        query.shape[-1] ** -0.5 if scaling is None else scaling,
    )


def _check_shapes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
) -> None:
    batch, heads, length, _ = query.shape
    if key.shape != query.shape or value.shape != query.shape:
        shapes = ", ".join(str(list(states.shape)) for states in (query, key, value))
        raise ValueError(f"query, key and value must have one shape [B, H, n, D]; got {shapes}.")
    if heads != pattern.num_heads:
        raise ValueError(f"the query has {heads} heads and the pattern num_heads={pattern.num_heads}.")
    if padding_mask is not None and padding_mask.shape != (batch, length):
        raise ValueError(f"padding_mask must be [{batch}, {length}]; got {list(padding_mask.shape)}.")


# The operators take a pattern as numbers, so that a compiler traces neither it nor the hash.
def _pattern_of(numbers: list[int]) -> SparsePattern:
    return SparsePattern(*numbers)  # type: ignore[arg-type]  # the last is 0 or 1, for causal


@lru_cache(maxsize=256)
def _key_blocks(pattern: SparsePattern, num_blocks: int, device: torch.device) -> torch.Tensor:
    """The pattern's key blocks with N in place of −1, drawn once for each layer, length and device."""
    with torch.inference_mode(False):
        blocks = pattern.key_blocks(num_blocks, device=device)
        return torch.where(blocks < 0, num_blocks, blocks)


class _Workspace:
    """Buffers that each chunk and head writes into anew: they are in the cache, and new memory is slow.

    On the CPU a fresh buffer of some megabytes costs a page fault every 4 KiB, a fifth of all the time.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self.empty = torch.empty(0, dtype=dtype, device=device)
        self.buffers: dict[str, torch.Tensor] = {}

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor of this shape whose values are anything; what was last taken under the name is lost."""
        size = prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.empty.new_empty(size)
        return self.buffers[name][:size].view(shape)


@dataclass
class _Blocks:
    """One sequence of one head, in blocks and in the dtype to compute in.

    Attributes:
        query: [N, b, D].
        key, value: [N + 1, b, D]; the last block is one that nobody sees.
        bias: [N + 1, b], 0 or the lowest number, added to the scores of each key.
        is_padded: whether the bias hides any key of the sequence.
        key_blocks: [N − G, L], G the number of query blocks that see everything; N where there is none.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor
    is_padded: bool
    key_blocks: torch.Tensor
    causal: bool
    scaling: float
    workspace: _Workspace

    @property
    def num_blocks(self) -> int:
        return self.query.shape[0]

    @property
    def num_global_rows(self) -> int:
        return self.num_blocks - self.key_blocks.shape[0]

    def chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """The query blocks of each chunk, and the key blocks that they see [C · L]."""
        for start in range(0, self.key_blocks.shape[0], CHUNK):
            blocks = self.key_blocks[start : start + CHUNK]
            first = self.num_global_rows + start
            yield slice(first, first + blocks.shape[0]), blocks.flatten()

    def gather(self, blocks: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values [C, L · b, D] of C query blocks' key blocks [C · L]."""
        size, width = self.key.shape[1:]
        gathered = []
        for name, states in (("keys", self.key), ("values", self.value)):
            buffer = self.workspace(name, len(blocks), size, width)
            torch.index_select(states, 0, blocks, out=buffer)
            gathered.append(buffer.view(count, -1, width))
        return gathered[0], gathered[1]

    def weights(self, rows: slice, blocks: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Attention weights of a chunk [C, b, L · b] for its gathered keys [C, L · b, D]."""
        count, num_keys, _ = keys.shape
        hides = self.is_padded or bool((blocks == self.num_blocks).any())
        bias = self.bias[blocks].view(count, 1, -1) if hides else self.bias.new_zeros(())
        scores = self.workspace("scores", count, self.query.shape[1], num_keys)
        queries = self.query[rows]
        torch.baddbmm(bias, queries, keys.transpose(1, 2), beta=int(hides), alpha=self.scaling, out=scores)
        if self.causal:
            self._hide_future(scores, rows, blocks.view(count, -1))
        return self._softmax(scores)

    def _hide_future(self, scores: torch.Tensor, rows: slice, blocks: torch.Tensor) -> None:
        """Make the diagonal block of each query block a triangle."""
        count, size, _ = scores.shape
        own = torch.arange(rows.start, rows.stop, device=blocks.device)
        place = (blocks == own[:, None]).int().argmax(dim=1)
        future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
        by_block = scores.view(count, size, -1, size)
        chunk = torch.arange(count, device=scores.device)
        diagonal = by_block[chunk, :, place].masked_fill(future, torch.finfo(scores.dtype).min)
        by_block[chunk, :, place] = diagonal

    def global_weights(self) -> torch.Tensor:
        """Attention weights [G · b, N · b] of the rows that see everything."""
        rows, keys = self.query[: self.num_global_rows].flatten(0, 1), self.key[:-1].flatten(0, 1)
        bias = self.bias[:-1].view(1, -1) if self.is_padded else self.bias.new_zeros(())
        scores = self.workspace("scores", len(rows), len(keys))
        torch.addmm(bias, rows, keys.T, beta=int(self.is_padded), alpha=self.scaling, out=scores)
        return self._softmax(scores)

    def _softmax(self, scores: torch.Tensor) -> torch.Tensor:
        """Over the last dimension; rows in which everything is hidden become zero."""
        weights = torch.softmax(scores, dim=-1, out=self.workspace("weights", *scores.shape))
        if self.is_padded:
            is_empty = scores.amax(dim=-1, keepdim=True) <= torch.finfo(scores.dtype).min / 2
            weights.masked_fill_(is_empty, 0.0)
        return weights


def _by_head(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    pattern: SparsePattern,
    scaling: float,
) -> Iterator[tuple[tuple[int, int], _Blocks]]:
    """Each sequence and head, and its blocks."""
    batch, heads, length, width = query.shape
    dtype = torch.promote_types(query.dtype, torch.float32)
    block_size, num_blocks = pattern.block_size, pattern.num_blocks(length)
    key_blocks = _key_blocks(pattern, num_blocks, query.device)
    workspace = _Workspace(dtype, query.device)

    def blocks_of(name: str, states: torch.Tensor, extra: int) -> torch.Tensor:
        padded = workspace(name, (num_blocks + extra) * block_size, width)
        padded[:length], padded[length:] = states, 0.0
        return padded.view(-1, block_size, width)

    for row in range(batch):
        hidden = torch.ones((num_blocks + 1) * block_size, dtype=torch.bool, device=query.device)
        hidden[:length] = False if padding_mask is None else ~padding_mask[row]
        is_padded = bool(hidden[:-block_size].any())
        bias = torch.zeros(hidden.shape, dtype=dtype, device=query.device)
        bias = bias.masked_fill_(hidden, torch.finfo(dtype).min).view(-1, block_size)
        for head in range(heads):
            yield (
                (row, head),
                _Blocks(
                    blocks_of("query", query[row, head], 0),
                    blocks_of("key", key[row, head], 1),
                    blocks_of("value", value[row, head], 1),
                    bias,
                    is_padded,
                    key_blocks[head],
                    pattern.causal,
                    scaling,
                    workspace,
                ),
            )


@torch.library.custom_op("vaswani::sparse_attention", mutates_args=())
def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    pattern: list[int],
    scaling: float,
) -> torch.Tensor:
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    length = query.shape[-2]
    heads = _by_head(query, key, value, padding_mask, _pattern_of(pattern), scaling)
    for place, blocks in heads:
        result = blocks.workspace("result", *blocks.query.shape)
        if blocks.num_global_rows:
            rows_seeing_all = result[: blocks.num_global_rows].flatten(0, 1)
            torch.mm(blocks.global_weights(), blocks.value[:-1].flatten(0, 1), out=rows_seeing_all)
        for rows, key_block in blocks.chunks():
            keys, values = blocks.gather(key_block, rows.stop - rows.start)
            torch.bmm(blocks.weights(rows, key_block, keys), values, out=result[rows])
        output[place] = result.flatten(0, 1)[:length]
    return output


@torch.library.custom_op("vaswani::sparse_attention_backward", mutates_args=())
def _backward(
    grad: torch.Tensor,
    output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    pattern: list[int],
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gradients = tuple(
        torch.empty_like(states, memory_format=torch.contiguous_format) for states in (query, key, value)
    )
    length, width = query.shape[-2:]
    block_size = _pattern_of(pattern).block_size
    heads = _by_head(query, key, value, padding_mask, _pattern_of(pattern), scaling)
    for place, blocks in heads:
        workspace = blocks.workspace
        upstream = workspace("upstream", blocks.num_blocks * block_size, width)
        upstream[:length], upstream[length:] = grad[place], 0.0
        # The sum of each row of weights times their gradients is that of its output times its gradient.
        row_sums = workspace("row_sums", len(upstream), 1)
        row_sums[length:] = 0.0
        row_sums[:length] = (upstream[:length] * output[place]).sum(-1, keepdim=True)
        grad_query = workspace("grad_query", *blocks.query.shape)
        grad_key = workspace("grad_key", *blocks.key.shape).zero_()
        grad_value = workspace("grad_value", *blocks.value.shape).zero_()

        num_rows = blocks.num_global_rows * block_size
        if num_rows:
            all_keys, all_values = (states[:-1].flatten(0, 1) for states in (blocks.key, blocks.value))
            weights = blocks.global_weights()
            torch.mm(weights.T, upstream[:num_rows], out=grad_value[:-1].flatten(0, 1))
            scores = workspace("scores", *weights.shape)
            torch.mm(upstream[:num_rows], all_values.T, out=scores).sub_(row_sums[:num_rows]).mul_(weights)
            torch.mm(scores, all_keys, out=grad_query.flatten(0, 1)[:num_rows])
            queries = blocks.query.flatten(0, 1)[:num_rows]
            torch.mm(scores.T, queries, out=grad_key[:-1].flatten(0, 1))
        upstream, row_sums = upstream.view(blocks.query.shape), row_sums.view(-1, block_size, 1)
        for rows, key_block in blocks.chunks():
            keys, values = blocks.gather(key_block, rows.stop - rows.start)
            weights = blocks.weights(rows, key_block, keys)
            by_key = workspace("by_key", len(key_block), block_size, width)
            torch.bmm(weights.transpose(1, 2), upstream[rows], out=by_key.view(keys.shape))
            grad_value.index_add_(0, key_block, by_key)
            scores = workspace("scores", *weights.shape)
            torch.bmm(upstream[rows], values.transpose(1, 2), out=scores).sub_(row_sums[rows]).mul_(weights)
            torch.bmm(scores, keys, out=grad_query[rows])
            torch.bmm(scores.transpose(1, 2), blocks.query[rows], out=by_key.view(keys.shape))
            grad_key.index_add_(0, key_block, by_key)
        grad_query.mul_(scaling)
        grad_key.mul_(scaling)
        for result, of_head in zip(gradients, (grad_query, grad_key, grad_value), strict=True):
            result[place] = of_head.flatten(0, 1)[:length]
    return gradients[0], gradients[1], gradients[2]


@_forward.register_fake
def _(query: torch.Tensor, *arguments: object) -> torch.Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@_backward.register_fake
def _(
    grad: torch.Tensor, output: torch.Tensor, query: torch.Tensor, *arguments: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    empty = [torch.empty_like(query, memory_format=torch.contiguous_format) for _ in range(3)]
    return empty[0], empty[1], empty[2]


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    query, key, value, padding_mask, *ctx.options = inputs
    ctx.save_for_backward(output, query, key, value, padding_mask)


def _differentiate(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    gradients = torch.ops.vaswani.sparse_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*gradients, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_save)
