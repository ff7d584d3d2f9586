"""A plot of quality against speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from vaswani.insight.figures import new_figure
from vaswani.insight.themes import BLUE, GREEN, ORANGE

if TYPE_CHECKING:
    from vaswani.insight.themed_figure import ThemedFigure

SIZE = (8.0, 4.5)  # inches
COLOURS = {"teacher": BLUE, "student": GREEN, "baseline": ORANGE}
MARKERS = "oDs^vPX<>"


@dataclass(frozen=True)
class PlottedModel:
    """A point of the plot.

    Args:
        name: for the legend.
        role: "teacher", "student" or "baseline"; each has a colour.
        parameters: their number, for the legend.
        speed: sentences per second.
        quality: a score.
        low: lower end of the score's confidence interval.
        high: upper end.
    """

    name: str
    role: str
    parameters: int
    speed: float
    quality: float
    low: float
    high: float


def draw_quality_against_speed(models: Sequence[PlottedModel], metric: str) -> ThemedFigure:
    """Plot quality with its confidence interval against speed; raise a UserError without matplotlib."""
    with new_figure(SIZE) as figure:
        axes = figure.add_subplot()
        for model, marker in zip(models, cycle(MARKERS), strict=False):
            colour = COLOURS[model.role]
            label = f"{model.name}\n{model.role}, {model.parameters / 1e6:.1f} M parameters"
            axes.plot([model.speed] * 2, [model.low, model.high], marker="_", color=colour)
            axes.plot(model.speed, model.quality, marker=marker, linestyle="", color=colour, label=label)
        axes.set(xlabel="sentences per second", ylabel=f"{metric}, with 95 % confidence interval")
        axes.set_xlim(left=0)
        axes.grid()
        figure.legend(loc="outside right upper")
    return figure
