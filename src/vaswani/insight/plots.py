"""Pictures of what attends to what.

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
    DIAGONAL = 4  # of a causal pattern: the block itself, of which each token sees what is not after it


LABELS = {
    Reason.UNSEEN: "not seen",
    Reason.GLOBAL: "global",
    Reason.WINDOW: "window",
    Reason.RANDOM: "random",
    Reason.DIAGONAL: "causal diagonal:\nup to each token",
}
COLOURS = {  # of Okabe and Ito, which colour-blind people can tell apart
    Reason.UNSEEN: "#f4f4f4",
    Reason.GLOBAL: "#e69f00",
    Reason.WINDOW: "#0072b2",
    Reason.RANDOM: "#009e73",
    Reason.DIAGONAL: "#56b4e9",
}


def block_reasons(pattern: SparsePattern, num_blocks: int) -> torch.Tensor:
    """Why each query block sees each key block; `UNSEEN` exactly where `pattern.block_mask` is False.

    Returns:
        int8 [H, N, N] of `Reason`. A block that several name has the first of global, window and random; the
        diagonal of a causal pattern is `DIAGONAL`, whatever names it.
    """
    pattern = pattern.in_blocks().within(num_blocks)
    full_rows = pattern.num_global_rows(num_blocks)
    blocks = pattern.key_blocks(num_blocks)  # [H, N − full_rows, g + w + r]
    counts = torch.tensor([pattern.global_blocks, pattern.window_blocks, pattern.random_blocks])
    columns = torch.tensor([Reason.GLOBAL, Reason.WINDOW, Reason.RANDOM], dtype=torch.int8)
    columns = columns.repeat_interleave(counts).expand(blocks.shape)
    # One key block more than there are takes what the table leaves empty.
    reasons = torch.full((pattern.num_heads, num_blocks, num_blocks + 1), Reason.UNSEEN, dtype=torch.int8)
    reasons[:, :full_rows] = Reason.GLOBAL
    reasons[:, full_rows:].scatter_(2, torch.where(blocks < 0, num_blocks, blocks), columns)
    reasons = reasons[..., :num_blocks]
    if pattern.causal:
        reasons.diagonal(dim1=1, dim2=2).fill_(Reason.DIAGONAL)
    return reasons


def density(pattern: SparsePattern, num_blocks: int) -> float:
    """The share of all H · N² pairs of blocks in which the query block sees the key block or a part of it."""
    return pattern.block_mask(num_blocks).double().mean().item()


def draw_sparse_pattern(pattern: SparsePattern, num_blocks: int) -> Figure:
    """A panel for each head: query blocks down, key blocks across, each pair in the colour of its `Reason`.

    Raises:
        UserError: matplotlib is missing; more blocks or heads than a picture can show, or no block.
    """
    _check_drawable(pattern, num_blocks)
    columns = min(pattern.num_heads, PANELS_IN_A_ROW)
    rows = -(-pattern.num_heads // columns)
    figure = new_figure(
        figsize=(columns * PANEL_SIZE + LEGEND_WIDTH, rows * PANEL_SIZE + TITLE_HEIGHT),
        dpi=max(150, 3 * num_blocks / PANEL_SIZE),  # at least two pixels a block, or some would be lost
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
            f"a picture shows 1 to {MAX_DRAWN_BLOCKS} blocks, not {num_blocks}; change the length or the "
            f"block size ({MAX_DRAWN_BLOCKS} blocks of {pattern.block_size} are "
            f"{MAX_DRAWN_BLOCKS * pattern.block_size} tokens)"
        )
    if pattern.num_heads > MAX_DRAWN_HEADS:
        raise UserError(
            f"a picture shows at most {MAX_DRAWN_HEADS} heads, not {pattern.num_heads}; draw the first few, "
            "which do not depend on how many there are"
        )


def _draw_panel(panel: Axes, reasons: torch.Tensor) -> None:
    """One head's [N, N] blocks."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([COLOURS[reason] for reason in Reason])
    panel.imshow(
        reasons.numpy(),
        cmap=colours,
        vmin=-0.5,
        vmax=len(Reason) - 0.5,
        interpolation="none",
        zorder=3,  # above the frame, which would hide half of the outermost blocks
    )
    panel.locator_params(integer=True, min_n_ticks=1)  # there is no block 2.5


def _title(pattern: SparsePattern, num_blocks: int) -> str:
    return (
        f"sparse pattern{', causal' * pattern.causal}: density {100 * density(pattern, num_blocks):.1f} %\n"
        f"block size {pattern.block_size}, window {pattern.window_blocks}, global {pattern.global_blocks}, "
        f"random {pattern.random_blocks}, seed {pattern.seed}, layer {pattern.layer}"
    )


def _add_legend(figure: Figure, reasons: torch.Tensor) -> None:
    """Name the colours that are there."""
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
    """Draw a pattern, as `draw_sparse_pattern` does, into a file whose suffix is its format.

    Raises:
        UserError: what cannot be drawn; the suffix is none of `FORMATS`; the file cannot be written.
    """
    suffix = output.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise UserError(
            f"cannot draw {output}: its suffix is {output.suffix or 'missing'}; use one of {known}"
        )
    picture = io.BytesIO()  # drawn in full before the file is touched
    draw_sparse_pattern(pattern, num_blocks).savefig(picture, format=suffix)
    try:
        output.write_bytes(picture.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error
