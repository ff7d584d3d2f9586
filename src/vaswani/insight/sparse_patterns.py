"""Plots of sparse attention patterns.

H heads · N blocks
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from vaswani.errors import UserError
from vaswani.insight.figures import add_colour_legend, draw_kinds, new_figure
from vaswani.insight.themes import BLUE, GREEN, ORANGE, SKY_BLUE, Theme
from vaswani.model.sparse_pattern import SparsePattern

if TYPE_CHECKING:
    from vaswani.insight.themed_figure import ThemedFigure

MAX_DRAWN_BLOCKS = 512
MAX_DRAWN_HEADS = 32
PANELS_IN_A_ROW = 4
PANEL_SIZE = 4.0  # inches, width and height
LEGEND_WIDTH = 2.0
TITLE_HEIGHT = 0.5


class Reason(IntEnum):
    """Why a query block sees a key block."""

    UNSEEN = 0
    GLOBAL = 1
    WINDOW = 2
    RANDOM = 3
    DIAGONAL = 4  # causal patterns: the block itself, in which a token sees itself and earlier tokens


LABELS = {
    Reason.UNSEEN: "not seen",
    Reason.GLOBAL: "global",
    Reason.WINDOW: "window",
    Reason.RANDOM: "random",
    Reason.DIAGONAL: "causal diagonal:\nup to each token",
}
COLOURS = {
    Reason.GLOBAL: ORANGE,
    Reason.WINDOW: BLUE,
    Reason.RANDOM: GREEN,
    Reason.DIAGONAL: SKY_BLUE,
}


def colours_of_reasons(theme: Theme) -> list[str]:
    """Return the colour of each `Reason`."""
    return [COLOURS.get(reason, theme.faint) for reason in Reason]


def block_reasons(pattern: SparsePattern, num_blocks: int) -> torch.Tensor:
    """Return why each query block sees each key block; `UNSEEN` exactly where `pattern.block_mask` is False.

    Returns:
        int8 [H, N, N] of `Reason`: with several reasons, the first of global, window and random; always
        `DIAGONAL` on the diagonal of a causal pattern.
    """
    pattern = pattern.in_blocks().limited_to(num_blocks)
    full_rows = pattern.num_global_rows(num_blocks)
    blocks = pattern.key_blocks(num_blocks)  # [H, N − full_rows, g + w + r]
    counts = torch.tensor([pattern.global_blocks, pattern.window_blocks, pattern.random_blocks])
    columns = torch.tensor([Reason.GLOBAL, Reason.WINDOW, Reason.RANDOM], dtype=torch.int8)
    columns = columns.repeat_interleave(counts).expand(blocks.shape)
    # An extra key block absorbs the empty entries of the table.
    reasons = torch.full((pattern.num_heads, num_blocks, num_blocks + 1), Reason.UNSEEN, dtype=torch.int8)
    reasons[:, :full_rows] = Reason.GLOBAL
    reasons[:, full_rows:].scatter_(2, torch.where(blocks < 0, num_blocks, blocks), columns)
    reasons = reasons[..., :num_blocks]
    if pattern.causal:
        reasons.diagonal(dim1=1, dim2=2).fill_(Reason.DIAGONAL)
    return reasons


def density(pattern: SparsePattern, num_blocks: int) -> float:
    """Return the share of the H · N² pairs of blocks in which the query block sees the key block."""
    return pattern.block_mask(num_blocks).double().mean().item()


def draw_sparse_pattern(pattern: SparsePattern, num_blocks: int, *, dark: bool = False) -> ThemedFigure:
    """Plot a panel for each head: query blocks down, key blocks across, coloured by `Reason`.

    Raises:
        UserError: matplotlib is missing, or the number of blocks or heads is out of range.
    """
    _check_drawable(pattern, num_blocks)
    columns = min(pattern.num_heads, PANELS_IN_A_ROW)
    rows = -(-pattern.num_heads // columns)
    reasons = block_reasons(pattern, num_blocks)
    with new_figure(
        (columns * PANEL_SIZE + LEGEND_WIDTH, rows * PANEL_SIZE + TITLE_HEIGHT),
        dark=dark,
        dpi=max(150, 3 * num_blocks / PANEL_SIZE),  # at least two pixels per block
        layout="compressed",  # made for square panels
    ) as figure:
        colours = colours_of_reasons(figure.theme)
        for head in range(pattern.num_heads):
            panel = figure.add_subplot(rows, columns, head + 1)
            panel.set(title=f"head {head}", xlabel="key block", ylabel="query block")
            draw_kinds(panel, reasons[head], colours, zorder=3)  # the frame would hide half of outer blocks
        figure.suptitle(_title(pattern, num_blocks), fontsize="medium")
        legend = {LABELS[reason]: colours[reason] for reason in Reason if (reasons == reason).any()}
        add_colour_legend(figure, legend, loc="outside right center")  # beside the panels, not the title
    return figure


def _check_drawable(pattern: SparsePattern, num_blocks: int) -> None:
    if not 1 <= num_blocks <= MAX_DRAWN_BLOCKS:
        raise UserError(
            f"a plot shows 1 to {MAX_DRAWN_BLOCKS} blocks, not {num_blocks}; change the length or the "
            f"block size ({MAX_DRAWN_BLOCKS} blocks of {pattern.block_size} are "
            f"{MAX_DRAWN_BLOCKS * pattern.block_size} tokens)"
        )
    if pattern.num_heads > MAX_DRAWN_HEADS:
        raise UserError(
            f"a plot shows at most {MAX_DRAWN_HEADS} heads, not {pattern.num_heads}; plot the first few, "
            "which do not depend on the number of heads"
        )


def _title(pattern: SparsePattern, num_blocks: int) -> str:
    return (
        f"sparse pattern{', causal' * pattern.causal}: density {100 * density(pattern, num_blocks):.1f} %\n"
        f"block size {pattern.block_size}, window {pattern.window_blocks}, global {pattern.global_blocks}, "
        f"random {pattern.random_blocks}, seed {pattern.seed}, layer {pattern.layer}"
    )
