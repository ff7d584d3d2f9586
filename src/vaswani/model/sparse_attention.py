# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Sparse attention: softmax(QKᵀ / sqrt(Dk)) V over the pairs of tokens that a `SparsePattern` makes visible.

The definition is softmax attention under the pattern's dense mask (`dense_mask`). `attend_by_pattern`
computes the same in time and memory linear in the length: it gathers the keys that each query block sees.

B batch · H heads · n tokens, in N blocks of b · Dk width of queries and keys · Dv width of values
R groups of q query rows; the rows of a group see the same M keys, in up to M / b blocks
"""

from dataclasses import astuple
from functools import lru_cache

import torch
from torch import nn

from .kernel_slots import KernelSlot
from .sparse_pattern import SparsePattern

STEP = 64  # rows computed at a time when continuing a cache, because each row gathers its own keys


@KernelSlot
def attend_by_pattern(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """Compute self-attention under a pattern. Kernels can replace this function.

    In a padded batch, each sequence has the pattern of its own length, so that its random blocks are the
    same with any amount of padding (see `blocks_of_sequences`).

    Args:
        query, key: [B, H, n, Dk], of one floating dtype.
        value: [B, H, n, Dv], of the same dtype.
        pattern: which tokens see each other; its `num_heads` is H.
        padding_mask: bool [B, n], False for hidden keys; None shows all.
        scaling: factor of the scores.
        dropout: the probability of dropping a weight, less than 1. Draws from PyTorch's global random state.

    Returns:
        [B, H, n, Dv]. A row that sees nothing is zero, and so are its gradients.
    """
    (batch, heads, length, width), size = query.shape, pattern.block_size
    num_blocks, dtype = pattern.num_blocks(length), query.dtype
    # In half precision, a key's gradients, summed over the rows that see it, would lose digits.
    query, key, value = (each.to(torch.promote_types(dtype, torch.float32)) for each in (query, key, value))
    first = pattern.num_global_rows(num_blocks)  # earlier query blocks see everything
    place = torch.arange(num_blocks * size, device=query.device)
    places = pattern.places(torch.arange(length, device=query.device))
    query = query.new_zeros(batch, heads, num_blocks * size, width).index_copy(2, places, query)
    groups = query.view(batch, heads, num_blocks, size, width)[:, :, first:]
    rows = place.view(num_blocks, size)[first:]
    options = padding_mask, scaling, dropout
    own_blocks = blocks_of_sequences(pattern, length, padding_mask)
    blocks = visible_blocks(pattern_numbers(pattern), num_blocks, rows[:, 0] // size, own_blocks)
    output = _attend_to_blocks(groups, key, value, pattern, rows, blocks, *options).flatten(2, 3)
    if first:
        seen = query.new_ones(1, 1, dtype=torch.bool) if padding_mask is None else padding_mask
        seen = seen[:, None, None]
        if own_blocks is not None:
            seen = seen & (place[: first * size] // size < own_blocks[:, None])[:, None, :, None]
        of_global = _attend(query[:, :, : first * size], key, value, seen, scaling, dropout)
        output = torch.cat([of_global, output], dim=2)
    return output[:, :, places].to(dtype)


def blocks_of_sequences(
    pattern: SparsePattern, length: int, padding_mask: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the number of blocks of each sequence [B, n] up to its last visible token: int64 [B].

    None without padding, or if the number of blocks does not change the pattern (see
    `SparsePattern.varies_with_length`).
    """
    if padding_mask is None or not pattern.varies_with_length(pattern.num_blocks(length)):
        return None
    shown = padding_mask[:, :length].bool()
    return pattern.num_blocks_of(
        (shown * torch.arange(1, shown.shape[1] + 1, device=shown.device)).amax(dim=1)
    )


def sparse_attention_step(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    past_length: int | torch.Tensor,
    padding_mask: torch.Tensor | None = None,
    scaling: float | None = None,
) -> torch.Tensor:
    """Compute the last rows of causal sparse attention from a cache, reading only the visible keys.

    Args:
        query: [B, H, T, Dk], of the tokens `past_length` to `past_length` + T − 1.
        key, value: [B, H, S, Dk] and [B, H, S, Dv], S at least `past_length` + T; later keys are ignored.
        pattern: a causal pattern.
        past_length: an integer, or an int64 tensor [] for a cache of fixed size.
        padding_mask: [B, at least `past_length` + T], 0 or False for hidden keys.
        scaling: 1 / sqrt(Dk) by default.

    Returns:
        [B, H, T, Dv].
    """
    rows = pattern.places(past_length + torch.arange(query.shape[2], device=query.device))
    # A causal pattern does not depend on the length, so a table for up to twice as many tokens serves too.
    num_blocks = 1 << (pattern.num_blocks(key.shape[2]) - 1).bit_length()
    padding_mask = None if padding_mask is None else padding_mask.bool()
    outputs = []
    for part, row in zip(query.unsqueeze(3).split(STEP, 2), rows.unsqueeze(1).split(STEP), strict=True):
        blocks = visible_blocks(pattern_numbers(pattern), num_blocks, row[:, 0] // pattern.block_size, None)
        outputs.append(_attend_to_blocks(part, key, value, pattern, row, blocks, padding_mask, scaling))
    return torch.cat(outputs, dim=2).squeeze(3)


def _attend_to_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    rows: torch.Tensor,
    blocks: torch.Tensor,
    padding_mask: torch.Tensor | None,
    scaling: float | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """Compute attention of groups of rows: query [B, H, R, q, Dk] at places int64 [R, q] -> [B, H, R, q, Dv].

    `blocks`, int64 [B, H, R, M / b], are the blocks that the groups see; B is 1 if all sequences share them.
    """
    size, num_tokens = pattern.block_size, key.shape[2]
    places = (blocks[..., None] * size + torch.arange(size, device=rows.device)).flatten(3)  # [B, H, R, M]
    tokens = pattern.tokens(places)
    seen = ((tokens >= 0) & (tokens < num_tokens))[:, :, :, None]  # [B, H, R, q, M], or 1 for B and q
    tokens = tokens.clamp(0, num_tokens - 1)
    if pattern.causal:
        seen = seen & (places[:, :, :, None] <= rows[:, :, None])
    sequence: slice | torch.Tensor = slice(None)
    if len(tokens) == 1:
        tokens = tokens[0]
    else:
        sequence = torch.arange(len(tokens), device=rows.device)[:, None, None, None]
    if padding_mask is not None:
        seen = seen & padding_mask[sequence, tokens.clamp(max=padding_mask.shape[1] - 1)].unsqueeze(3)
    head = torch.arange(key.shape[1], device=rows.device)[:, None, None]
    keys, values = key[sequence, head, tokens], value[sequence, head, tokens]  # [B, H, R, M, Dk or Dv]
    # PyTorch's kernels take each group as a separate head.
    heads = query.flatten(1, 2), keys.flatten(1, 2), values.flatten(1, 2)
    output = _attend(*heads, seen.flatten(1, 2), scaling, dropout)
    return output.view(*query.shape[:-1], value.shape[-1])


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: torch.Tensor,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    """Compute dense attention under a bool mask. A row that sees nothing is zero."""
    is_empty = ~seen.any(-1, keepdim=True)  # PyTorch's kernels return different results for such a row
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen | is_empty, dropout_p=dropout, scale=scaling
    )
    return output.masked_fill(is_empty, 0.0)


def pattern_numbers(pattern: SparsePattern) -> list[int]:
    """Return a pattern as numbers for PyTorch's operators, with global tokens as global blocks."""
    return _numbers(pattern.in_blocks())


def _numbers(pattern: SparsePattern) -> list[int]:
    return [int(number) for number in astuple(pattern)]


def pattern_of(numbers: list[int]) -> SparsePattern:
    """Return the pattern of these numbers (see `pattern_numbers`)."""
    return SparsePattern(*numbers)  # type: ignore[arg-type]  # `causal` is 0 or 1


# Custom operators, because a compiler cannot trace the drawing of a pattern, nor a CUDA graph record it.
@torch.library.custom_op("vaswani::visible_blocks", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def visible_blocks(
    pattern: list[int], num_blocks: int, query_blocks: torch.Tensor, own_blocks: torch.Tensor | None
) -> torch.Tensor:
    """Return the key blocks that some query blocks see: int64 [B, H, R, L], with N for none.

    Args:
        pattern: see `pattern_numbers`.
        num_blocks: N.
        query_blocks: int64 [R], none of which sees all key blocks.
        own_blocks: the number of blocks of each sequence, int64 [B], for patterns of their own lengths; with
            None, B is 1.
    """
    drawn, device = pattern_of(pattern), query_blocks.device
    table = block_table(drawn, num_blocks, device)
    first = num_blocks - table.shape[1]
    if own_blocks is None:
        return table[None, :, query_blocks - first]
    tables = table.new_full((len(own_blocks), *table.shape), num_blocks)
    for number, own in enumerate(own_blocks.tolist()):
        if own > first:
            blocks = block_table(drawn, own, device)
            tables[number, :, : own - first, : blocks.shape[2]] = blocks.masked_fill(
                blocks == own, num_blocks
            )
    return tables[:, :, query_blocks - first]


@visible_blocks.register_fake
def _(
    pattern: list[int], num_blocks: int, query_blocks: torch.Tensor, own_blocks: torch.Tensor | None
) -> torch.Tensor:
    fitted = pattern_of(pattern).limited_to(num_blocks)
    most = fitted.global_blocks + fitted.window_blocks + fitted.random_blocks
    batch = 1 if own_blocks is None else own_blocks.shape[0]
    return query_blocks.new_empty(batch, fitted.num_heads, query_blocks.shape[0], most)


@torch.library.custom_op("vaswani::visible_pairs", mutates_args=(), tags=torch.Tag.cudagraph_unsafe)
def visible_pairs(pattern: list[int], num_tokens: int, own_blocks: torch.Tensor) -> torch.Tensor:
    """`SparsePattern.to_dense` of sequences that have `own_blocks` blocks, int64 [B]: bool [B, H, n, n]."""
    drawn, device = pattern_of(pattern), own_blocks.device
    shape = len(own_blocks), drawn.num_heads, num_tokens, num_tokens
    visible = torch.zeros(shape, dtype=torch.bool, device=device)
    for number, own in enumerate(own_blocks.tolist()):
        if length := min(num_tokens, drawn.length(own)):
            visible[number, :, :length, :length] = drawn.to_dense(length, device)
    return visible


@visible_pairs.register_fake
def _(pattern: list[int], num_tokens: int, own_blocks: torch.Tensor) -> torch.Tensor:
    shape = own_blocks.shape[0], pattern_of(pattern).num_heads, num_tokens, num_tokens
    return own_blocks.new_empty(shape, dtype=torch.bool)


@lru_cache(maxsize=1024)  # the sequences of a batch can have many lengths
def block_table(pattern: SparsePattern, num_blocks: int, device: torch.device) -> torch.Tensor:
    """Return `SparsePattern.key_blocks` with N instead of −1. Cached for each layer, length and device."""
    with torch.inference_mode(False):
        blocks = pattern.key_blocks(num_blocks, device=device)
        return torch.where(blocks < 0, num_blocks, blocks).contiguous()


def dense_mask(
    pattern: SparsePattern,
    num_rows: int,
    num_tokens: int,
    past_length: int | torch.Tensor = 0,
    padding_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Return the reference mask, True where a query sees a key: bool [B, H, T, S] (B is 1 without padding).

    Args:
        pattern: which tokens see each other.
        num_rows, past_length: the rows are the T tokens after `past_length`.
        num_tokens: S, at least `past_length` + T.
        padding_mask: [B, at most S], 0 or False for hidden keys; later keys are hidden too.
        device: of the mask.
    """
    rows = past_length + torch.arange(num_rows, device=device)
    own_blocks = blocks_of_sequences(pattern, num_tokens, padding_mask)
    if own_blocks is None:
        visible = pattern.to_dense(num_tokens, device)[None, :, rows]
    else:
        visible = visible_pairs(_numbers(pattern), num_tokens, own_blocks.to(device))[:, :, rows]
    if padding_mask is not None:
        shown = padding_mask.to(device=device, dtype=torch.bool)
        shown = nn.functional.pad(shown, (0, num_tokens - shown.shape[1]))
        visible = visible & shown[:, None, None]
    return visible
