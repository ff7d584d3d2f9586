"""Sparse attention with FlexAttention (arXiv:2412.05496), for CUDA: the numbers of `sparse_attention`.

FlexAttention works tile by tile: lists say which tiles of keys each tile of queries visits. They come from
the pattern's blocks and are kept. A tile in which all pairs see each other stands in one list; a tile in
which some do stands in another, and each of its pairs is looked up in the pattern's blocks. What changes from
batch to batch, padding and dropout, hides scores and leaves the lists alone.

On CUDA the kernels are compiled, forward and backward. On the CPU FlexAttention reads no lists but looks up
all n² pairs, in as much memory, and refuses gradients: that is for comparing, not for working.

B batch · H heads · n tokens · R of them queries · D head width · N blocks · T tiles of queries · U of keys
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from vaswani.kernels.sequence_groups import in_groups
from vaswani.model.sparse_attention import attend_by_pattern
from vaswani.model.sparse_pattern import SparsePattern

TILE = 128  # tokens: in half precision the backward kernels of some GPUs have no smaller one
MIN_WIDTH = 16  # of a head, for the matrix products of its kernels
MANY = 4  # times as many blocks as the other rows see, and the rows that see all are computed apart
DROPOUT_LEVELS = 2**32  # of a 32-bit random number
GRAPHS = 64  # of different shapes and options, where PyTorch would stop at eight


def unavailable() -> str | None:
    """The reason why there is nothing to compute on."""
    return None if torch.cuda.is_available() else "there is no CUDA device"


def hook_in() -> None:
    """Go before other kernels."""
    attend_by_pattern.put_before(attend_on_cuda)


def attend_on_cuda(
    otherwise: Callable[..., torch.Tensor], query: torch.Tensor, *arguments: Any
) -> torch.Tensor:
    """`attend_by_pattern`: by FlexAttention on CUDA if heads are wide enough, else by another kernel."""
    is_computed = query.is_cuda and query.shape[-1] >= MIN_WIDTH
    return flex_sparse_attention(query, *arguments) if is_computed else otherwise(query, *arguments)


@torch.compiler.disable  # the pattern is not for a compiler to trace, and the kernels are compiled as it is
@in_groups
def flex_sparse_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding: torch.Tensor | None,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """`attend_by_pattern` with FlexAttention.

    Dropout drops to the nearest 2⁻³², by one number drawn from PyTorch's global random state on the query's
    device for each group of sequences. A row of which dropout keeps nothing is zero.
    """
    rows = _rows_apart(pattern, pattern.num_blocks(key.shape[2]), dropout)
    block_mask, first = _block_mask(pattern, key.shape[2], rows, key.device)
    apart, query = query.tensor_split([first], dim=2)
    output, log_sum = _attend(query, key, value, block_mask, _score_mod(padding), scaling)
    if dropout:
        seed = torch.randint(DROPOUT_LEVELS, (), device=query.device)
        score_mod = _score_mod(padding, seed, round(dropout * DROPOUT_LEVELS))
        kept, log_sum_kept = _attend(query, key, value, block_mask, score_mod, scaling)
        output = _rescale(kept, log_sum_kept, log_sum, dropout)
    if rows:
        output = torch.cat([_attend_to_all(apart, key, value, padding, scaling), output], dim=2)
    return output


def _rows_apart(pattern: SparsePattern, num_blocks: int, dropout: float) -> int:
    """How many query blocks, from the start, are computed by a dense kernel of their own.

    One program of the GPU computes a tile of queries. Those that see all N blocks take N / (g + w + r) times
    as long as the others: up to `MANY` times, the others fill the GPU meanwhile; beyond, it waits for these
    few. With dropout they stay, because the dense kernel would drop by numbers of its own.
    """
    rows = pattern.num_global_rows(num_blocks)
    others = pattern.in_blocks().global_blocks + pattern.window_blocks + pattern.random_blocks
    return 0 if dropout or num_blocks <= MANY * others else rows


def _attend_to_all(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Dense attention from some rows [B, H, R, D] to all keys that are not padding -> [B, H, R, D]."""
    if padding is None:
        return nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    is_empty = ~padding.any(dim=1)
    # What a kernel makes of a row that sees nothing is its own affair: let it see all, and take zeros.
    mask = (padding | is_empty[:, None])[:, None, None]
    output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.masked_fill(is_empty[:, None, None, None], 0.0)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    block_mask: BlockMask,
    score_mod: Callable[..., torch.Tensor] | None,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlexAttention: output [B, H, R, D], log-sum-exp of the scores [B, H, R], −inf where nothing is seen."""
    attention: Any = _compiled_flex_attention() if query.is_cuda else flex_attention
    with torch.compiler.config.patch(recompile_limit=GRAPHS):  # type: ignore[attr-defined]
        output, statistics = attention(
            query,
            key,
            value,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=scaling,
            # Else short queries would go to a decoding kernel, which wants both lists to be of one width.
            kernel_options={"BACKEND": "TRITON"},
            return_aux=AuxRequest(lse=True),
        )
    return output, statistics.lse


@lru_cache(maxsize=1)
def _compiled_flex_attention() -> Callable[..., Any]:
    """Whole or not at all: PyTorch would else go on uncompiled, with all n² scores in memory."""
    return torch.compile(flex_attention, fullgraph=True)


def _rescale(
    kept: torch.Tensor, log_sum_kept: torch.Tensor, log_sum: torch.Tensor, dropout: float
) -> torch.Tensor:
    """Attention with dropout of the weights, from attention in which the dropped pairs were hidden.

    There the softmax gives to the kept pairs what dropout would take from the others; their share of the sum
    of all exponentials puts it right. Tensors as from `_attend` -> [B, H, R, D].
    """
    is_empty = log_sum_kept.isneginf()
    difference = log_sum_kept.masked_fill(is_empty, 0.0) - log_sum.masked_fill(is_empty, 0.0)
    share = difference.exp().masked_fill(is_empty, 0.0)
    return (kept * (share / (1 - dropout))[..., None]).to(kept.dtype)


def _score_mod(
    padding: torch.Tensor | None, seed: torch.Tensor | None = None, dropped_levels: int = 0
) -> Callable[..., torch.Tensor] | None:
    """What hides keys that are padding [B, n], and pairs that dropout drops (see `keep_mask`)."""
    if padding is None and seed is None:
        return None

    def score_mod(
        score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        if padding is not None:
            score = torch.where(padding[batch, key], score, -math.inf)
        if seed is not None:
            score = torch.where(keep_mask(seed, batch, head, query, key, dropped_levels), score, -math.inf)
        return score

    return score_mod


def keep_mask(
    seed: torch.Tensor,
    batch: torch.Tensor,
    head: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    dropped_levels: int,
) -> torch.Tensor:
    """Whether dropout keeps the weight of a pair of tokens: integers that broadcast -> bool.

    A pair draws one of `DROPOUT_LEVELS` numbers, and the lowest `dropped_levels` are dropped. Most of the
    work is for the query alone or the key alone, and done once for each row and column of a tile.
    """
    row = _mix(_mix(_mix(seed ^ batch) ^ head) ^ query)
    return _mix(row ^ _mix(key)) >= dropped_levels


def _mix(numbers: torch.Tensor) -> torch.Tensor:
    """A bijection of the integers below 2³² that spreads each bit (hash-prospector, C. Wellons, 2018)."""
    # Within 64 bits nothing overflows, whatever the width of a kernel's own indices.
    numbers = numbers.to(torch.int64)
    for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        numbers = ((numbers ^ (numbers >> shift)) * multiplier) & (DROPOUT_LEVELS - 1)
    return numbers ^ (numbers >> 15)


def _block_mask(
    pattern: SparsePattern, length: int, rows: int, device: torch.device
) -> tuple[BlockMask, int]:
    """The pattern for FlexAttention without the first `rows` query blocks, and how many tokens these hold."""
    first = min(pattern.global_tokens or rows * pattern.block_size, length) if rows else 0
    lengths = (length - first, length)
    num_tiles = (-(-lengths[0] // TILE), -(-lengths[1] // TILE))
    lists = _tile_lists(pattern, pattern.num_blocks(length), rows, first, num_tiles, device)
    return BlockMask(seq_lengths=lengths, BLOCK_SIZE=(TILE, TILE), **lists), first


@lru_cache(maxsize=512)  # the sequences of a batch can have many lengths, in each layer
def _tile_lists(
    pattern: SparsePattern,
    num_blocks: int,
    rows: int,
    first: int,
    num_tiles: tuple[int, int],
    device: torch.device,
) -> dict[str, Any]:
    """What a `BlockMask` holds, made once for all lengths of as many blocks and tiles.

    The lists of key tiles are as wide as the longest of them; `BlockMask.from_kv_blocks` would have them U
    wide. Those of query tiles, for the backward pass, are T wide where there are global blocks, seen by all.
    """
    with torch.inference_mode(False):
        visible = pattern.block_mask(num_blocks, device)[:, rows:].contiguous()  # [H, N − rows, N]
        key_block = pattern.places(torch.arange(num_tiles[1] * TILE, device=device)) // pattern.block_size
        query_block = key_block[first:] - rows
        query_overlap = _overlap(query_block, num_blocks - rows)[: num_tiles[0]]
        key_overlap = _overlap(key_block, num_blocks)
        seen = query_overlap @ visible.double() @ key_overlap.T  # how many pairs of blocks, [H, T, U]
        is_full = seen == query_overlap.sum(1, keepdim=True) * key_overlap.sum(1)
        is_visited = seen > 0
        if pattern.causal:
            is_full, is_visited = is_full.tril(-1), is_visited.tril()
        lists: dict[str, Any] = {"mask_mod": _mask_mod(visible, query_block, key_block, pattern.causal)}
        for name, tiles in (("", is_visited & ~is_full), ("full_", is_full)):
            lists[f"{name}kv_num_blocks"], lists[f"{name}kv_indices"] = _lists(tiles)
            lists[f"{name}q_num_blocks"], lists[f"{name}q_indices"] = _lists(tiles.mT)
        return lists


def _overlap(blocks: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Which tiles have tokens in which blocks: the tokens' blocks int64 [n] -> [ceil(n / TILE), N], 0 or 1.

    Blocks from N on count for nothing. In float64, which automatic mixed precision leaves alone.
    """
    tile = torch.arange(len(blocks), device=blocks.device) // TILE
    overlap = torch.zeros(-(-len(blocks) // TILE), num_blocks + 1, dtype=torch.float64, device=blocks.device)
    overlap[tile, blocks.clamp(max=num_blocks)] = 1.0
    return overlap[:, :num_blocks]


def _lists(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many and which are True in each row: bool [H, T, U] -> int32 [1, H, T] and [1, H, T, the most]."""
    counts = tiles.sum(-1, dtype=torch.int32)
    most = max(int(counts.max()), 1)
    indices = tiles.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
    return counts[None], indices.int().contiguous()[None]


def _mask_mod(
    visible: torch.Tensor, query_block: torch.Tensor, key_block: torch.Tensor, is_causal: bool
) -> Callable[..., torch.Tensor]:
    """Whether a token sees another: whether the block of the one sees the block of the other.

    The blocks are bool [H, query blocks, key blocks]; which tokens are in which is int64 [n or more], for
    queries and for keys.
    """
    last_row, last_column = visible.shape[1] - 1, visible.shape[2] - 1
    query_block, key_block = query_block.clamp(max=last_row).int(), key_block.clamp(max=last_column).int()

    def mask_mod(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        sees = visible[head, query_block[query], key_block[key]]
        return sees & (key <= query) if is_causal else sees

    return mask_mod
