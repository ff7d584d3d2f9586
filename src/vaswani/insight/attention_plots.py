"""Plots of attention: heatmaps, arcs between two columns of tokens, and all heads on one sheet.

Arcs lead from the queries to the keys; larger weights are more opaque, as in Vaswani et al. (2017,
arXiv:1706.03762, figures 3 to 5).

Q queries · K keys
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from vaswani.errors import UserError, listing
from vaswani.insight.attention import AttentionMap
from vaswani.insight.figures import new_figure
from vaswani.insight.themes import BLUE, SKY_BLUE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

MAX_LABELS = 100  # tokens on a side
MAX_PANELS = 400  # heads on a sheet
LONGEST_LABEL = 30  # letters
CELL = 0.28  # inches: side of a heatmap's cell, and distance of tokens in a column
LETTER = 0.085  # inches, on average
PANEL = 0.9  # inches: side of a head on a sheet
MIN_SIZE = 4.8, 3.0  # inches: width for the title, and height for the names of both axes
SIDES = {  # labels of the queries and keys of a map
    "encoder": ("source, attending", "source, attended to"),
    "decoder": ("target, attending", "target, attended to"),
    "cross": ("target, predicted", "source, attended to"),
}
NAMES = {
    "encoder": "Self-attention of the encoder",
    "decoder": "Self-attention of the decoder",
    "cross": "Cross-attention",
}


def draw_heatmap(
    attention: AttentionMap, layer: int = -1, head: int | None = None, *, dark: bool = False
) -> ThemedFigure:
    """Plot the weights of a head as a matrix: queries down, keys across.

    Args:
        attention: of tokens or words.
        layer: index from 0, or from -1 backward.
        head: index of the head, likewise; None means the mean of all heads.
        dark: draw on a dark background.

    Raises:
        UserError: there is no such layer or head, too many tokens, or matplotlib is missing.
    """
    weights = weights_of(attention, layer, head)
    queries, keys = _labels(attention)
    width = _width(queries) + len(keys) * CELL + 1.8  # includes the colour bar
    height = max(_width(keys) * 0.8, 0.8) + len(queries) * CELL + 1.3  # includes the title
    size = max(width, MIN_SIZE[0]), max(height, MIN_SIZE[1])
    with new_figure(size, dark=dark, texts=[*queries, *keys], layout="compressed") as figure:
        axes = figure.add_subplot()
        image = axes.imshow(weights.numpy(), cmap=figure.theme.sequential, vmin=0, interpolation="none")
        axes.set_yticks(range(len(queries)), queries)
        axes.set_xticks(range(len(keys)), keys)
        if _width(keys) > CELL:
            axes.tick_params(axis="x", labelrotation=50)
            for label in axes.get_xticklabels():
                label.set(ha="right", rotation_mode="anchor")
        axes.tick_params(length=0)
        of_queries, of_keys = SIDES[attention.kind]
        axes.set(ylabel=of_queries, xlabel=of_keys)
        figure.colorbar(image, label="weight", shrink=min(1.0, 3 / (len(queries) * CELL)), aspect=15)
        figure.suptitle(_title(attention, layer, head), fontsize="medium")
    return figure


def draw_arcs(
    attention: AttentionMap,
    layer: int = -1,
    head: int | None = None,
    *,
    token: str | None = None,
    dark: bool = False,
) -> ThemedFigure:
    """Plot the weights of a head as arcs from the queries on the left to the keys on the right.

    The largest weight is opaque.

    Args:
        attention, layer, head, dark: as in `draw_heatmap`.
        token: text of the only query with arcs; the keys that it attends to are shaded.

    Raises:
        UserError: as in `draw_heatmap`, or no query is this token.
    """
    weights = weights_of(attention, layer, head)
    queries, keys = _labels(attention)
    chosen = _queries_with_text(attention, token)
    opacity = weights / weights[chosen].max().clamp_min(torch.finfo(weights.dtype).tiny)
    rows = max(len(queries), len(keys))
    of_queries, of_keys = SIDES[attention.kind]
    left, right = _width([*queries, of_queries]), _width([*keys, of_keys])
    size = max(left + right + 2.6, MIN_SIZE[0]), rows * CELL + 1.2
    with new_figure(size, dark=dark, texts=[*queries, *keys]) as figure:
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.set(xlim=(-left - 0.15, 2 + right + 0.15), ylim=(rows - 0.2, -1.6))
        colour = SKY_BLUE if dark else BLUE
        _write_column(axes, queries, -0.08, "right", bold=chosen if token is not None else ())
        _write_column(axes, keys, 2.08, "left")
        if token is not None:
            _shade(axes, opacity[chosen].amax(dim=0), _width(keys), colour)
        _add_arcs(axes, opacity, chosen, colour)
        axes.text(-0.08, -1.1, of_queries, ha="right", va="center", fontsize="small", alpha=0.7)
        axes.text(2.08, -1.1, of_keys, ha="left", va="center", fontsize="small", alpha=0.7)
        figure.suptitle(_title(attention, layer, head), fontsize="medium")
    return figure


def draw_sheet(attention: AttentionMap, *, dark: bool = False) -> ThemedFigure:
    """Plot a small heatmap of every head, on one scale: layers down, heads across.

    Raises:
        UserError: there are too many heads, or matplotlib is missing.
    """
    layers, heads, queries, keys = attention.weights.shape
    if layers * heads > MAX_PANELS:
        raise UserError(f"a sheet shows up to {MAX_PANELS} heads, not {layers * heads}; plot one head")
    # The panels have the proportions of the matrix, within limits that keep them visible.
    height = PANEL * min(max(queries / keys, 0.3), 3.0)
    with new_figure((heads * (PANEL + 0.12) + 1.6, layers * (height + 0.12) + 1.3), dark=dark) as figure:
        panels = figure.subplots(layers, heads, squeeze=False)
        largest = attention.weights.max().item()
        for layer in range(layers):
            for head in range(heads):
                panel = panels[layer, head]
                image = panel.imshow(
                    attention.weights[layer, head].numpy(),
                    cmap=figure.theme.sequential,
                    vmin=0,
                    vmax=largest,
                    aspect="auto",
                    interpolation="none" if max(queries, keys) <= MAX_LABELS else "antialiased",
                )
                panel.set(xticks=[], yticks=[])
            panels[layer, 0].set_ylabel(f"layer {layer}", fontsize="small")
        for head in range(heads):
            panels[0, head].set_title(f"head {head}", fontsize="small")
        figure.colorbar(image, ax=panels, label="weight", shrink=min(1.0, 2 / layers), aspect=15)
        figure.suptitle(NAMES[attention.kind], fontsize="medium")
    return figure


def weights_of(attention: AttentionMap, layer: int, head: int | None) -> torch.Tensor:
    """Return the weights of a head, or the mean of a layer's heads: float32 [Q, K].

    Raises:
        UserError: there is no such layer or head.
    """
    layers, heads = attention.weights.shape[:2]
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not -count <= number < count:
            raise UserError(
                f"{name}={number}: the {attention.kind} attention has {count}; expected 0 to {count - 1}, or "
                f"-{count} to -1"
            )
    of_layer = attention.weights[layer]
    return of_layer.mean(dim=0) if head is None else of_layer[head]


def _labels(attention: AttentionMap) -> tuple[list[str], list[str]]:
    """Return the queries and keys, long ones shortened; raise a UserError if there are too many."""
    for name, texts in (("queries", attention.queries), ("keys", attention.keys)):
        if len(texts) > MAX_LABELS:
            raise UserError(
                f"a plot has labels for up to {MAX_LABELS} {name}, not {len(texts)}; shorten the text, join "
                "tokens into words (--words), or plot a sheet of all heads (--style sheet)"
            )
    queries, keys = ([_shortened(text) for text in side] for side in (attention.queries, attention.keys))
    return queries, keys


def _shortened(text: str) -> str:
    half = LONGEST_LABEL // 2
    return text if len(text) <= LONGEST_LABEL else f"{text[:half]}…{text[-half + 1 :]}"


def _width(labels: Sequence[str]) -> float:
    """Return the approximate width of the widest label in inches; East Asian letters are twice as wide."""
    wide = ("W", "F")
    return LETTER * max(sum(1 + (unicodedata.east_asian_width(x) in wide) for x in text) for text in labels)


def _title(attention: AttentionMap, layer: int, head: int | None) -> str:
    layers, heads = attention.weights.shape[:2]
    of_head = f"mean of {heads} heads" if head is None else f"head {head % heads}"
    return f"{NAMES[attention.kind]}, layer {layer % layers}, {of_head}"


def _queries_with_text(attention: AttentionMap, token: str | None) -> list[int]:
    """Return the indices of the queries with this text; of all queries if it is None."""
    chosen = [place for place, text in enumerate(attention.queries) if token in (None, text)]
    if not chosen:
        known = listing(dict.fromkeys(attention.queries))
        raise UserError(f"token={token!r} is none of the queries; expected one of {known}")
    return chosen


def _write_column(axes: Axes, labels: Sequence[str], x: float, side: str, bold: Sequence[int] = ()) -> None:
    for place, label in enumerate(labels):
        weight = "bold" if place in bold else "normal"
        axes.text(x, place, label, ha=side, va="center", fontweight=weight)


def _shade(axes: Axes, opacity: torch.Tensor, width: float, colour: str) -> None:
    """Shade the keys [K] of the highlighted query."""
    from matplotlib.patches import Rectangle

    for place, alpha in enumerate(opacity.tolist()):
        axes.add_patch(
            Rectangle(
                (2.02, place - 0.45), width + 0.1, 0.9, facecolor=colour, alpha=0.45 * alpha, linewidth=0
            )
        )


def _add_arcs(axes: Axes, opacity: torch.Tensor, chosen: Sequence[int], colour: str) -> None:
    """Draw an arc for each opacity in [Q, K] from its query to its key, the faintest first."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path

    ends = [(query, key) for query in chosen for key in range(opacity.shape[1]) if opacity[query, key] > 0]
    ends.sort(key=lambda pair: opacity[pair].item())
    codes = [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]
    axes.add_collection(
        PathCollection(
            [Path([(0, query), (0.9, query), (1.1, key), (2, key)], codes) for query, key in ends],
            edgecolors=[to_rgba(colour, opacity[pair].item()) for pair in ends],
            facecolors="none",
            linewidths=2.2,
        )
    )
