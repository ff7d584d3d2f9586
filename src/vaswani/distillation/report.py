"""The report of a comparison: Markdown for a model card, JSON, and a plot of quality against speed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vaswani.distillation.comparison import Comparison
from vaswani.distillation.measuring import BaseComparison, Measured
from vaswani.errors import RunError, UserError
from vaswani.evaluation.confidence import Estimate
from vaswani.evaluation.text_metrics import METRIC_NAMES
from vaswani.files.atomic_files import write_whole
from vaswani.files.json_files import finite_json, without_non_finite
from vaswani.files.run_files import REPORT_DATA, REPORT_PLOT, REPORT_TEXT
from vaswani.hub.plain_card import markdown_table
from vaswani.insight.quality import draw_quality
from vaswani.insight.saved_results import MeasuredModel
from vaswani.training.trainer.checkpoints import check_writable

logger = logging.getLogger(__name__)


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write `report.md`, `report.json` and `quality_speed.png`, each atomically.

    Without matplotlib, a warning is logged and no plot is drawn.

    Raises:
        UserError: the folder cannot be written to.
        RunError: a file cannot be written.
    """
    check_writable(folder, "output")
    write_texts(comparison, as_markdown(comparison), folder)
    try:
        figure = draw_quality(_measured(comparison), comparison.metric)
    except UserError as error:
        logger.warning("%s is not drawn: %s", REPORT_PLOT, error)
    else:
        _write(folder / REPORT_PLOT, figure.to_bytes("png"))


def write_texts(comparison: BaseComparison, markdown: str, folder: Path) -> None:
    """Write `report.md` and `report.json` of a comparison.

    Raises:
        RunError: a file cannot be written.
    """
    _write(folder / REPORT_TEXT, markdown.encode())
    _write(
        folder / REPORT_DATA, (finite_json(without_non_finite(as_dict(comparison)), indent=2) + "\n").encode()
    )


def _write(path: Path, contents: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, contents)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def as_dict(comparison: BaseComparison) -> dict[str, Any]:
    """Return all measurements as plain JSON values, after the main numbers of the first student.

    The main numbers are `retention`, a fraction of the teacher's score (0.987 means 98.7 %; null if that
    score is 0), `parameter_ratio` and `speedup`, both relative to the teacher, and `baseline_quality`, a
    score or null.
    """
    student, baseline = comparison.students[0], comparison.baseline
    return {
        "retention": student.retention and student.retention.value,
        "parameter_ratio": student.parameter_ratio,
        "speedup": student.speedup,
        "baseline_quality": baseline and baseline.scores[comparison.metric].value,
        **asdict(comparison),
    }


def _measured(comparison: Comparison) -> list[MeasuredModel]:
    return [
        MeasuredModel(model.name, model.role, model.parameters, model.sentences_per_second, model.scores)
        for model in comparison.models
    ]


def as_markdown(comparison: Comparison) -> str:
    """Return a section of a model card: a row for each model, the conclusions, and the conditions."""
    metrics = [METRIC_NAMES[name] for name in comparison.teacher.scores]
    columns = ["model", "role", "parameters", "weights", *metrics, "retention", "sentences/s", "speed-up"]
    rows = [cells(model, model.sentences_per_second, _size_of_weights(model)) for model in comparison.models]
    table = markdown_table(columns, rows, numbers=columns[2:])
    parts = [
        "## Distillation",
        "",
        table,
        "",
        *conclusions(comparison, METRIC_NAMES[comparison.metric], "decodes"),
        "",
        *_conditions(comparison),
    ]
    return "\n".join(parts) + "\n"


def cells(model: Measured, speed: float, *sizes: str) -> tuple[str, ...]:
    """Return the row of a model in the table of a report.

    Args:
        model: its measurements.
        speed: rows or sentences per second.
        sizes: cells that follow the number of parameters.
    """
    return (
        model.name,
        model.role,
        f"{model.parameters:,} ({100 * model.parameter_ratio:.1f} %)",
        *sizes,
        *map(_interval, model.scores.values()),
        "undefined" if model.retention is None else _percent(model.retention),
        f"{speed:.1f}",
        f"{model.speedup:.2f}×",
    )


def _size_of_weights(model: Measured) -> str:
    return "not saved" if model.weight_bytes is None else f"{model.weight_bytes / 1e6:.1f} MB"


def _interval(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def _percent(share: Estimate) -> str:
    return f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def conclusions(comparison: BaseComparison, metric: str, verb: str) -> Iterator[str]:
    """Yield the conclusions about each student, as lines of Markdown.

    Args:
        comparison: with a teacher, students and perhaps a baseline.
        metric: its display name.
        verb: a verb for what was timed, such as "decodes".
    """
    for student in comparison.students:
        size = f"{100 * student.parameter_ratio:.1f} % of the teacher's parameters"
        if student.retention is None:
            quality = f"the teacher's {metric} is not above 0, so its retention is undefined"
        else:
            quality = f"it retains {_percent(student.retention)} of the teacher's {metric}"
        yield f"- `{student.name}` has {size} and {verb} {student.speedup:.2f} times as fast; {quality}."
        if student.gain is not None and comparison.baseline is not None:
            against = f"Against `{comparison.baseline.name}`, which was trained without distillation"
            points = f"{_interval(student.gain, sign='+')} points of {metric}"
            yield f"  {against}: {points}, {_verdict(student.gain)}."


def _verdict(gain: Estimate) -> str:
    if gain.low > 0:
        return "better by more than the confidence interval"
    if gain.high < 0:
        return "worse by more than the confidence interval"
    return "no difference outside the confidence interval"


def _conditions(comparison: Comparison) -> Iterator[str]:
    lengths = _listing(f"{model.max_length}" for model in comparison.models)
    dtypes = _listing(model.dtype for model in comparison.models)
    yield f"- Data: {comparison.data}, {comparison.rows:,} rows."
    for name, signature in comparison.signatures.items():
        yield f"- {METRIC_NAMES[name]}: `{signature}`."
    yield intervals_line(comparison.bootstrap["resamples"], comparison.bootstrap["seed"])
    search = ", ".join(f"{name} {value}" for name, value in comparison.search.items() if value is not None)
    yield f"- Search: {search}, max_length {lengths}."
    yield speed_line(comparison, dtypes)
    for model in comparison.models:
        if model.untranslated_rows:
            yield f"- Too long for `{model.name}`, counted as empty: {model.untranslated_rows:,} rows."
        if model.cut_off_rows:
            yield f"- Source cut off for `{model.name}`: {model.cut_off_rows:,} rows."


def intervals_line(resamples: int, seed: int) -> str:
    """Explain the intervals of a comparison."""
    return (
        f"- In brackets: 95 % confidence intervals, from {resamples:,} bootstrap resamples of the rows "
        f"(Koehn, 2004), the same for all models; seed {seed}."
    )


def speed_line(comparison: BaseComparison, *details: str) -> str:
    """Tell how the speeds of a comparison were measured."""
    speed, machine = comparison.speed, comparison.machine
    where = [machine["device"], f"CPU threads: {machine['threads']}", f"torch {machine['torch']}", *details]
    return (
        f"- Speed: median of {speed['rounds']} rounds of {speed['rows']:,} rows, in which models took turns; "
        f"{', '.join(where)}."
    )


def _listing(values: Iterable[str]) -> str:
    """Join the distinct values with commas."""
    return ", ".join(dict.fromkeys(values))
