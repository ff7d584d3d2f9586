"""The report of a comparison: Markdown for a model card, JSON, and a plot of quality against speed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vaswani.distillation.comparison import Comparison, ModelResult
from vaswani.distillation.measuring import ByRole
from vaswani.errors import RunError, UserError
from vaswani.evaluation.confidence import Estimate
from vaswani.evaluation.text_metrics import METRIC_NAMES
from vaswani.files.atomic_files import write_whole
from vaswani.files.json_files import finite_json, without_non_finite
from vaswani.hub.plain_card import markdown_table
from vaswani.insight.measured import MeasuredModel
from vaswani.insight.quality import draw_quality
from vaswani.training.trainer.checkpoints import check_writable

logger = logging.getLogger(__name__)

MARKDOWN, JSON, PLOT = "report.md", "report.json", "quality_speed.png"


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
        logger.warning("%s is not drawn: %s", PLOT, error)
    else:
        _write(folder / PLOT, figure.to_bytes("png"))


def write_texts(comparison: ByRole, markdown: str, folder: Path) -> None:
    """Write `report.md` and `report.json` of a comparison.

    Raises:
        RunError: a file cannot be written.
    """
    _write(folder / MARKDOWN, markdown.encode())
    _write(folder / JSON, (finite_json(without_non_finite(as_dict(comparison)), indent=2) + "\n").encode())


def _write(path: Path, contents: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, contents)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def as_dict(comparison: Any) -> dict[str, Any]:
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
    table = markdown_table(columns, map(_cells, comparison.models), numbers=columns[2:])
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


def _cells(model: ModelResult) -> tuple[str, ...]:
    return (
        model.name,
        model.role,
        f"{model.parameters:,} ({100 * model.parameter_ratio:.1f} %)",
        "not saved" if model.weight_bytes is None else f"{model.weight_bytes / 1e6:.1f} MB",
        *map(interval, model.scores.values()),
        "undefined" if model.retention is None else percent(model.retention),
        f"{model.sentences_per_second:.1f}",
        f"{model.speedup:.2f}×",
    )


def interval(estimate: Estimate, sign: str = "") -> str:
    return f"{estimate.value:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def percent(share: Estimate) -> str:
    return f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def conclusions(comparison: ByRole, metric: str, verb: str) -> Iterator[str]:
    """Yield the conclusions about each student, as lines of Markdown.

    Args:
        comparison: with a teacher, students and perhaps a baseline.
        metric: its display name.
        verb: a verb for what was timed, such as "decodes".
    """
    for student in comparison.students:
        size = f"{100 * student.parameter_ratio:.1f} % of the teacher's parameters"
        if student.retention is None:
            quality = f"the teacher's {metric} is 0, so its retention is undefined"
        else:
            quality = f"it retains {percent(student.retention)} of the teacher's {metric}"
        yield f"- `{student.name}` has {size} and {verb} {student.speedup:.2f} times as fast; {quality}."
        if student.gain is not None and comparison.baseline is not None:
            against = f"Against `{comparison.baseline.name}`, which was trained without distillation"
            points = f"{interval(student.gain, sign='+')} points of {metric}"
            yield f"  {against}: {points}, {_verdict(student.gain)}."


def _verdict(gain: Estimate) -> str:
    if gain.low > 0:
        return "better by more than the confidence interval"
    if gain.high < 0:
        return "worse by more than the confidence interval"
    return "no difference outside the confidence interval"


def _conditions(comparison: Comparison) -> Iterator[str]:
    bootstrap, speed, machine = comparison.bootstrap, comparison.speed, comparison.machine
    lengths = _listing(f"{model.max_length}" for model in comparison.models)
    dtypes = _listing(model.dtype for model in comparison.models)
    yield f"- Data: {comparison.data}, {comparison.rows:,} rows."
    for name, signature in comparison.signatures.items():
        yield f"- {METRIC_NAMES[name]}: `{signature}`."
    yield (
        f"- In brackets: 95 % confidence intervals, from {bootstrap['resamples']:,} bootstrap resamples of "
        f"the rows (Koehn, 2004), the same for all models; seed {bootstrap['seed']}."
    )
    search = ", ".join(f"{name} {value}" for name, value in comparison.search.items() if value is not None)
    yield f"- Search: {search}, max_length {lengths}."
    yield (
        f"- Speed: median of {speed['rounds']} rounds of {speed['rows']:,} rows, in which models took turns; "
        f"{machine['device']}, CPU threads: {machine['threads']}, torch {machine['torch']}, {dtypes}."
    )
    for model in comparison.models:
        if model.untranslated_rows:
            yield f"- Too long for `{model.name}`, counted as empty: {model.untranslated_rows:,} rows."
        if model.cut_off_rows:
            yield f"- Source cut off for `{model.name}`: {model.cut_off_rows:,} rows."


def _listing(values: Iterable[str]) -> str:
    """Join the distinct values with commas."""
    return ", ".join(dict.fromkeys(values))
