"""Plot the log of a run: losses, scores, learning rate, gradient norm and speed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError, one_line
from vaswani.evaluation import score_names
from vaswani.evaluation.score_names import CORRELATIONS, LOWER_IS_BETTER, PERCENTAGES, is_lower_better
from vaswani.files.run_files import LOG_FILE, checkpoints
from vaswani.insight.figures import new_figure, save_figure, write_plain_numbers
from vaswani.insight.themes import DASHES, LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

FILE = "curves.png"
SIZE = (12.0, 6.5)  # inches
AGAINST = {"updates": "update", "tokens": "tokens"}  # quantity on the horizontal axis → its label


def _of_validations(*names: str) -> dict[str, str]:
    """Return the keys of scores in a log, with their names."""
    return {f"eval_{name}": score_names.ALL[name] for name in names}


# Each panel: title, keys of the log with their legends, and whether the axis is logarithmic.
PANELS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("loss", {"loss": "training", "eval_loss": "validation"}, False),
    ("validation, 0 to 100", _of_validations(*PERCENTAGES), False),
    ("validation, −1 to 1", _of_validations(*CORRELATIONS), False),
    *(
        (f"validation, {score_names.ALL[name]}", {f"eval_{name}": "validation"}, False)
        for name in LOWER_IS_BETTER
    ),
    ("learning rate", {"learning_rate": "learning rate"}, False),
    ("norm of the gradient", {"grad_norm": "before clipping"}, True),
    ("real tokens a second", {"tokens_per_second": "all processes"}, False),
    (
        "share",
        {
            "mfu": "MFU, of the measured peak",
            "share_of_peak": "MFU, of the measured peak ",  # the key of older logs
            "padding": "padding",
        },
        False,
    ),
)


def read_history(run: Path) -> list[dict[str, Any]]:
    """Return a run's log, from its folder or (during the run) its last checkpoint, whichever is further.

    Raises:
        UserError: the folder is not a run's folder, or the log cannot be read.
    """
    own = run / LOG_FILE
    in_checkpoints = (folder / LOG_FILE for folder in checkpoints(run))
    last = next(filter(Path.is_file, in_checkpoints), None)
    found = [path for path in (own, last) if path is not None and path.is_file()]
    if not found:
        raise UserError(f"neither {run} nor a checkpoint in it has {LOG_FILE}; give a run's output_dir")
    return max(map(_read_log, found), key=lambda log: max((entry["step"] for entry in log), default=0))


def _read_log(path: Path) -> list[dict[str, Any]]:
    try:
        log = json.loads(path.read_text(encoding="utf-8"))["log_history"]
        return [{**entry, "step": int(entry["step"])} for entry in log]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); give another run") from error


def read_histories(runs: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """Return the logs of runs (see `read_history`) by folder name; by path if names repeat.

    Raises:
        UserError: a run is given twice or has no log.
    """
    folders = [run.resolve() for run in runs]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{runs[number]} is given twice; give each run once")
    differ = len({folder.name for folder in folders}) == len(folders)
    return {
        folder.name if differ else str(run): read_history(run)
        for folder, run in zip(folders, runs, strict=True)
    }


def draw_curves(
    runs: Mapping[str, list[dict[str, Any]]], against: str = "updates", *, dark: bool = False
) -> ThemedFigure:
    """Plot a panel for each quantity in the logs, with the lines of all runs.

    Args:
        runs: by name for the legend, the log of each run (see `read_history`).
        against: "updates", or "tokens" for the number of trained tokens without padding.
        dark: whether the background is dark.

    Raises:
        UserError: a log is empty or has no tokens, or matplotlib is missing.
    """
    if against not in AGAINST:
        raise UserError(f"against={against!r} is unknown; expected updates or tokens")
    places = {name: _places(name, history, against) for name, history in runs.items()}
    for name, history in runs.items():
        if not any(_series(history, key)[0] for _, lines, _ in PANELS for key in lines):
            raise UserError(f"{name} logged nothing that could be drawn; set logging_steps")
    panels = [
        panel for panel in PANELS if any(_series(log, key)[0] for log in runs.values() for key in panel[1])
    ]
    with new_figure(SIZE, dark=dark, texts=runs, dpi=120) as figure:
        from matplotlib.lines import Line2D

        rows = 2 if len(panels) > 3 else 1
        grid = figure.subplots(rows, -(-len(panels) // rows), squeeze=False).flat
        for axes, (title, labels, is_logarithmic) in zip(grid, panels, strict=False):
            axes.set(title=title, xlabel=AGAINST[against], yscale="log" if is_logarithmic else "linear")
            axes.grid()
            if is_logarithmic:
                write_plain_numbers(axes.yaxis)
            _draw_lines(axes, labels, runs, places)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        if len(runs) > 1:
            colours = [Line2D([], [], color=colour) for _, colour in zip(runs, cycle(LINES), strict=False)]
            figure.legend(colours, list(runs), loc="outside lower center", ncols=4)
    return figure


def _places(name: str, history: list[dict[str, Any]], against: str) -> dict[int, float]:
    """Return the place of each update on the horizontal axis."""
    if against == "updates":
        return {entry["step"]: entry["step"] for entry in history}
    if not any("tokens" in entry for entry in history):
        raise UserError(f"the log of {name} has no numbers of tokens; draw it against updates")
    places, tokens = {}, 0.0
    for entry in history:
        tokens += entry.get("tokens", 0.0)
        places[entry["step"]] = tokens
    return places


def _series(history: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = [(entry["step"], entry[name]) for entry in history if name in entry]
    return [step for step, _ in points], [value for _, value in points]


def _draw_lines(
    axes: Axes,
    labels: dict[str, str],
    runs: Mapping[str, list[dict[str, Any]]],
    places: Mapping[str, dict[int, float]],
) -> None:
    """Plot quantities: of one run, each in a colour; of several, a colour per run, dashes per quantity."""
    drawn = [key for key in labels if any(_series(log, key)[0] for log in runs.values())]
    for (name, history), of_run in zip(runs.items(), cycle(LINES), strict=False):
        for key, of_key, dashes in zip(drawn, cycle(LINES), cycle(DASHES), strict=False):
            steps, values = _series(history, key)
            if steps:
                axes.plot(
                    [places[name][step] for step in steps],
                    values,
                    label=labels[key],
                    color=of_key if len(runs) == 1 else of_run,
                    linestyle="-" if len(runs) == 1 else dashes,
                    marker="o" if len(steps) < 30 else None,
                    markersize=3,
                )
    if len(runs) == 1 or len(drawn) > 1:
        _add_legend(axes, [labels[key] for key in drawn])


def _add_legend(axes: Axes, labels: list[str]) -> None:
    """Add each quantity to the legend once, with the line of the first run that has it."""
    first = {str(line.get_label()): line for line in reversed(axes.lines)}
    axes.legend([first[label] for label in labels], labels, fontsize="small")


def save_curves(run: Path) -> Path:
    """Save the curves of a run in its folder and return the path (see `read_history`, `draw_curves`)."""
    path = run / FILE
    save_figure(draw_curves(read_histories([run])), path)
    return path


def summary(history: list[dict[str, Any]]) -> str:
    """Summarize a run: a line about the training and a line for each best validation score."""
    trained = [entry for entry in history if "loss" in entry]
    lines = []
    if trained:
        shown = [f"update {trained[-1]['step']:,}", f"loss {trained[-1]['loss']:.3f}"]
        speeds = sorted(entry["tokens_per_second"] for entry in trained if "tokens_per_second" in entry)
        if speeds:
            shown.append(f"{speeds[len(speeds) // 2]:,.0f} real tokens a second (median)")
        lines.append(", ".join(shown))
    for name, label in {"loss": "loss", **score_names.ALL}.items():
        steps, values = _series(history, f"eval_{name}")
        if values:
            choose = min if is_lower_better(name) else max
            best = choose((value for value in values if not math.isnan(value)), default=values[0])
            lines.append(f"best validation {label}: {best:.2f} at update {steps[values.index(best)]:,}")
    return "\n".join(lines) or "nothing was logged yet"
