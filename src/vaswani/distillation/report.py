"""The report of a comparison: Markdown for a model card, JSON, and a plot of quality against speed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import Any

from vaswani.distillation.comparison import Comparison
from vaswani.distillation.measuring import FIRST, OTHER, BaseComparison, Measured
from vaswani.errors import RunError, UserError
from vaswani.evaluation import score_names
from vaswani.evaluation.estimates import Difference, Estimate
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
    """Return all measurements as plain JSON values, after the main numbers of the second model.

    The main numbers are `retention`, a fraction of the first model's score (0.987 means 98.7 %; null if that
    score is 0), `parameter_ratio` and `speedup`, both relative to the first model, `baseline_quality`, a
    score or null, and the `difference` to the first model's score with its `p_value`. The first model is the
    teacher of a distillation, and the second its student.
    """
    student, baseline = comparison.students[0], comparison.baseline
    difference = student.differences[comparison.metric]
    return {
        "retention": student.retention and student.retention.value,
        "parameter_ratio": student.parameter_ratio,
        "speedup": student.speedup,
        "baseline_quality": baseline and baseline.scores[comparison.metric].value,
        "difference": difference.value,
        "p_value": difference.p_value,
        **asdict(comparison),
    }


def _measured(comparison: Comparison) -> list[MeasuredModel]:
    return [
        MeasuredModel(model.name, model.role, model.parameters, model.sentences_per_second, model.scores)
        for model in comparison.models
    ]


def as_markdown(comparison: Comparison) -> str:
    """Return a section of a model card: tables with a row for each model, conclusions, and conditions."""
    rows = [cells(model, model.sentences_per_second, _size_of_weights(model)) for model in comparison.models]
    sizes, conditions = ["parameters", "weights"], _conditions(comparison)
    return section(comparison, score_names.TEXTS, rows, sizes, "sentences/s", "decodes", conditions)


def section(
    comparison: BaseComparison,
    names: Mapping[str, str],
    rows: Iterable[Sequence[str]],
    sizes: Sequence[str],
    speed: str,
    verb: str,
    conditions: Iterable[str],
) -> str:
    """Return the section of a comparison in a model card.

    Args:
        comparison: what was measured.
        names: display names of the metrics.
        rows: the `cells` of each model.
        sizes: titles of the columns with sizes.
        speed: title of the column of speeds.
        verb: a verb for what was timed, such as "decodes".
        conditions: lines that tell how everything was measured.
    """
    scores, metric = [names[name] for name in comparison.teacher.scores], names[comparison.metric]
    numbers = [*sizes, *scores, "retention", speed, "speed-up"]
    if comparison.is_distillation:
        title, texts, told = "## Distillation", ["model", "role"], conclusions(comparison, metric, verb)
    else:
        title, texts, told = "## Comparison", ["model"], neutral_conclusions(comparison, metric, verb)
    table = markdown_table([*texts, *numbers], rows, numbers=numbers)
    parts = [title, "", table, "", _differences(comparison, scores), "", *told, "", *conditions]
    return "\n".join(parts) + "\n"


def _differences(comparison: BaseComparison, scores: Sequence[str]) -> str:
    """Return the table of the differences between the first model and each of the others."""
    rows = [
        (model.name, *map(_with_p_value, model.differences.values()))
        for model in comparison.models
        if model.differences
    ]
    return markdown_table([f"difference from `{comparison.teacher.name}`", *scores], rows, numbers=scores)


def _with_p_value(difference: Difference) -> str:
    return f"{_interval(difference, sign='+')}, {_p_value(difference)}"


def _p_value(difference: Difference) -> str:
    undefined = isnan(difference.p_value)  # a score is infinite or NaN
    return "p undefined" if undefined else f"p = {difference.p_value:.3f}"


def cells(model: Measured, speed: float, *sizes: str) -> tuple[str, ...]:
    """Return the row of a model in the table of a report.

    Args:
        model: its measurements.
        speed: rows or sentences per second.
        sizes: cells that follow the number of parameters.
    """
    return (
        model.name,
        *([] if model.role in (FIRST, OTHER) else [model.role]),
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


def neutral_conclusions(comparison: BaseComparison, metric: str, verb: str) -> Iterator[str]:
    """Yield a line of Markdown about each model that is compared with the first, and one about retention.

    Args:
        comparison: of models of any origin.
        metric: its display name.
        verb: a verb for what was timed, such as "decodes".
    """
    first = f"`{comparison.teacher.name}`"
    for model in comparison.students:
        difference = model.differences[comparison.metric]
        yield (
            f"- `{model.name}` differs from {first} by {_interval(difference, sign='+')} points of {metric} "
            f"({_p_value(difference)}). It has {100 * model.parameter_ratio:.1f} % of the parameters "
            f"of {first} and {verb} {model.speedup:.2f} times as fast."
        )
    yield f"- Retention: a model's {metric} as a share of that of {first}."


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
        yield f"- {score_names.TEXTS[name]}: `{signature}`."
    yield from intervals_lines(comparison.bootstrap["resamples"], comparison.bootstrap["seed"])
    search = ", ".join(f"{name} {value}" for name, value in comparison.search.items() if value is not None)
    yield f"- Search: {search}, max_length {lengths}."
    yield speed_line(comparison, dtypes)
    for model in comparison.models:
        if model.untranslated_rows:
            yield f"- Not translated by `{model.name}`, counted as empty: {model.untranslated_rows:,} rows."
        if model.cut_off_rows:
            yield f"- Source cut off for `{model.name}`: {model.cut_off_rows:,} rows."


def intervals_lines(resamples: int, seed: int, unit: str = "rows") -> Iterator[str]:
    """Explain the intervals and the p-values of a comparison; the unit is what is resampled."""
    yield (
        f"- In brackets: 95 % confidence intervals, from {resamples:,} bootstrap resamples of the {unit} "
        f"(Koehn, 2004), the same for all models; seed {seed}."
    )
    yield (
        "- p: paired bootstrap test of the difference on these resamples, as `sacrebleu --paired-bs` defines "
        "it; in effect one-sided, and not corrected for several models or metrics."
    )


def speed_line(comparison: BaseComparison, *details: str, unit: str = "rows") -> str:
    """Tell how the speeds of a comparison were measured."""
    speed, machine = comparison.speed, comparison.machine
    where = [machine["device"], f"CPU threads: {machine['threads']}", f"torch {machine['torch']}", *details]
    return (
        f"- Speed: median of {speed['rounds']} rounds of {speed['rows']:,} {unit}, in which models took "
        f"turns; {', '.join(where)}."
    )


def _listing(values: Iterable[str]) -> str:
    """Join the distinct values with commas."""
    return ", ".join(dict.fromkeys(values))
