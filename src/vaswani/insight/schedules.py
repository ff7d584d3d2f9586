"""Plots of several learning-rate schedules on the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from vaswani.insight.figures import new_figure
from vaswani.insight.themes import DASHES, LINES

if TYPE_CHECKING:
    from vaswani.insight.themed_figure import ThemedFigure

SIZE = (8.0, 4.5)  # inches
MAX_POINTS = 1000  # per line


def drawn_updates(max_steps: int) -> list[int]:
    """Return updates from 1 to `max_steps`, evenly spaced, with both ends."""
    points = min(max_steps, MAX_POINTS)
    return sorted({1 + (max_steps - 1) * point // max(points - 1, 1) for point in range(points)})


def draw_schedules(
    rates: Mapping[str, tuple[Sequence[int], Sequence[float]]], *, dark: bool = False
) -> ThemedFigure:
    """Plot learning rates against updates.

    Args:
        rates: by name of the schedule, updates and their learning rates.
        dark: whether the background is dark.
    """
    with new_figure(SIZE, dark=dark, texts=rates) as figure:
        axes = figure.add_subplot()
        # Lines differ in dashes too, because schedules often overlap in part.
        styles = zip(cycle(LINES), cycle(DASHES), rates.values(), strict=False)
        lines = [axes.plot(*line, color=colour, linestyle=dash)[0] for colour, dash, line in styles]
        axes.set(xlabel="update", ylabel="learning rate")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid()
        figure.legend(lines, list(rates), loc="outside upper center", ncols=2)
    return figure
