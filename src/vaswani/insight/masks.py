"""Plots of attention masks: which tokens each token attends to, read from a model's attention weights.

B batch · T queries · S keys
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from vaswani.errors import UserError
from vaswani.insight.figures import add_colour_legend, draw_kinds, new_figure
from vaswani.insight.themes import BLUE, ORANGE, PURPLE, SKY_BLUE, Theme
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.modeling_vaswani import VaswaniModel
from vaswani.model.sparse_pattern import SparsePattern

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

MAX_ROWS = 4
LONGEST = 64  # tokens
LONGEST_WITH_LABELS = 12
PANEL_SIZE = 3.2  # inches, width and height
LEGEND_HEIGHT = 0.3  # inches, in addition to the space that the panels leave


class Cell(IntEnum):
    """Whether a query attends to a key, or why not."""

    SEEN = 0
    SEEN_BY_PADDING = 1
    PADDING = 2
    LATER = 3
    OUTSIDE = 4


LABELS = {
    Cell.SEEN: "0: attended to",
    Cell.SEEN_BY_PADDING: "0: by padding, whose output is not used",
    Cell.PADDING: "−∞: the key is padding",
    Cell.LATER: "−∞: the key comes later",
    Cell.OUTSIDE: "−∞: not in the sparse pattern",
}
# Colours of labels in cells; other cells use the theme's foreground.
INKS = {Cell.SEEN: "white", **dict.fromkeys((Cell.SEEN_BY_PADDING, Cell.PADDING, Cell.OUTSIDE), "black")}
TITLES = {
    "encoder": "encoder: padding",
    "decoder": "decoder: causal and padding",
    "cross": "cross-attention",
    "sparse": "sparse encoder",
}


def colours_of_cells(theme: Theme) -> list[str]:
    """Return the colour of each `Cell`."""
    return [BLUE, SKY_BLUE, ORANGE, theme.faint, PURPLE]


def attention_masks(
    source_lengths: Sequence[int], target_lengths: Sequence[int], pattern: SparsePattern
) -> dict[str, torch.Tensor]:
    """Return the masks of a batch, padded on the right: a `Cell` for each query and key, int8 [B, T, S].

    The masks are read from the attention weights of small models, so that they show what the models do: the
    weight of a hidden key is 0.

    Args:
        source_lengths: number of tokens of each source.
        target_lengths: number of tokens of each target; as many as sources.
        pattern: pattern of the sparse encoder.

    Returns:
        Masks, with the keys of `TITLES`.

    Raises:
        UserError: a length is not from 1 to `LONGEST`, or there are too many rows or too few targets.
    """
    _check(source_lengths, target_lengths)
    source, target = _padding_mask(source_lengths), _padding_mask(target_lengths)
    full = _weights(source, target, encoder_attention="full")
    sparse = _weights(
        source,
        target,
        encoder_attention="sparse",
        sparse_block_size=pattern.block_size,
        sparse_window_blocks=pattern.window_blocks,
        sparse_global_blocks=pattern.global_blocks,
        sparse_random_blocks=pattern.random_blocks,
        sparse_seed=pattern.seed,
    )
    later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    return {
        "encoder": _cells(full["encoder"], source, source),
        "decoder": _cells(full["decoder"], target, target, later, Cell.LATER),
        "cross": _cells(full["cross"], target, source),
        "sparse": _cells(sparse["encoder"], source, source, ~sparse["encoder"], Cell.OUTSIDE),
    }


def _check(source_lengths: Sequence[int], target_lengths: Sequence[int]) -> None:
    for name, lengths in (("source_lengths", source_lengths), ("target_lengths", target_lengths)):
        for length in lengths:
            if not 1 <= length <= LONGEST:
                raise UserError(f"{name}={length} must be at least 1 and at most {LONGEST}, to be drawn")
    if not 1 <= len(source_lengths) == len(target_lengths) <= MAX_ROWS:
        raise UserError(
            f"{len(source_lengths)} source lengths and {len(target_lengths)} target lengths are given; give "
            f"as many of each, at most {MAX_ROWS}"
        )


def _padding_mask(lengths: Sequence[int]) -> torch.Tensor:
    """Return whether each token is real, bool [B, T]."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _weights(source: torch.Tensor, target: torch.Tensor, **config: object) -> dict[str, torch.Tensor]:
    """Return where the weights of a model with one head and one layer are above 0, bool [B, T, S]."""
    sizes = {
        f"{stack}_{name}": size
        for stack in ("encoder", "decoder")
        for name, size in (("layers", 1), ("attention_heads", 1), ("ffn_dim", 4))
    }
    model = VaswaniModel(VaswaniConfig(vocab_size=4, d_model=4, **sizes, **config)).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        outputs = model(
            input_ids=torch.ones_like(source, dtype=torch.long),
            attention_mask=source.long(),
            decoder_input_ids=torch.ones_like(target, dtype=torch.long),
            decoder_attention_mask=target.long(),
            output_attentions=True,
        )
    weights = {
        "encoder": outputs.encoder_attentions,
        "decoder": outputs.decoder_attentions,
        "cross": outputs.cross_attentions,
    }
    return {name: of_layers[0][:, 0] > 0 for name, of_layers in weights.items()}


def _cells(
    seen: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    hidden: torch.Tensor | None = None,
    reason: Cell = Cell.PADDING,
) -> torch.Tensor:
    """Return the cells of a mask.

    Args:
        seen: bool [B, T, S].
        queries: which queries are not padding, bool [B, T].
        keys: which keys are not padding, bool [B, S].
        hidden: pairs that are hidden for a reason other than padding, bool [T, S] or [B, T, S].
        reason: the cell of these pairs.
    """
    cells = torch.full(seen.shape, Cell.PADDING, dtype=torch.int8)
    if hidden is not None:
        cells[hidden.expand_as(seen)] = reason
    cells[(~keys)[:, None].expand_as(seen)] = Cell.PADDING
    cells[seen] = Cell.SEEN
    cells[seen & ~queries[..., None]] = Cell.SEEN_BY_PADDING
    return cells


def draw_masks(masks: dict[str, torch.Tensor], *, dark: bool = False) -> ThemedFigure:
    """Plot the masks of `attention_masks`, one row per row of the batch; label the cells of short masks."""
    num_rows = len(next(iter(masks.values())))
    size = (PANEL_SIZE * len(masks), PANEL_SIZE * num_rows + LEGEND_HEIGHT)
    with new_figure(size, dark=dark, layout="compressed") as figure:
        colours = colours_of_cells(figure.theme)
        panels = figure.subplots(num_rows, len(masks), squeeze=False)
        for row, of_row in enumerate(panels):
            for panel, (name, mask) in zip(of_row, masks.items(), strict=True):
                _draw_mask(panel, mask[row], colours)
                if row == 0:
                    panel.set_title(TITLES[name], fontsize="medium")
                if row == num_rows - 1:
                    panel.set_xlabel("key")
            of_row[0].set_ylabel(f"row {row}\nquery" if num_rows > 1 else "query")
        found = sorted({Cell(cell) for mask in masks.values() for cell in mask.unique().tolist()})
        legend = {LABELS[cell]: colours[cell] for cell in found}
        add_colour_legend(figure, legend, loc="outside lower center", ncols=3)
    return figure


def _draw_mask(panel: Axes, cells: torch.Tensor, colours: list[str]) -> None:
    """Plot the cells [T, S] of a row."""
    draw_kinds(panel, cells, colours)
    num_queries, num_keys = cells.shape
    if max(cells.shape) > LONGEST_WITH_LABELS:
        return
    for query in range(num_queries):
        for key in range(num_keys):
            cell = Cell(int(cells[query, key]))
            label = LABELS[cell].partition(":")[0]  # 0 or −∞
            panel.text(key, query, label, ha="center", va="center", fontsize="small", color=INKS.get(cell))
