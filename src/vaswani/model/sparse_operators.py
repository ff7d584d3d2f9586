# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Sparse attention by PyTorch's operators: for any dtype, block and head width, and without a compiler.

The query blocks of a sequence are taken a few at a time. The key blocks that each of them sees lie in one
table of the pattern, are gathered, and two batched matrix products do the rest. The rows that see everything
take the keys a tile at a time, as FlashAttention does (Dao et al., 2022, arXiv:2205.14135). The backward pass
is written by hand: it computes the weights anew instead of keeping them, so that no memory grows faster than
the sequence.

Every step is one operator for some query blocks of a head, which PyTorch's threads divide among them; each
finds what it has gathered in the cache of its own core.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens · C query blocks at a time
L = g + w + r key blocks at most for each query block · G query blocks that see everything
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import e, log2, prod
from typing import Any

import numpy as np
import torch

from .dropout import LEVELS, draw_kept
from .onednn import batched_products_by_onednn
from .sparse_inputs import BackwardInputs, Inputs, compute_dtype, key_blocks
from .sparse_pattern import SparsePattern

# What is computed at a time lies in several buffers, and should fit into the second-level cache of each core.
CHUNK = 1 << 18  # weights, for each thread
TILE = 512  # keys for one product, of queries that see everything
LOG2_E = log2(e)  # scores are in powers of two, as 2^x takes half the time of e^x on some processors


def attend_by_operators(inputs: Inputs, output: torch.Tensor, log_sums: torch.Tensor) -> None:
    """Write the output [B, H, n, D], and log2 Σ 2^score [B, H, N · b] of the scores of each row."""
    for place, blocks in _Heads(inputs).each():
        result = blocks.result(output[place], "result")
        of_head = _HeadOutput(blocks, result.blocks)
        of_head.set_global_rows()
        for chunk in blocks.chunks:
            of_head.set_chunk(chunk)
        log_sums[place] = of_head.log_sums()
        result.finish()


def differentiate_by_operators(inputs: Inputs, given: BackwardInputs) -> None:
    """Write the gradients of query, key and value."""
    for place, blocks in _Heads(inputs).each():
        results = [
            blocks.result(given.query[place], "grad_query"),
            blocks.result(given.key[place], "grad_key"),
            blocks.result(given.value[place], "grad_value"),
        ]
        of_rows = given.upstream[place], given.output[place], given.log_sums[place]
        of_head = _HeadGradients(blocks, *of_rows, *(each.blocks for each in results))
        of_head.set_by_global_rows()
        for chunk in blocks.chunks:
            of_head.add_chunk(chunk)
        for result in results:
            result.finish()


@dataclass(frozen=True)
class _Chunk:
    """Query blocks that are computed at a time.

    Attributes:
        rows: which, C of them.
        key_blocks: int64 [C · L], what they see; N where there is none.
        gathered: int64 [C · L], the same; where there is none their own block, whose keys the bias hides.
    """

    rows: slice
    key_blocks: torch.Tensor
    gathered: torch.Tensor


@lru_cache(maxsize=2048)
def _chunks(
    pattern: SparsePattern, num_blocks: int, head: int, device: torch.device, num_threads: int
) -> list[_Chunk]:
    """The query blocks of a head that do not see everything, some at a time."""
    table = key_blocks(pattern, num_blocks, device)[head]
    size = max(1, num_threads * CHUNK // (table.shape[1] * pattern.block_size**2))
    num_global_rows = num_blocks - len(table)
    chunks = []
    with torch.inference_mode(False):
        for start in range(0, len(table), size):
            part, first = table[start : start + size], num_global_rows + start
            rows = slice(first, first + len(part))
            own = torch.arange(rows.start, rows.stop, device=device)[:, None]
            gathered = torch.where(part == num_blocks, own, part)
            chunks.append(_Chunk(rows, part.flatten(), gathered.flatten()))
    return chunks


class _Workspace:
    """Buffers that each chunk and head writes into anew: they are in the cache, and new memory is slow.

    On the CPU a fresh buffer of some megabytes costs a page fault every 4 KiB, a fifth of all the time.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device):
        self.empty = torch.empty(0, dtype=dtype, device=device)
        self.buffers: dict[str, torch.Tensor] = {}
        self.views: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def __call__(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor of this shape whose values are anything; what was last taken under the name is lost."""
        view = self.views.get((name, shape))
        return self._new_view(name, shape) if view is None else view

    def _new_view(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        size = prod(shape)
        if name not in self.buffers or self.buffers[name].numel() < size:
            self.buffers[name] = self.empty.new_empty(size)
            self.views = {key: view for key, view in self.views.items() if key[0] != name}
        self.views[name, shape] = view = self.buffers[name][:size].view(shape)
        return view


class _Dropout:
    """Drops weights of one sequence and head: the same ones in the backward pass as in the forward pass."""

    def __init__(self, p: float, seed: int, workspace: _Workspace):
        self.num_dropped_levels = round(p * LEVELS)
        scale = LEVELS / (LEVELS - self.num_dropped_levels)
        self.scale = workspace.empty.new_tensor(scale)  # as a plain number it would be rounded to float32
        self.generator = np.random.SFC64(seed)
        self.workspace = workspace

    def keep(self, shape: torch.Size) -> torch.Tensor:
        """What the next weights of this shape are multiplied by: 0 or 1 / (1 − p)."""
        kept = draw_kept(shape, self.num_dropped_levels, self.generator).to(self.scale.device)
        return torch.mul(kept, self.scale, out=self.workspace("keep", *shape))


@dataclass
class _Blocks:
    """One sequence of one head, in blocks and in the dtype to compute in.

    Attributes:
        query, key, value: [N, b, D].
        scaling: of the scores.
        bias: [N + 1, b], 0 or the lowest number, added to the scores of each key; the last is no block.
        may_see_nothing: whether there can be rows all of whose keys are hidden.
        chunks: of the query blocks that do not see everything; those that do come first.
        hides: of each query block [N], whether the bias hides any key that is gathered for it.
        dropout: of the weights, or None.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    bias: torch.Tensor
    may_see_nothing: bool
    chunks: list[_Chunk]
    hides: list[bool]
    causal: bool
    dropout: _Dropout | None
    workspace: _Workspace

    def result(self, states: torch.Tensor, name: str) -> "_Result":
        """Where to write a result [n, D] of this head."""
        num_blocks, size, _ = self.query.shape
        return _Result(states, num_blocks, size, self.workspace, name)

    @property
    def num_global_rows(self) -> int:
        return self.chunks[0].rows.start if self.chunks else self.query.shape[0]

    def gather(self, states: torch.Tensor, chunk: _Chunk, name: str) -> torch.Tensor:
        """The keys or values [C, L · b, D] that a chunk's query blocks see, in a buffer of this name."""
        (_, size, width), num_blocks = states.shape, chunk.gathered.shape[0]
        count = chunk.rows.stop - chunk.rows.start
        out = self.workspace(name, num_blocks, size, width)
        torch.index_select(states, 0, chunk.gathered, out=out)
        return self.workspace(name, count, num_blocks // count * size, width)

    def scores(self, chunk: _Chunk, keys: torch.Tensor, by_key: bool = False) -> torch.Tensor:
        """What a chunk's queries score with its gathered keys [C, L · b, D]: [C, b, L · b], in powers of two.

        By key they are transposed: [C, L · b, b].
        """
        bias = self.bias[chunk.key_blocks].view(len(keys), -1) if any(self.hides[chunk.rows]) else None
        scores = self._scores(self.query[chunk.rows], keys, bias, by_key)
        if self.causal:
            self._hide_future(scores.transpose(1, 2) if by_key else scores, chunk)
        return scores

    def _scores(
        self, queries: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, by_key: bool
    ) -> torch.Tensor:
        """Of queries [C, q, D] and keys [C, k, D] with a bias [C, k]: [C, q, k], or by key [C, k, q]."""
        left, right = (keys, queries) if by_key else (queries, keys)
        scores = self.workspace("weights", len(keys), left.shape[1], right.shape[1])
        scaling = LOG2_E * self.scaling
        torch.baddbmm(scores, left, right.transpose(1, 2), beta=0, alpha=scaling, out=scores)
        if bias is not None:
            scores.add_(bias.unsqueeze(2 if by_key else 1))
        return scores

    def _hide_future(self, scores: torch.Tensor, chunk: _Chunk) -> None:
        """Make the diagonal block of each query block a triangle."""
        size = scores.shape[1]
        own = torch.arange(chunk.rows.start, chunk.rows.stop, device=scores.device)
        row = own - chunk.rows.start
        place = (chunk.key_blocks.view(len(own), -1) == own[:, None]).int().argmax(dim=1)
        future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
        by_block = scores.unflatten(-1, (-1, size))
        diagonal = by_block[row, :, place].masked_fill(future, torch.finfo(scores.dtype).min)
        by_block[row, :, place] = diagonal

    @property
    def global_rows(self) -> torch.Tensor:
        """The queries [G · b, D] that see everything."""
        return self.query[: self.num_global_rows].flatten(0, 1)

    def tiles(self) -> Iterator[slice]:
        """All keys, some whole tiles at a time; the rest, which is shorter, comes last."""
        num_keys = self.query.shape[0] * self.query.shape[1]
        count = max(1, torch.get_num_threads() * CHUNK // (len(self.global_rows) * TILE))
        last = num_keys - num_keys % TILE
        for start in range(0, last, count * TILE):
            yield slice(start, min(start + count * TILE, last))
        if last < num_keys:
            yield slice(last, num_keys)

    def global_scores(self, tiles: slice, by_key: bool = False) -> torch.Tensor:
        """The same of the rows that see everything and some tiles of the keys: [T, G · b, t]."""
        keys = in_tiles(self.key, tiles)
        bias = self.bias.flatten()[tiles].view(keys.shape[:2])
        rows = self.global_rows.expand(len(keys), -1, -1)
        return self._scores(rows, keys, bias if bias.any() else None, by_key)

    def drop(self, weights: torch.Tensor) -> torch.Tensor:
        """The weights after dropout, in their place."""
        return weights if self.dropout is None else weights.mul_(self.dropout.keep(weights.shape))

    def drop_and_weight_gradient(
        self,
        weights: torch.Tensor,
        value_gradient: Callable[[torch.Tensor], Any],
        weight_gradient: Callable[[torch.Tensor], Any],
    ) -> torch.Tensor:
        """The gradient M ∘ dPM of the weights P [C, k, q], in a buffer of its own; M are dropout's factors.

        Calls `value_gradient(P ∘ M)`, which may use the weights while they are there, and
        `weight_gradient(out)`, which computes dPM, the gradient of P ∘ M.
        """
        gradient = self.workspace("gradient", *weights.shape)
        if self.dropout is None:
            value_gradient(weights)
            weight_gradient(gradient)
            return gradient
        keep = self.dropout.keep(weights.transpose(1, 2).shape).transpose(1, 2)  # drawn as for `drop`
        value_gradient(torch.mul(weights, keep, out=gradient))
        weight_gradient(gradient)
        return gradient.mul_(keep)


@dataclass
class _Heads:
    """The heads of the inputs, which are computed one after the other."""

    inputs: Inputs

    @cached_property
    def hides(self) -> torch.Tensor:
        """Whether a key of each block is hidden: bool [B, N + 1]."""
        return (self.inputs.bias < 0).any(dim=-1)

    def _query_blocks_that_hide(self, row: int, head: int) -> list[bool]:
        """Whether a key is hidden of those that are gathered for each query block [N]."""
        table = self.inputs.key_blocks[head]
        global_rows = [False] * (self.inputs.num_blocks - len(table))
        return global_rows + self.hides[row][table].any(dim=-1).tolist()

    def _blocks(self, row: int, head: int, workspace: _Workspace) -> _Blocks:
        """One sequence and head in blocks; valid until the workspace's next."""
        inputs = self.inputs
        size, num_blocks = inputs.pattern.block_size, inputs.num_blocks
        seed = 0 if inputs.seed is None else int(inputs.seed)
        place = row * inputs.query.shape[1] + head
        # What dropout draws for a row hangs on the chunks, and the backward pass must draw the same.
        num_threads = 1 if inputs.dropout else torch.get_num_threads()
        return _Blocks(
            query=in_blocks(inputs.query[row, head], num_blocks, size, workspace, "query"),
            key=in_blocks(inputs.key[row, head], num_blocks, size, workspace, "key"),
            value=in_blocks(inputs.value[row, head], num_blocks, size, workspace, "value"),
            scaling=inputs.scaling,
            bias=inputs.bias[row],
            hides=self._query_blocks_that_hide(row, head),
            may_see_nothing=inputs.padding_mask is not None,
            chunks=_chunks(inputs.pattern, num_blocks, head, inputs.query.device, num_threads),
            causal=inputs.pattern.causal,
            dropout=_Dropout(inputs.dropout, (seed + place) % 2**63, workspace) if inputs.dropout else None,
            workspace=workspace,
        )

    def each(self) -> Iterator[tuple[tuple[int, int], _Blocks]]:
        """Each sequence and head."""
        query = self.inputs.query
        workspace = _Workspace(compute_dtype(query), query.device)
        with batched_products_by_onednn():
            for place in product(range(query.shape[0]), range(query.shape[1])):
                yield place, self._blocks(*place, workspace)


def in_blocks(
    states: torch.Tensor, num_blocks: int, size: int, workspace: _Workspace, name: str
) -> torch.Tensor:
    """States [n, D] -> [N, b, D]: the same memory where it can be, else a copy, filled up with zeros."""
    length, width = states.shape
    if length == num_blocks * size and states.dtype == workspace.empty.dtype and states.is_contiguous():
        return states.unflatten(0, (num_blocks, size))
    padded = workspace(name, num_blocks * size, width)
    padded[:length], padded[length:] = states, 0.0
    return padded.view(num_blocks, size, width)


def in_tiles(blocks: torch.Tensor, tiles: slice) -> torch.Tensor:
    """Some tiles [T, t, D] of states [N, b, D], in their memory."""
    return blocks.flatten(0, 1)[tiles].unflatten(0, (-1, min(TILE, tiles.stop - tiles.start)))


class _Result:
    """A head's result [n, D], written in blocks.

    Attributes:
        blocks: [N, b, D], of any values; they are the result's own memory where that can be.
    """

    def __init__(self, states: torch.Tensor, num_blocks: int, size: int, workspace: _Workspace, name: str):
        self.states = states
        length, width = states.shape
        self.is_written = length == num_blocks * size and states.dtype == workspace.empty.dtype
        self.blocks = (
            states.view(num_blocks, size, width)
            if self.is_written
            else workspace(name, num_blocks, size, width)
        )

    def finish(self) -> None:
        """Have the blocks in the result."""
        if not self.is_written:
            self.states.copy_(self.blocks.flatten(0, 1)[: len(self.states)])


class _HeadOutput:
    """The output [N, b, D] of one sequence and head as it grows, in memory that is given.

    Attributes:
        highest, total: of each row [N, b, 1], the highest score, and the sum of two to the power of how much
            lower the scores are.
    """

    def __init__(self, blocks: _Blocks, result: torch.Tensor):
        self.blocks, self.result = blocks, result
        self.highest = blocks.workspace("highest", *result.shape[:2], 1)
        self.total = blocks.workspace("total", *result.shape[:2], 1)

    def set_global_rows(self) -> None:
        """Of the rows that see everything: sums over the tiles so far are relative to the highest so far."""
        blocks, count = self.blocks, self.blocks.num_global_rows
        if not count:
            return
        result, highest, total = (
            states[:count].flatten(0, 1) for states in (self.result, self.highest, self.total)
        )
        highest.fill_(torch.finfo(highest.dtype).min)
        total.zero_()
        result.zero_()
        for tiles in blocks.tiles():
            scores = blocks.global_scores(tiles)
            new_highest = torch.maximum(highest, scores.amax(dim=-1, keepdim=True).amax(dim=0))
            weights = scores.sub_(new_highest).exp2_()
            fading = highest.sub_(new_highest).exp2_()
            total.mul_(fading).add_(weights.sum(dim=-1, keepdim=True).sum(dim=0))
            result.mul_(fading).add_(
                torch.bmm(blocks.drop(weights), in_tiles(blocks.value, tiles)).sum(dim=0)
            )
            highest.copy_(new_highest)
        result.div_(total)

    def set_chunk(self, chunk: _Chunk) -> None:
        """Of a chunk's query blocks."""
        blocks = self.blocks
        result, highest, total = (states[chunk.rows] for states in (self.result, self.highest, self.total))
        scores = blocks.scores(chunk, blocks.gather(blocks.key, chunk, "keys"))
        torch.amax(scores, dim=-1, keepdim=True, out=highest)
        weights = scores.sub_(highest).exp2_()
        torch.sum(weights, dim=-1, keepdim=True, out=total)
        torch.bmm(blocks.drop(weights), blocks.gather(blocks.value, chunk, "keys"), out=result)
        result.div_(total)

    def log_sums(self) -> torch.Tensor:
        """log2 Σ 2^score [N · b] of the scores of each row.

        A row whose keys are all hidden is made zero, and this sum infinite, so that its weights are zero in
        the backward pass.
        """
        log_sums = self.total.log2().add_(self.highest)
        if self.blocks.may_see_nothing:
            is_empty = self.highest <= torch.finfo(log_sums.dtype).min / 2
            self.result.masked_fill_(is_empty, 0.0)
            log_sums.masked_fill_(is_empty, torch.inf)
        return log_sums.flatten()


class _HeadGradients:
    """Gradients [N, b, D] of one sequence and head as they grow, in memory that is given.

    The weights are transposed, by key: two of the three products that read them or their gradient then read
    row by row, which is faster, and not one.
    """

    def __init__(
        self,
        blocks: _Blocks,
        upstream: torch.Tensor,
        output: torch.Tensor,
        log_sums: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ):
        self.blocks = blocks
        workspace, (num_blocks, size, _) = blocks.workspace, blocks.query.shape
        self.upstream = in_blocks(upstream, num_blocks, size, workspace, "upstream")  # [N, b, D]
        self.output = in_blocks(output, num_blocks, size, workspace, "result")
        self.log_sums = log_sums.view(num_blocks, 1, size)
        self.query, self.key, self.value = query, key, value

    def _row_sums(self, rows: slice) -> torch.Tensor:
        """The sums of weights times their gradients of some query blocks' rows: [C, 1, b].

        They are those of the output times its gradient (Dao et al., 2022, section B.2).
        """
        output = self.output[rows]
        products = self.blocks.workspace("products", *output.shape)
        return torch.mul(output, self.upstream[rows], out=products).sum(-1).unsqueeze(1)

    def set_by_global_rows(self) -> None:
        """Those of the rows that see everything, which come first.

        What was there is overwritten: all keys and values, and the queries that are these rows.
        """
        blocks, count = self.blocks, self.blocks.num_global_rows
        if not count:
            self.key.zero_()
            self.value.zero_()
            return
        self.query[:count].zero_()
        row_sums = self._row_sums(slice(count)).view(-1)
        log_sums = self.log_sums[:count].view(-1)
        for tiles in blocks.tiles():
            weights = blocks.global_scores(tiles, by_key=True).sub_(log_sums).exp2_()
            self._set_tiles(tiles, weights, row_sums)

    def _set_tiles(self, tiles: slice, weights: torch.Tensor, row_sums: torch.Tensor) -> None:
        """The same of some tiles of the keys, by their weights [T, t, G · b]."""
        blocks, count = self.blocks, self.blocks.num_global_rows
        upstream, grad_query = (states[:count].flatten(0, 1) for states in (self.upstream, self.query))
        keys, values, grad_keys, grad_values = (
            in_tiles(states, tiles) for states in (blocks.key, blocks.value, self.key, self.value)
        )
        upstream, rows = (states.expand(len(keys), -1, -1) for states in (upstream, blocks.global_rows))
        gradient = blocks.drop_and_weight_gradient(
            weights,
            lambda dropped: torch.bmm(dropped, upstream, out=grad_values),
            lambda out: torch.bmm(values, upstream.transpose(1, 2), out=out),
        )
        scores = gradient.sub_(row_sums).mul_(weights)
        grad_query.add_(torch.bmm(scores.transpose(1, 2), keys).sum(dim=0), alpha=blocks.scaling)
        torch.baddbmm(grad_keys, scores, rows, beta=0, alpha=blocks.scaling, out=grad_keys)

    def add_chunk(self, chunk: _Chunk) -> None:
        """Those of a chunk's query blocks and of all key blocks that they see."""
        blocks, rows, upstream = self.blocks, chunk.rows, self.upstream[chunk.rows]
        keys = blocks.gather(blocks.key, chunk, "keys")
        by_key = blocks.workspace("by_key", *keys.shape)  # holds three things, one after the other

        def add_value_gradient(weights: torch.Tensor) -> None:
            torch.bmm(weights, upstream, out=by_key)
            self._add_by_key(self.value, chunk, by_key)

        def weight_gradient(out: torch.Tensor) -> None:
            values = blocks.gather(blocks.value, chunk, "by_key")
            torch.bmm(values, upstream.transpose(1, 2), out=out)

        weights = blocks.scores(chunk, keys, by_key=True).sub_(self.log_sums[rows]).exp2_()
        gradient = blocks.drop_and_weight_gradient(weights, add_value_gradient, weight_gradient)
        scores = gradient.sub_(self._row_sums(rows)).mul_(weights)
        of_queries, factors = self.query[rows], {"beta": 0, "alpha": blocks.scaling}
        torch.baddbmm(of_queries, scores.transpose(1, 2), keys, out=of_queries, **factors)
        torch.baddbmm(by_key, scores, blocks.query[rows], out=by_key, **factors)
        self._add_by_key(self.key, chunk, by_key)

    @staticmethod
    def _add_by_key(gradient: torch.Tensor, chunk: _Chunk, parts: torch.Tensor) -> None:
        """Add what concerns the gathered keys [C, L · b, D] to the gradient [N, b, D] of all."""
        gradient.index_add_(0, chunk.gathered, parts.view(-1, *gradient.shape[1:]))
