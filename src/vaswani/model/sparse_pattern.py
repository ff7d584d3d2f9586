# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Block-sparse attention patterns: window, global and random blocks (BigBird, arXiv:2007.14062).

This is the definition that every kernel is tested against. With blocks of b tokens, window w, g global and r
random blocks, query block i sees key block j when one of these holds. A block that several
rules name counts once.

    bidirectional                              causal (a decoder)
    window: |i − j| ≤ (w − 1) / 2              0 ≤ i − j < w, and the diagonal block is triangular
    global: j < g or i < g                     j < g and j ≤ i
    random: j is one of r in R(i)              the same, among the blocks before i

R(i) are the r blocks with the smallest `block_hash(seed, layer, head, i, j)` among those that i does not see
otherwise, or all of these if they are fewer. They depend on nothing else: not on the device, the process, a
random state, training or evaluation, and (if causal) not on the length. In a padded batch, n counts the
tokens of each sequence up to its last visible one (`sparse_attention.blocks_of_sequences`).

Global tokens (ETC, arXiv:2004.08483) have blocks of their own: the first t tokens fill ceil(t / b) global
blocks, the last of which may have a gap, and the blocks of the other tokens begin after them.

n tokens · N = ceil(n / b) blocks · H heads
"""

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

Number = TypeVar("Number", int, torch.Tensor)

MAX_BLOCKS = 2**20
_CHUNK = 2**18  # hashes computed at a time, so that memory does not grow with the square of the length


def _signed(number: int) -> int:
    """Return the signed integer with the bits of an unsigned 64-bit integer, as torch needs it."""
    return number - 2**64 if number >= 2**63 else number


_MULTIPLIERS = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))  # of SplitMix64's finalizer
_STEP = _signed(0x9E3779B97F4A7C15)


def _mix(numbers: torch.Tensor) -> torch.Tensor:
    """SplitMix64 (Steele et al., 2014) of int64 numbers, which represent unsigned ones and wrap around."""
    numbers = numbers + _STEP
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        numbers = (numbers ^ _shift_right(numbers, shift)) * multiplier
    return numbers ^ _shift_right(numbers, 31)


def _shift_right(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift logically: zeros come in from the left, whatever the sign."""
    return (numbers >> bits) & (2 ** (64 - bits) - 1)


def block_hash(
    seed: int, layer: int, heads: torch.Tensor, query_blocks: torch.Tensor, key_blocks: torch.Tensor
) -> torch.Tensor:
    """Return 63 bits for each head, query block and key block (int64 tensors that broadcast).

    The lowest 20 bits are the key block, so that no two key blocks of a query block have equal hashes.
    """
    state = torch.full((), seed, dtype=torch.int64, device=key_blocks.device)
    for numbers in (torch.full_like(state, layer), heads, query_blocks, key_blocks):
        state = _mix(state ^ numbers)
    return _shift_right(state, 1) & -MAX_BLOCKS | key_blocks


@dataclass(frozen=True)
class SparsePattern:
    """The pattern of one layer.

    Args:
        num_heads: H. Each head has random blocks of its own.
        block_size: b, in tokens.
        window_blocks: w, including the query's own block; odd unless causal.
        global_blocks: g, from the start of the sequence.
        random_blocks: r, for each query block.
        seed, layer: select the random blocks.
        global_tokens: t, the number of global tokens at the start, instead of global blocks.
        causal: whether a token sees only itself and earlier ones.
        first_head: index of the first head, if the pattern has only some heads of the layer.

    Raises:
        ValueError: a number is out of range; the message names it.
    """

    num_heads: int
    block_size: int = 64
    window_blocks: int = 3
    global_blocks: int = 2
    random_blocks: int = 3
    seed: int = 0
    layer: int = 0
    global_tokens: int = 0
    causal: bool = False
    first_head: int = 0

    def __post_init__(self) -> None:
        at_least = dict.fromkeys(("num_heads", "block_size", "window_blocks"), 1)
        at_least |= dict.fromkeys(
            ("global_blocks", "random_blocks", "layer", "global_tokens", "first_head"), 0
        )
        for name, least in at_least.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}.")
        if self.global_tokens and self.global_blocks:
            raise ValueError(
                f"global_tokens={self.global_tokens} and global_blocks={self.global_blocks} exclude each "
                "other; set one of them to 0."
            )
        if not self.causal and self.window_blocks % 2 == 0:
            raise ValueError(
                f"window_blocks={self.window_blocks} must be odd, with as many blocks on either side; "
                f"try {self.window_blocks + 1}."
            )
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must fit into 64 bits.")

    @classmethod
    def from_config(cls, config: Any, num_heads: int, layer: int, causal: bool) -> "SparsePattern":
        """Return the pattern of a layer, from the fields `sparse_...` of a configuration."""
        return cls(
            num_heads=num_heads,
            block_size=config.sparse_block_size,
            window_blocks=config.sparse_window_blocks,
            global_blocks=config.sparse_global_blocks,
            random_blocks=config.sparse_random_blocks,
            seed=config.sparse_seed,
            layer=layer,
            global_tokens=getattr(config, "sparse_global_tokens", 0),
            causal=causal,
        )

    @property
    def gap(self) -> int:
        """The number of empty places in the last block of global tokens."""
        return -self.global_tokens % self.block_size

    def in_blocks(self) -> "SparsePattern":
        """Return the pattern with global blocks instead of global tokens, as if the gap were filled."""
        if not self.global_tokens:
            return self
        return replace(self, global_blocks=-(-self.global_tokens // self.block_size), global_tokens=0)

    def limited_to(self, num_blocks: int) -> "SparsePattern":
        """Return the pattern without the global, window and random blocks that N blocks cannot fill."""
        window = max(1, num_blocks if self.causal else 2 * num_blocks - 1)
        return replace(
            self,
            global_blocks=min(self.global_blocks, num_blocks),
            window_blocks=min(self.window_blocks, window),
            random_blocks=min(self.random_blocks, num_blocks),
        )

    def places(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the places of tokens in the sequence with the gap: int64 of any shape -> the same shape."""
        return tokens + self.gap * (tokens >= self.global_tokens)

    def tokens(self, places: torch.Tensor) -> torch.Tensor:
        """Return the tokens at some places, −1 in the gap: int64 of any shape -> the same shape."""
        is_after = places >= self.global_tokens + self.gap
        return torch.where(is_after | (places < self.global_tokens), places - self.gap * is_after, -1)

    def num_blocks(self, length: int) -> int:
        """Return N, the number of blocks; the last may be partly filled.

        Raises:
            ValueError: the length has more blocks than the hash can distinguish.
        """
        blocks = self._blocks(length)
        if blocks > MAX_BLOCKS:
            raise ValueError(
                f"length={length} makes {blocks} blocks of {self.block_size}, more than {MAX_BLOCKS}; "
                "raise block_size."
            )
        return blocks

    def num_blocks_of(self, lengths: torch.Tensor) -> torch.Tensor:
        """`num_blocks` of a tensor of lengths, without its check: int64 of any shape -> the same shape."""
        return self._blocks(lengths)

    def _blocks(self, length: Number) -> Number:
        return (length + self.gap * (length > self.global_tokens) + self.block_size - 1) // self.block_size

    def length(self, num_blocks: int) -> int:
        """Return the largest number of tokens in `num_blocks` blocks."""
        places = num_blocks * self.block_size
        return places - min(max(places - self.global_tokens, 0), self.gap)

    def num_global_rows(self, num_blocks: int) -> int:
        """The number of query blocks, from the start, that see every block."""
        return 0 if self.causal else min(self.in_blocks().global_blocks, num_blocks)

    def varies_with_length(self, num_blocks: int) -> bool:
        """Return whether random blocks depend on N: some query block has more candidates than are drawn."""
        fixed = self.in_blocks().global_blocks + self.window_blocks // 2 + 1  # of the last query block
        return not self.causal and 0 < self.random_blocks < num_blocks - fixed

    def key_blocks(self, num_blocks: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the key blocks that each query block sees, without the query blocks that see everything.

        Returns:
            int64 [H, N − `num_global_rows`, g + w + r], with g, w and r of `limited_to(N)`: for each query
            block its global blocks, then its window, then its random blocks in ascending order; −1 for none.
        """
        fitted = self.in_blocks().limited_to(num_blocks)
        query = torch.arange(self.num_global_rows(num_blocks), num_blocks, device=device)
        rows_at_a_time = max(1, _CHUNK // (self.num_heads * max(1, num_blocks)))
        parts = [fitted._of_queries(rows, num_blocks) for rows in query.split(rows_at_a_time)]
        return torch.cat(parts, dim=1)

    def _of_queries(self, query: torch.Tensor, num_blocks: int) -> torch.Tensor:
        """Return the key blocks of some query blocks [R] of a pattern limited to N: [H, R, g + w + r]."""
        fixed = self._fixed_key_blocks(query, num_blocks)
        key = torch.arange(num_blocks, device=query.device)
        head = self.first_head + torch.arange(self.num_heads, device=query.device)
        hashes = block_hash(self.seed, self.layer, head[:, None, None], query[:, None], key)
        taken = torch.zeros(len(query), num_blocks + 1, dtype=torch.bool, device=query.device)
        taken = taken.scatter(1, torch.where(fixed < 0, num_blocks, fixed), True)[:, :num_blocks]
        if self.causal:
            taken = taken | (key >= query[:, None])
        none = torch.iinfo(torch.int64).max
        smallest = hashes.masked_fill(taken, none).topk(self.random_blocks, dim=-1, largest=False).values
        drawn = torch.where(smallest == none, num_blocks, smallest & (MAX_BLOCKS - 1)).sort(dim=-1).values
        drawn = drawn.masked_fill(drawn == num_blocks, -1)
        return torch.cat([fixed.expand(self.num_heads, -1, -1), drawn], dim=-1)

    def _fixed_key_blocks(self, query: torch.Tensor, num_blocks: int) -> torch.Tensor:
        """Return the global and window blocks of some query blocks [R]: [R, g + w], −1 for none."""
        from_global = torch.arange(self.global_blocks, device=query.device).expand(len(query), -1)
        back = self.window_blocks - 1 if self.causal else self.window_blocks // 2
        window = query[:, None] + torch.arange(-back, self.window_blocks - back, device=query.device)
        is_global = window < self.global_blocks  # already counted
        blocks = torch.cat([from_global, window.masked_fill(is_global, -1)], dim=1)
        last = query[:, None] if self.causal else num_blocks - 1
        return blocks.masked_fill((blocks > last) | (blocks < 0), -1)

    def block_mask(self, num_blocks: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return which query blocks see which key blocks: bool [H, N, N]."""
        rows = self.num_global_rows(num_blocks)
        mask = torch.ones(self.num_heads, num_blocks, num_blocks + 1, dtype=torch.bool, device=device)
        mask[:, rows:] = False
        blocks = self.key_blocks(num_blocks, device)
        mask[:, rows:].scatter_(2, torch.where(blocks < 0, num_blocks, blocks), True)
        return mask[..., :num_blocks]

    def to_dense(self, length: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the reference mask: bool [H, n, n], whether token i may attend to token j."""
        mask = self.block_mask(self.num_blocks(length), device)
        block = self.places(torch.arange(length, device=device)) // self.block_size
        mask = mask[:, :, block][:, block]  # this order copies whole rows
        return mask.tril() if self.causal else mask
