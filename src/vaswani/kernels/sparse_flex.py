"""Sparse attention with FlexAttention (arXiv:2412.05496) on CUDA; same results as `sparse_attention`.

FlexAttention works tile by tile: lists say which tiles of keys each tile of queries visits. The lists are
made from the pattern's blocks and cached. One list has the tiles in which all pairs see each other; another
has the tiles in which some pairs do, and each of their pairs is looked up in the pattern's blocks. Padding
and dropout, which change from batch to batch, hide scores and do not change the lists.

On CUDA the kernels are compiled, forward and backward. On the CPU FlexAttention ignores the lists and looks
up all n² pairs, in as much memory, and does not support gradients: use it there only for comparisons.

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
MIN_WIDTH = 16  # of a head; the matrix products of the kernels need as much
MANY = 4  # if a row sees more than this many times the blocks of other rows, it is computed separately
DROPOUT_LEVELS = 2**32  # of a 32-bit random number
GRAPHS = 64  # for different shapes and options; PyTorch's default limit is eight


def unavailable() -> str | None:
    """Return why the kernel cannot be used, or None if there is a CUDA device."""
    return None if torch.cuda.is_available() else "there is no CUDA device"


def hook_in() -> None:
    """Put this kernel before the others."""
    attend_by_pattern.put_before(attend_on_cuda)


def attend_on_cuda(
    fallback: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *arguments: Any,
) -> torch.Tensor:
    """`attend_by_pattern`: by FlexAttention on CUDA if heads are wide enough, else by another kernel."""
    is_computed = query.is_cuda and min(query.shape[-1], value.shape[-1]) >= MIN_WIDTH
    attend = flex_sparse_attention if is_computed else fallback
    return attend(query, key, value, *arguments)


@torch.compiler.disable  # a compiler cannot trace the pattern, and the kernels are compiled anyway
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

    The dropout rate is rounded to the nearest 2⁻³². Dropout draws one number for each group of sequences from
    PyTorch's global random state on the query's device. A row that loses all weights to dropout is zero.
    """
    rows = _num_dense_rows(pattern, pattern.num_blocks(key.shape[2]), dropout)
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


def _num_dense_rows(pattern: SparsePattern, num_blocks: int, dropout: float) -> int:
    """Return how many query blocks, from the start, a separate dense kernel computes.

    One program of the GPU computes a tile of queries. Tiles that see all N blocks take N / (g + w + r) times
    as long as the others. Up to `MANY` times, the other tiles keep the GPU busy meanwhile; beyond that, the
    GPU waits for these few tiles. With dropout the number is 0, because the dense kernel would draw different
    numbers.
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
    """Compute dense attention of rows [B, H, R, D] to all keys that are not padding -> [B, H, R, D]."""
    if padding is None:
        return nn.functional.scaled_dot_product_attention(query, key, value, scale=scaling)
    is_empty = ~padding.any(dim=1)
    # Kernels return different results for a row that sees nothing: let it see all, and return zeros.
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
    """Return FlexAttention's output [B, H, R, D] and log-sum-exp [B, H, R], −inf if a row sees nothing."""
    attention: Any = _compiled_flex_attention() if query.is_cuda else flex_attention
    with torch.compiler.config.patch(recompile_limit=GRAPHS):  # type: ignore[attr-defined]
        output, statistics = attention(
            query,
            key,
            value,
            score_mod=score_mod,
            block_mask=block_mask,
            scale=scaling,
            # Otherwise short queries would go to a decoding kernel, which needs lists of equal width.
            kernel_options={"BACKEND": "TRITON"},
            return_aux=AuxRequest(lse=True),
        )
    return output, statistics.lse


@lru_cache(maxsize=1)
def _compiled_flex_attention() -> Callable[..., Any]:
    """Compile the full graph: otherwise PyTorch may run uncompiled, with all n² scores in memory."""
    return torch.compile(flex_attention, fullgraph=True)


def _rescale(
    kept: torch.Tensor, log_sum_kept: torch.Tensor, log_sum: torch.Tensor, dropout: float
) -> torch.Tensor:
    """Turn attention that hides the dropped pairs into attention with dropout of the weights.

    With hidden pairs, the softmax distributes their weight among the kept pairs. Multiplying by the kept
    pairs' share of the sum of all exponentials corrects this. Tensors as from `_attend` -> [B, H, R, D].
    """
    is_empty = log_sum_kept.isneginf()
    difference = log_sum_kept.masked_fill(is_empty, 0.0) - log_sum.masked_fill(is_empty, 0.0)
    share = difference.exp().masked_fill(is_empty, 0.0)
    return (kept * (share / (1 - dropout))[..., None]).to(kept.dtype)


def _score_mod(
    padding: torch.Tensor | None, seed: torch.Tensor | None = None, dropped_levels: int = 0
) -> Callable[..., torch.Tensor] | None:
    """Return a function that hides padding keys [B, n] and dropped pairs (see `keep_mask`), or None."""
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
    """Return whether dropout keeps the weight of a pair of tokens: integers that broadcast -> bool.

    A pair draws one of `DROPOUT_LEVELS` numbers, and the lowest `dropped_levels` are dropped. Most of the
    work depends only on the query or only on the key, and is done once for each row and column of a tile.
    """
    row = _mix(_mix(_mix(seed ^ batch) ^ head) ^ query)
    return _mix(row ^ _mix(key)) >= dropped_levels


def _mix(numbers: torch.Tensor) -> torch.Tensor:
    """A bijection of the integers below 2³² that spreads each bit (hash-prospector, C. Wellons, 2018)."""
    # Nothing overflows in 64 bits, whatever the width of the kernel's indices.
    numbers = numbers.to(torch.int64)
    for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        numbers = ((numbers ^ (numbers >> shift)) * multiplier) & (DROPOUT_LEVELS - 1)
    return numbers ^ (numbers >> 15)


def _block_mask(
    pattern: SparsePattern, length: int, rows: int, device: torch.device
) -> tuple[BlockMask, int]:
    """Return the mask without the first `rows` query blocks, and the number of tokens in these."""
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
    """Return the arguments of a `BlockMask`, shared by all lengths with as many blocks and tiles.

    The lists of key tiles are as wide as the longest of them; `BlockMask.from_kv_blocks` would make them U
    wide. The lists of query tiles, for the backward pass, are T wide if there are global blocks, which all
    see.
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
    """Mark the blocks of each tile's tokens: blocks of tokens int64 [n] -> [ceil(n / TILE), N], 0 or 1.

    Blocks from N on are ignored. The result is float64, which automatic mixed precision does not change.
    """
    tile = torch.arange(len(blocks), device=blocks.device) // TILE
    overlap = torch.zeros(-(-len(blocks) // TILE), num_blocks + 1, dtype=torch.float64, device=blocks.device)
    overlap[tile, blocks.clamp(max=num_blocks)] = 1.0
    return overlap[:, :num_blocks]


def _lists(tiles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Count and list the True tiles per row: bool [H, T, U] -> int32 [1, H, T] and [1, H, T, most]."""
    counts = tiles.sum(-1, dtype=torch.int32)
    most = max(int(counts.max()), 1)
    indices = tiles.byte().argsort(dim=-1, descending=True, stable=True)[..., :most]
    return counts[None], indices.int().contiguous()[None]


def _mask_mod(
    visible: torch.Tensor, query_block: torch.Tensor, key_block: torch.Tensor, is_causal: bool
) -> Callable[..., torch.Tensor]:
    """Return a function that tells whether a token sees another: whether its block sees the other's block.

    `visible` is bool [H, query blocks, key blocks]; `query_block` and `key_block` are the blocks of tokens,
    int64 [n or more].
    """
    last_row, last_column = visible.shape[1] - 1, visible.shape[2] - 1
    query_block, key_block = query_block.clamp(max=last_row).int(), key_block.clamp(max=last_column).int()

    def mask_mod(
        batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> torch.Tensor:
        sees = visible[head, query_block[query], key_block[key]]
        return sees & (key <= query) if is_causal else sees

    return mask_mod
