"""Plots of sparse attention patterns.

H heads · N blocks
"""

from __future__ import annotations

import io
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vaswani.errors import UserError
from vaswani.insight.figures import new_figure
from vaswani.model.sparse_pattern import SparsePattern

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("pdf", "png", "svg")
MAX_DRAWN_BLOCKS = 512
MAX_DRAWN_HEADS = 32
PANELS_IN_A_ROW = 4
PANEL_SIZE = 4.0  # inches, of either side
LEGEND_WIDTH = 2.0
TITLE_HEIGHT = 0.5


class Reason(IntEnum):
    """Why a query block sees a key block."""

    UNSEEN = 0
    GLOBAL = 1
    WINDOW = 2
    RANDOM = 3
    DIAGONAL = 4  # of a causal pattern: the block itself, in which each token sees the tokens up to it


LABELS = {
    Reason.UNSEEN: "not seen",
    Reason.GLOBAL: "global",
    Reason.WINDOW: "window",
    Reason.RANDOM: "random",
    Reason.DIAGONAL: "causal diagonal:\nup to each token",
}
COLOURS = {  # of Okabe and Ito, distinguishable with colour blindness
    Reason.UNSEEN: "#f4f4f4",
    Reason.GLOBAL: "#e69f00",
    Reason.WINDOW: "#0072b2",
    Reason.RANDOM: "#009e73",
    Reason.DIAGONAL: "#56b4e9",
}


def block_reasons(pattern: SparsePattern, num_blocks: int) -> torch.Tensor:
    """Return why each query block sees each key block; `UNSEEN` exactly where `pattern.block_mask` is False.

    Returns:
        int8 [H, N, N] of `Reason`. If there are several reasons, the first of global, window and random; on
        the diagonal of a causal pattern always `DIAGONAL`.
    """
    pattern = pattern.in_blocks().within(num_blocks)
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


def draw_sparse_pattern(pattern: SparsePattern, num_blocks: int) -> Figure:
    """Plot a panel for each head, query blocks down and key blocks across, coloured by `Reason`.

    Raises:
        UserError: matplotlib is missing, or the number of blocks or heads is out of range.
    """
    _check_drawable(pattern, num_blocks)
    columns = min(pattern.num_heads, PANELS_IN_A_ROW)
    rows = -(-pattern.num_heads // columns)
    figure = new_figure(
        figsize=(columns * PANEL_SIZE + LEGEND_WIDTH, rows * PANEL_SIZE + TITLE_HEIGHT),
        dpi=max(150, 3 * num_blocks / PANEL_SIZE),  # at least two pixels per block
        layout="compressed",  # made for square panels
    )
    reasons = block_reasons(pattern, num_blocks)
    for head in range(pattern.num_heads):
        panel = figure.add_subplot(rows, columns, head + 1)
        panel.set(title=f"head {head}", xlabel="key block", ylabel="query block")
        _draw_panel(panel, reasons[head])
    figure.suptitle(_title(pattern, num_blocks), fontsize="medium")
    _add_legend(figure, reasons)
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


def _draw_panel(panel: Axes, reasons: torch.Tensor) -> None:
    """Plot the blocks [N, N] of one head."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([COLOURS[reason] for reason in Reason])
    panel.imshow(
        reasons.numpy(),
        cmap=colours,
        vmin=-0.5,
        vmax=len(Reason) - 0.5,
        interpolation="none",
        zorder=3,  # above the frame, which hides half of the outermost blocks
    )
    panel.locator_params(integer=True, min_n_ticks=1)  # block numbers are integers


def _title(pattern: SparsePattern, num_blocks: int) -> str:
    return (
        f"sparse pattern{', causal' * pattern.causal}: density {100 * density(pattern, num_blocks):.1f} %\n"
        f"block size {pattern.block_size}, window {pattern.window_blocks}, global {pattern.global_blocks}, "
        f"random {pattern.random_blocks}, seed {pattern.seed}, layer {pattern.layer}"
    )


def _add_legend(figure: Figure, reasons: torch.Tensor) -> None:
    """Add a legend of the colours in the plot."""
    from matplotlib.patches import Patch

    figure.legend(
        handles=[
            Patch(facecolor=COLOURS[reason], edgecolor="black", linewidth=0.5, label=LABELS[reason])
            for reason in Reason
            if (reasons == reason).any()
        ],
        loc="outside right center",  # beside the panels, not the title
    )


def save_sparse_pattern(pattern: SparsePattern, num_blocks: int, output: Path) -> None:
    """Plot a pattern (see `draw_sparse_pattern`) into a file, whose suffix selects the format.

    Raises:
        UserError: the pattern cannot be plotted, the suffix is unknown, or the file cannot be written.
    """
    suffix = output.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise UserError(
            f"cannot draw {output}: its suffix is {output.suffix or 'missing'}; use one of {known}"
        )
    picture = io.BytesIO()  # complete before the file is touched
    draw_sparse_pattern(pattern, num_blocks).savefig(picture, format=suffix)
    try:
        output.write_bytes(picture.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
