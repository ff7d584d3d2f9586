"""Compare models that are no translators, such as a student of one stack with its teachers; report it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.distillation.measuring import (
    ROUNDS,
    SPEED_ROWS,
    BaseComparison,
    Measured,
    Score,
    Trial,
    machine_of,
    seconds_in_turns,
)
from vaswani.distillation.report import cells, intervals_lines, section, speed_line
from vaswani.evaluation.estimates import RESAMPLES


@dataclass(frozen=True)
class StackCandidate:
    """A model to measure."""

    name: str  # name in the report
    role: str  # "teacher", "student", "baseline", `FIRST` or `OTHER`
    model: PreTrainedModel
    scores: dict[str, Score]
    predict: Callable[[Dataset], object]  # runs the model on rows; this is timed, without the scores
    folder: Path | None = None  # folder of the weight files, to report their size
    cut_off_rows: int = 0  # rows that were truncated


@dataclass(frozen=True)
class StackResult(Measured):
    """The measurements of one model; gains are in the unit of the metric."""

    rows_per_second: float  # from the median of `seconds`
    cut_off_rows: int  # rows that were truncated


@dataclass(frozen=True)
class StackComparison(BaseComparison):
    """The result of `compare_stacks`."""

    models: list[StackResult]
    names: dict[str, str]  # display names of the scores
    unit: str  # what is scored, and resampled: "rows", "questions" or "sequences"
    options: dict[str, Any]  # options of all models that the scores depend on
    left_out_rows: int  # rows that not all models can score


def compare_stacks(
    candidates: Sequence[StackCandidate],
    rows: Dataset,
    *,
    metric: str,
    names: Mapping[str, str],
    data: str,
    unit: str = "rows",
    options: Mapping[str, Any] | None = None,
    left_out_rows: int = 0,
) -> StackComparison:
    """Time models in turns, and compare their scores on the same rows and the same resamples.

    With several processes, all must call this; they share the rows, and the speeds are those of all together.

    Args:
        candidates: teachers, the student and, if there is one, the baseline; or models of other origins.
        rows: the rows that were scored, as `predict` takes them.
        metric: the metric of retention and gains.
        names: display names of the scores.
        data: the name of the data, for the report.
        unit: what is scored, and resampled for the intervals.
        options: options of all models that the scores depend on, for the report.
        left_out_rows: number of rows that are not in `rows`, because not all models can score them.
    """
    timed = rows.select(evenly_spread(len(rows), SPEED_ROWS))
    seconds = seconds_in_turns([partial(one.predict, timed) for one in candidates], ROUNDS)
    trials = [
        Trial(one.name, one.role, one.model, one.folder, one.scores, times)
        for one, times in zip(candidates, seconds, strict=True)
    ]
    return StackComparison(
        metric=metric,
        names={name: names[name] for name in candidates[0].scores},
        unit=unit,
        options=dict(options or {}),
        left_out_rows=left_out_rows,
        data=data,
        rows=len(rows),
        models=[
            StackResult.from_trial(
                trial,
                trials,
                metric,
                rows_per_second=len(timed) / trial.median_seconds,
                cut_off_rows=one.cut_off_rows,
            )
            for trial, one in zip(trials, candidates, strict=True)
        ],
        speed={"rows": len(timed), "rounds": ROUNDS},
        machine=machine_of(candidates[0].model.device) | {"processes": PartialState().num_processes},
    )


# ------------------------------------------------------------------------------------------------- the report


def stack_markdown(comparison: StackComparison) -> str:
    """Return a section of a model card: tables with a row for each model, conclusions, and conditions."""
    rows = [cells(model, model.rows_per_second) for model in comparison.models]
    speed, conditions = f"{comparison.unit}/s", _conditions(comparison)
    return section(comparison, comparison.names, rows, ["parameters"], speed, "works", conditions)


def _conditions(comparison: StackComparison) -> Iterator[str]:
    unit = comparison.unit
    yield f"- Data: {comparison.data}, {comparison.rows:,} {unit}."
    if comparison.left_out_rows:
        yield f"- Left out, because not all models can score them: {comparison.left_out_rows:,} {unit}."
    for model in comparison.models:
        if model.cut_off_rows:
            yield f"- Cut off for `{model.name}`: {model.cut_off_rows:,} {unit}."
    yield from intervals_lines(RESAMPLES, seed=0, unit=unit)
    if comparison.options:
        yield f"- Options: {', '.join(f'{name} {value}' for name, value in comparison.options.items())}."
    processes = comparison.machine["processes"]
    details = [f"{processes} processes"] if processes > 1 else []
    yield speed_line(comparison, *details, unit=unit)
