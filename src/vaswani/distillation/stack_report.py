"""Compare a student of one stack with its teachers: size, scores, retention and speed; report it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.distillation.comparison import ROUNDS, SPEED_ROWS, weight_bytes
from vaswani.distillation.report import JSON, MARKDOWN, interval, percent, verdict, write
from vaswani.evaluation.confidence import RESAMPLES, Estimate
from vaswani.files.json_files import finite_json, without_non_finite
from vaswani.hub.plain_card import markdown_table

Evaluate = Callable[[PreTrainedModel, Dataset], dict[str, tuple[float, np.ndarray]]]


@dataclass(frozen=True)
class Candidate:
    """A model to measure."""

    name: str  # in the report
    role: str  # "teacher", "student" or "baseline"
    model: PreTrainedModel
    folder: Path | None = None  # of its weight files, for their size


@dataclass(frozen=True)
class StackResult:
    """The measurements of one model; ratios are relative to the first teacher."""

    name: str
    role: str
    parameters: int  # shared ones count once
    parameter_ratio: float
    weight_bytes: int | None
    scores: dict[str, Estimate]
    retention: Estimate | None  # of the metric; None if the teacher scores 0
    gain: Estimate | None  # of a student over the baseline, in the metric's unit
    seconds: list[float]  # of each timed round
    rows_per_second: float
    speedup: float


@dataclass(frozen=True)
class StackComparison:
    """The result of `compare_stacks`."""

    metric: str
    names: dict[str, str]  # display names of the scores
    data: str
    rows: int
    models: list[StackResult]
    speed: dict[str, int]
    machine: dict[str, Any]

    def of(self, role: str) -> StackResult | None:
        """The first model with a role."""
        return next((model for model in self.models if model.role == role), None)


def compare_stacks(
    candidates: Sequence[Candidate],
    evaluate: Evaluate,
    rows: Dataset,
    *,
    metric: str,
    names: Mapping[str, str],
    data: str,
) -> StackComparison:
    """Score all models on the same rows and the same resamples of them, and time them in turns.

    Args:
        candidates: a teacher first.
        evaluate: returns a model's scores of rows, each with those of resampled rows [R].
        rows: tokenized.
        metric: of retention and gains.
        names: of the scores, for the report.
        data: the name of the data, for the report.
    """
    scores = [evaluate(one.model, rows) for one in candidates]
    timed = rows.select(evenly_spread(len(rows), min(SPEED_ROWS, len(rows))))
    seconds: list[list[float]] = [[] for _ in candidates]
    for _ in range(1 + ROUNDS):  # the first warms up
        for one, times in zip(candidates, seconds, strict=True):
            start = time.perf_counter()
            evaluate(one.model, timed)
            times.append(time.perf_counter() - start)
    seconds = [times[1:] for times in seconds]
    of_role = {one.role: found for one, found in zip(candidates, scores, strict=True)}
    results = [
        _result(
            *(one, found, times),
            *(candidates[0], scores[0], seconds[0]),
            of_role.get("baseline"),
            *(metric, len(timed)),
        )
        for one, found, times in zip(candidates, scores, seconds, strict=True)
    ]
    return StackComparison(
        metric=metric,
        names={name: names[name] for name in scores[0]},
        data=data,
        rows=len(rows),
        models=results,
        speed={"rows": len(timed), "rounds": ROUNDS},
        machine={
            "device": candidates[0].model.device.type,
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
        },
    )


def _result(
    one: Candidate,
    scores: dict[str, tuple[float, np.ndarray]],
    seconds: list[float],
    teacher: Candidate,
    teacher_scores: dict[str, tuple[float, np.ndarray]],
    teacher_seconds: list[float],
    baseline: dict[str, tuple[float, np.ndarray]] | None,
    metric: str,
    speed_rows: int,
) -> StackResult:
    (value, resampled), (of_teacher, teacher_resampled) = scores[metric], teacher_scores[metric]
    retention = gain = None
    if of_teacher:
        defined = teacher_resampled != 0
        ratios = resampled[defined] / teacher_resampled[defined]
        retention = Estimate.from_resamples(value / of_teacher, ratios)
    if baseline is not None and one.role == "student":
        gain = Estimate.from_resamples(value - baseline[metric][0], resampled - baseline[metric][1])
    median = statistics.median(seconds)
    parameters = one.model.num_parameters()
    return StackResult(
        name=one.name,
        role=one.role,
        parameters=parameters,
        parameter_ratio=parameters / teacher.model.num_parameters(),
        weight_bytes=None if one.folder is None else weight_bytes(one.folder),
        scores={name: Estimate.from_resamples(*score) for name, score in scores.items()},
        retention=retention,
        gain=gain,
        seconds=seconds,
        rows_per_second=speed_rows / median,
        speedup=statistics.median(teacher_seconds) / median,
    )


# ------------------------------------------------------------------------------------------------- the report


def write_stack_report(comparison: StackComparison, folder: Path) -> None:
    """Write `report.md` and `report.json`, each atomically.

    Raises:
        RunError: a file cannot be written.
    """
    student, baseline = comparison.of("student"), comparison.of("baseline")
    numbers = {
        "retention": student and student.retention and student.retention.value,
        "parameter_ratio": student and student.parameter_ratio,
        "speedup": student and student.speedup,
        "baseline_quality": baseline and baseline.scores[comparison.metric].value,
        **asdict(comparison),
    }
    write(folder / MARKDOWN, stack_markdown(comparison).encode())
    write(folder / JSON, (finite_json(without_non_finite(numbers), indent=2) + "\n").encode())


def stack_markdown(comparison: StackComparison) -> str:
    """Return a section of a model card: a row for each model, the conclusions, and the conditions."""
    scores = [comparison.names[name] for name in comparison.models[0].scores]
    columns = ["model", "role", "parameters", *scores, "retention", "rows/s", "speed-up"]
    table = markdown_table(columns, map(_cells, comparison.models), numbers=columns[2:])
    parts = ["## Distillation", "", table, "", *_conclusions(comparison), "", *_conditions(comparison)]
    return "\n".join(parts) + "\n"


def _cells(model: StackResult) -> tuple[str, ...]:
    return (
        model.name,
        model.role,
        f"{model.parameters:,} ({100 * model.parameter_ratio:.1f} %)",
        *map(interval, model.scores.values()),
        "undefined" if model.retention is None else percent(model.retention),
        f"{model.rows_per_second:.1f}",
        f"{model.speedup:.2f}×",
    )


def _conclusions(comparison: StackComparison) -> Iterator[str]:
    metric, student = comparison.names[comparison.metric], comparison.of("student")
    if student is None or student.retention is None:
        return
    yield (
        f"- The student has {100 * student.parameter_ratio:.1f} % of the teacher's parameters and is "
        f"{student.speedup:.2f} times as fast; it retains {percent(student.retention)} of the teacher's "
        f"{metric}."
    )
    if student.gain is not None:
        points = f"{interval(student.gain, sign='+')} points of {metric}"
        yield (
            f"  Against the baseline, which was trained without distillation: {points}, "
            f"{verdict(student.gain)}."
        )


def _conditions(comparison: StackComparison) -> Iterator[str]:
    speed, machine = comparison.speed, comparison.machine
    yield f"- Data: {comparison.data}, {comparison.rows:,} rows."
    yield (
        f"- In brackets: 95 % confidence intervals, from {RESAMPLES:,} bootstrap resamples of the rows "
        "(Koehn, 2004), the same for all models; seed 0."
    )
    yield (
        f"- Speed: median of {speed['rounds']} rounds of {speed['rows']:,} rows, in which models took turns; "
        f"{machine['device']}, CPU threads: {machine['threads']}, torch {machine['torch']}."
    )
