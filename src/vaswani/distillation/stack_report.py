"""Compare a student of one stack with its teachers and report the size, scores, retention and speed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.distillation.measuring import (
    ROUNDS,
    SPEED_ROWS,
    ByRole,
    Score,
    gain_of,
    machine_of,
    retention_of,
    seconds_in_turns,
    weight_bytes,
)
from vaswani.distillation.report import conclusions, interval, percent
from vaswani.evaluation.confidence import RESAMPLES, Estimate
from vaswani.hub.plain_card import markdown_table
from vaswani.training.config.training_arguments import LOWER_IS_BETTER as LOWER_METRICS

LOWER_IS_BETTER = (*LOWER_METRICS, "bits_per_byte")
Evaluate = Callable[[PreTrainedModel, Dataset], dict[str, Score]]
Predict = Callable[[PreTrainedModel, Dataset], object]


@dataclass(frozen=True)
class Candidate:
    """A model to measure."""

    name: str  # name in the report
    role: str  # "teacher", "student" or "baseline"
    model: PreTrainedModel
    folder: Path | None = None  # folder of the weight files, to report their size


@dataclass(frozen=True)
class StackResult:
    """The measurements of one model; ratios are relative to the first teacher."""

    name: str
    role: str
    parameters: int  # shared parameters count once
    parameter_ratio: float
    weight_bytes: int | None
    scores: dict[str, Estimate]
    retention: Estimate | None  # retention in the metric; None if the teacher scores 0
    retentions: dict[str, Estimate | None]  # retention in each score for which higher is better
    gain: Estimate | None  # students only: difference to the baseline, in the metric's unit
    seconds: list[float]  # duration of each timed round
    rows_per_second: float
    speedup: float


@dataclass(frozen=True)
class StackComparison(ByRole):
    """The result of `compare_stacks`."""

    metric: str
    names: dict[str, str]  # display names of the scores
    data: str
    rows: int
    models: list[StackResult]
    speed: dict[str, int]
    machine: dict[str, Any]


def compare_stacks(
    candidates: Sequence[Candidate],
    evaluate: Evaluate,
    predict: Predict,
    rows: Dataset,
    *,
    metric: str,
    names: Mapping[str, str],
    data: str,
) -> StackComparison:
    """Score all models on the same rows and the same resamples, and time them in turns.

    Args:
        candidates: teachers, the student and, if there is one, the baseline.
        evaluate: returns the scores of a model on rows.
        predict: runs a model on rows; this is timed, without the scores and their resamples.
        rows: tokenized rows.
        metric: the metric of retention and gains.
        names: display names of the scores.
        data: the name of the data, for the report.
    """
    scores = [evaluate(one.model, rows) for one in candidates]
    timed = rows.select(evenly_spread(len(rows), SPEED_ROWS))
    seconds = seconds_in_turns([partial(predict, one.model, timed) for one in candidates], ROUNDS)
    medians = list(map(statistics.median, seconds))
    parameters = [one.model.num_parameters() for one in candidates]
    baseline = scores[-1] if candidates[-1].role == "baseline" else None
    models = [
        StackResult(
            name=one.name,
            role=one.role,
            parameters=parameters[number],
            parameter_ratio=parameters[number] / parameters[0],
            weight_bytes=None if one.folder is None else weight_bytes(one.folder),
            scores={name: Estimate.from_resamples(*score) for name, score in scores[number].items()},
            retention=retention_of(scores[number][metric], scores[0][metric]),
            retentions={
                name: retention_of(score, scores[0][name])
                for name, score in scores[number].items()
                if name not in LOWER_IS_BETTER
            },
            gain=gain_of(scores[number][metric], baseline[metric])
            if baseline and one.role == "student"
            else None,
            seconds=seconds[number],
            rows_per_second=len(timed) / medians[number],
            speedup=medians[0] / medians[number],
        )
        for number, one in enumerate(candidates)
    ]
    return StackComparison(
        metric=metric,
        names={name: names[name] for name in scores[0]},
        data=data,
        rows=len(rows),
        models=models,
        speed={"rows": len(timed), "rounds": ROUNDS},
        machine=machine_of(candidates[0].model.device),
    )


# ------------------------------------------------------------------------------------------------- the report


def stack_markdown(comparison: StackComparison) -> str:
    """Return a section of a model card: a row for each model, the conclusions, and the conditions."""
    scores = [comparison.names[name] for name in comparison.teacher.scores]
    columns = ["model", "role", "parameters", *scores, "retention", "rows/s", "speed-up"]
    table = markdown_table(columns, map(_cells, comparison.models), numbers=columns[2:])
    told = conclusions(comparison, comparison.names[comparison.metric], "works")
    return "\n".join(["## Distillation", "", table, "", *told, "", *_conditions(comparison)]) + "\n"


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
