"""Compare a student of one stack with its teachers and report the size, scores, retention and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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

Evaluate = Callable[[PreTrainedModel, Dataset], dict[str, Score]]
Predict = Callable[[PreTrainedModel, Dataset], object]


@dataclass(frozen=True)
class StackCandidate:
    """A model to measure."""

    name: str  # name in the report
    role: str  # "teacher", "student" or "baseline"
    model: PreTrainedModel
    folder: Path | None = None  # folder of the weight files, to report their size


@dataclass(frozen=True)
class StackResult(Measured):
    """The measurements of one model; gains are in the unit of the metric."""

    rows_per_second: float  # from the median of `seconds`


@dataclass(frozen=True)
class StackComparison(BaseComparison):
    """The result of `compare_stacks`."""

    models: list[StackResult]
    names: dict[str, str]  # display names of the scores


def compare_stacks(
    candidates: Sequence[StackCandidate],
    evaluate: Evaluate,
    predict: Predict,
    rows: Dataset,
    *,
    metric: str,
    names: Mapping[str, str],
    data: str,
) -> StackComparison:
    """Score all models on the same rows and the same resamples, and time them in turns.

    With several processes, all must call this; they share the rows, and the speeds are those of all together.

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
    trials = [
        Trial(one.name, one.role, one.model, one.folder, of_model, times)
        for one, of_model, times in zip(candidates, scores, seconds, strict=True)
    ]
    return StackComparison(
        metric=metric,
        names={name: names[name] for name in scores[0]},
        data=data,
        rows=len(rows),
        models=[
            StackResult.from_trial(one, trials, metric, rows_per_second=len(timed) / one.median_seconds)
            for one in trials
        ],
        speed={"rows": len(timed), "rounds": ROUNDS},
        machine=machine_of(candidates[0].model.device) | {"processes": PartialState().num_processes},
    )


# ------------------------------------------------------------------------------------------------- the report


def stack_markdown(comparison: StackComparison) -> str:
    """Return a section of a model card: tables with a row for each model, conclusions, and conditions."""
    rows = [cells(model, model.rows_per_second) for model in comparison.models]
    conditions = _conditions(comparison)
    return section(comparison, comparison.names, rows, ["parameters"], "rows/s", "works", conditions)


def _conditions(comparison: StackComparison) -> Iterator[str]:
    yield f"- Data: {comparison.data}, {comparison.rows:,} rows."
    yield from intervals_lines(RESAMPLES, seed=0)
    processes = comparison.machine["processes"]
    yield speed_line(comparison, *([f"{processes} processes"] if processes > 1 else []))
