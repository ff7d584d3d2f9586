"""Show the sparse patterns of a model's layers for the length of a text."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from vaswani.demo.html_parts import paragraph, part, pictures
from vaswani.insight.sparse_patterns import MAX_DRAWN_BLOCKS, PANELS_IN_A_ROW, density, draw_sparse_pattern
from vaswani.model.sparse_pattern import SparsePattern

MIN_BLOCKS = 16  # with fewer blocks, no pattern is visible


def sparse_patterns(model: Any) -> dict[str, SparsePattern]:
    """Return the patterns of a model's modules with sparse attention, by the names of the modules."""
    if model is None:
        return {}
    of_modules = {name: getattr(module, "pattern", None) for name, module in model.named_modules()}
    return {name: pattern for name, pattern in of_modules.items() if isinstance(pattern, SparsePattern)}


def show_pattern(pattern: SparsePattern, tokens: int) -> str:
    """Return a picture of a pattern as HTML, for a text of `tokens` tokens or more.

    Raises:
        UserError: matplotlib is not installed.
    """
    blocks = pattern.num_blocks(tokens)
    drawn = min(max(blocks, MIN_BLOCKS), MAX_DRAWN_BLOCKS)
    few = replace(pattern, num_heads=min(pattern.num_heads, PANELS_IN_A_ROW))
    share = f"{100 * density(few, drawn):.1f} % of the pairs of blocks"
    told = f"{tokens:,} tokens fill {blocks:,} of the blocks of {pattern.block_size} tokens"
    if drawn != blocks:
        told += f"; the picture shows {drawn} blocks"
    alternative = (
        f"Sparse pattern of {few.num_heads} heads over {drawn} blocks: each block attends to a window of "
        f"{pattern.window_blocks} blocks, to {few.in_blocks().global_blocks} global and "
        f"{pattern.random_blocks} random ones, {share}."
    )
    light, dark = (_drawn(few, drawn, dark=dark) for dark in (False, True))
    return part(paragraph(f"{told}."), pictures(light, dark, alternative))


def _drawn(pattern: SparsePattern, blocks: int, dark: bool) -> str:
    """Return a picture of a pattern as a data URL."""
    picture = draw_sparse_pattern(pattern, blocks, dark=dark).to_bytes("png")
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
