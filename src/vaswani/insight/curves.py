"""Plot the log of a run: losses, scores, learning rate, gradient norm and speed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from vaswani.errors import UserError, one_line
from vaswani.insight.figures import new_figure, save_figure, write_plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from vaswani.insight.themed_figure import ThemedFigure

FILE = "curves.png"
SIZE = (12.0, 6.5)  # inches
# Each panel: title, keys of the log with their legends, and whether the axis is logarithmic.
PANELS: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("loss, per token", {"loss": "training", "eval_loss": "validation"}, False),
    (
        "validation",
        {
            "eval_bleu": "BLEU",
            "eval_chrf": "chrF2",
            "eval_exact_match": "exact match, %",
            "eval_rouge1": "ROUGE-1",
            "eval_rouge2": "ROUGE-2",
            "eval_rougeL": "ROUGE-L",
            "eval_accuracy": "accuracy, %",
            "eval_macro_f1": "macro F1, %",
            "eval_f1": "span F1, %",
        },
        False,
    ),
    ("validation, bits per byte", {"eval_bits_per_byte": "validation"}, False),
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
    """Return the log of a run from its folder or, during the run, from its last checkpoint.

    Raises:
        UserError: the folder is not that of a run, or the log cannot be read.
    """
    found = [*run.glob(TRAINER_STATE_NAME), *run.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{TRAINER_STATE_NAME}")]
    if not found:
        raise UserError(
            f"neither {run} nor a checkpoint in it has {TRAINER_STATE_NAME}; give a run's output_dir"
        )
    path = max(found, key=lambda path: path.stat().st_mtime)
    try:
        return json.loads(path.read_text(encoding="utf-8"))["log_history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); give another run") from error


def draw_curves(history: list[dict[str, Any]]) -> ThemedFigure:
    """Plot a panel for each quantity in the log.

    Raises:
        UserError: the log is empty, or matplotlib is missing.
    """
    series = {name: _series(history, name) for _, lines, _ in PANELS for name in lines}
    panels = [panel for panel in PANELS if any(series[name][0] for name in panel[1])]
    if not panels:
        raise UserError("the run logged nothing that could be drawn; set logging_steps")
    with new_figure(SIZE, dpi=120) as figure:
        rows = 2 if len(panels) > 3 else 1
        grid = figure.subplots(rows, -(-len(panels) // rows), squeeze=False).flat
        for axes, (title, lines, is_logarithmic) in zip(grid, panels, strict=False):
            _draw(axes, title, {label: series[name] for name, label in lines.items()}, is_logarithmic)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
    return figure


def _series(history: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    points = [(entry["step"], entry[name]) for entry in history if name in entry]
    return [step for step, _ in points], [value for _, value in points]


def _draw(
    axes: Axes, title: str, lines: dict[str, tuple[list[int], list[float]]], is_logarithmic: bool
) -> None:
    for label, (steps, values) in lines.items():
        if steps:
            axes.plot(steps, values, label=label, marker="o" if len(steps) < 30 else None, markersize=3)
    axes.set(title=title, xlabel="update", yscale="log" if is_logarithmic else "linear")
    if is_logarithmic:
        write_plain_numbers(axes.yaxis)
    axes.grid()
    axes.legend()


def save_curves(run: Path) -> Path:
    """Save the curves of a run in its folder and return the file (see `read_history`, `draw_curves`)."""
    path = run / FILE
    save_figure(draw_curves(read_history(run)), path)
    return path


def summary(history: list[dict[str, Any]]) -> str:
    """Summarize a run: a line on the training and one for each best validation score."""
    trained = [entry for entry in history if "loss" in entry]
    if not trained:
        return "nothing was logged yet"
    last = trained[-1]
    shown = [f"update {last['step']:,}", f"loss {last['loss']:.3f}"]
    speeds = sorted(entry["tokens_per_second"] for entry in trained if "tokens_per_second" in entry)
    if speeds:
        shown.append(f"{speeds[len(speeds) // 2]:,.0f} real tokens a second (median)")
    lines = [", ".join(shown)]
    scores = {"eval_loss": "loss", "eval_bleu": "BLEU", "eval_exact_match": "exact match"}
    for name, label in {**scores, "eval_rouge1": "ROUGE-1", "eval_accuracy": "accuracy"}.items():
        steps, values = _series(history, name)
        if values:
            best = min(values) if name == "eval_loss" else max(values)
            lines.append(f"best validation {label}: {best:.2f} at update {steps[values.index(best)]:,}")
    return "\n".join(lines)
