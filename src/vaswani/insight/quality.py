"""Plots of models' quality against speed and size, and of the quality that students retain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from vaswani.errors import UserError
from vaswani.insight.figures import new_figure
from vaswani.insight.saved_results import MeasuredModel
from vaswani.insight.themes import BLUE, GREEN, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

logger = logging.getLogger(__name__)

PANEL_SIZE = (5.0, 4.5)  # inches
LEGEND_WIDTH = 2.8
COLOURS = {"teacher": BLUE, "first": BLUE, "student": GREEN, "baseline": ORANGE, "model": PURPLE}
MARKERS = "oDs^vPX<>"
RETENTION_WIDTH, RETENTION_HEIGHT = 8.0, 1.2  # inches
ROW_HEIGHT = 0.4


def draw_quality(
    models: Sequence[MeasuredModel], metric: str | None = None, *, dark: bool = False
) -> ThemedFigure:
    """Plot quality with 95 % confidence intervals against size and, if models were timed, against speed.

    Args:
        models: each becomes a point, coloured by its role.
        metric: a key of `MeasuredModel.scores`; default: the first that all models have.
        dark: whether the background is dark.

    Raises:
        UserError: a model lacks the metric or was scored on another number of rows; matplotlib is missing.
    """
    if len({model.rows for model in models} - {None}) > 1:
        scored = "; ".join(f"{model.name}: {model.rows or 'unknown'}" for model in models)
        raise UserError(
            f"these models were scored on different numbers of rows ({scored}), so that their scores cannot "
            "be compared; evaluate them on the same data, or use vaswani compare"
        )
    _warn_of_different_data(models)
    metric = metric or _common_metric(models)
    for model in models:
        if metric not in model.scores:
            raise UserError(
                f"{model.name} has no score {metric!r}; expected one of {', '.join(model.scores)}"
            )
    panels: list[tuple[str, Callable[[MeasuredModel], float | None]]] = [
        ("million parameters", lambda model: model.parameters / 1e6)
    ]
    if any(model.speed is not None for model in models):
        panels.insert(0, ("rows per second", lambda model: model.speed))
    width, height = PANEL_SIZE
    size = (width * len(panels) + LEGEND_WIDTH, height)
    with new_figure(size, dark=dark, texts=[model.name for model in models]) as figure:
        for axes, (label, place) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for model, marker in zip(models, cycle(MARKERS), strict=False):
                _draw_point(axes, place(model), model, metric, marker)
            axes.set(xlabel=label, ylabel=f"{models[0].names.get(metric, metric)}, with 95 % interval")
            axes.set_xlim(0, 1.1 * max(place(model) or 0 for model in models))  # shows the markers whole
            axes.grid()
        points = figure.axes[-1].lines[1::2]  # every second line; the others are intervals
        figure.legend(points, list(map(_label, models)), loc="outside right upper")
    return figure


def _warn_of_different_data(models: Sequence[MeasuredModel]) -> None:
    """Warn of scores on data with different names, or with one name and different contents."""
    known = [model for model in models if model.data is not None]
    contents = {model.hashes for model in known} - {()}
    if len(contents) == 1 and all(model.hashes for model in known):
        return  # the same files, whatever their names
    if len({model.data for model in known}) > 1 or len(contents) > 1:
        scored = "; ".join(f"{model.name}: {model.data}" for model in known)
        differ = "files with different contents" if len(contents) > 1 else "data with different names"
        logger.warning(
            "these models were scored on %s (%s); their scores can be compared only if the rows are the same",
            differ,
            scored,
        )


def _common_metric(models: Sequence[MeasuredModel]) -> str:
    common = [name for name in models[0].scores if all(name in model.scores for model in models)]
    if not common:
        scored = "; ".join(f"{model.name}: {', '.join(model.scores) or 'none'}" for model in models)
        raise UserError(f"these models have no score in common ({scored}); plot those of one task together")
    return common[0]


def _draw_point(axes: Axes, place: float | None, model: MeasuredModel, metric: str, marker: str) -> None:
    if place is None:
        return
    colour, score = COLOURS[model.role], model.scores[metric]
    axes.plot([place] * 2, [score.low, score.high], marker="_", color=colour, linestyle="-")
    axes.plot(place, score.value, marker=marker, linestyle="", color=colour)


def _label(model: MeasuredModel) -> str:
    role = "" if model.role == "model" else f"{model.role}, "
    return f"{model.name}\n{role}{model.parameters / 1e6:.1f} M parameters"


def draw_retention(models: Sequence[MeasuredModel], *, dark: bool = False) -> ThemedFigure:
    """Plot the share of a model's scores that others retain, in percent with 95 % intervals.

    Args:
        models: the models of a distillation, or of another comparison. The teacher or the first model, which
            retains 100 %, is not drawn.
        dark: whether the background is dark.

    Raises:
        UserError: no model has a retention, or matplotlib is missing.
    """
    found = [
        (model, metric, share)
        for model in models
        if model.role not in ("teacher", "first")
        for metric, share in model.retentions.items()
    ]
    if not found:
        raise UserError("no model has a retention, which needs a teacher or first model with a score above 0")
    labels = [f"{model.name}: {model.names.get(metric, metric)}" for model, metric, _ in found]
    size = (RETENTION_WIDTH, RETENTION_HEIGHT + ROW_HEIGHT * len(found))
    with new_figure(size, dark=dark, texts=labels) as figure:
        axes = figure.add_subplot()
        for row, (model, _, share) in enumerate(found):
            percent = [100 * share.low, 100 * share.value, 100 * share.high]
            axes.plot(percent[::2], [row, row], marker="|", linestyle="-", color=COLOURS[model.role])
            axes.plot(percent[1], row, marker="o", linestyle="", color=COLOURS[model.role])
            axes.annotate(
                f"{percent[1]:.1f} %", (percent[1], row), (0, 6), textcoords="offset points", ha="center"
            )
        axes.axvline(100, linestyle="--", color=figure.theme.foreground, linewidth=1)
        axes.set_yticks(range(len(found)), labels)
        axes.set_ylim(len(found) - 0.5, -0.7)  # the first row on top, with space for its number
        whole = "first model's" if any(model.role == "first" for model in models) else "teacher's"
        axes.set_xlabel(f"share of the {whole} score, %, with 95 % interval")
        axes.margins(x=0.1)
        axes.grid(axis="x")
    return figure
