"""Measurements of every comparison of models: differences, retention, gain, speed, size and machine.

The first model is the one that the others are compared with: a teacher, or any model.

R resamples
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PreTrainedModel

from vaswani.evaluation.estimates import Difference, Estimate
from vaswani.evaluation.score_names import is_lower_better

if TYPE_CHECKING:
    from typing_extensions import Self

SPEED_ROWS = 500  # most rows of a timed round
ROUNDS = 5  # timed, after one of warm-up

# The roles of models in a comparison that is no distillation; in others: "teacher", "student" and "baseline".
FIRST, OTHER = "first", "model"

Score = tuple[float, np.ndarray]  # score on the rows, and on resamples of them [R], the same for all models


def retention_of(score: Score, teachers: Score) -> Estimate | None:
    """Return the score as a fraction of the teacher's, with the paired interval.

    Returns None unless the teacher's score is positive. Resamples in which it is not are left out.
    """
    if not teachers[0] > 0:
        return None
    defined = teachers[1] > 0
    return Estimate.from_resamples(score[0] / teachers[0], score[1][defined] / teachers[1][defined])


def _differences(scores: dict[str, Score], others: dict[str, Score]) -> dict[str, Difference]:
    return {name: Difference.between(*scores[name], *others[name]) for name in scores}


def gain_of(score: Score, baselines: Score) -> Estimate:
    """The score minus the baseline's, with the paired interval."""
    return Estimate.from_resamples(score[0] - baselines[0], score[1] - baselines[1])


def seconds_in_turns(actions: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """The seconds that each action takes in each round.

    After a round of warm-up the actions take turns, so that other load on the machine slows all alike.
    """
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(1 + rounds):
        for action, times in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            times.append(time.perf_counter() - start)
    return [times[1:] for times in seconds]


def weight_bytes(folder: Path) -> int:
    """Size of the weight files in a folder: safetensors or, if there are none, pickled weights."""
    files = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in files)


def machine_of(device: torch.device) -> dict[str, Any]:
    """The device, the CPU threads and the version of torch, for a report."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}


@dataclass(frozen=True)
class Trial:
    """A model of a comparison, with its raw scores and times."""

    name: str
    role: str  # "teacher", "student", "baseline", `FIRST` or `OTHER`
    model: PreTrainedModel
    folder: Path | None  # folder of the weight files, to report their size; None if not saved
    scores: dict[str, Score]
    seconds: list[float]  # duration of each timed round

    @property
    def median_seconds(self) -> float:
        """The median of `seconds`."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Measured:
    """The measurements of one model that every comparison reports."""

    name: str  # name in the report
    role: str  # "teacher", "student", "baseline", `FIRST` or `OTHER`
    parameters: int  # shared parameters count once
    parameter_ratio: float  # relative to the first model
    weight_bytes: int | None  # size of the weight files; None if they were not saved
    scores: dict[str, Estimate]  # the score in each metric
    differences: dict[str, Difference]  # to the first model in each metric; empty for the first model
    # The score as a fraction of the first model's, with the paired interval. Resamples in which that model's
    # score is not above 0 are left out. None if its score on all rows is not above 0.
    retention: Estimate | None
    retentions: dict[str, Estimate | None]  # the retention in each metric for which higher is better
    gain: Estimate | None  # students only: difference to the baseline, with the paired interval
    seconds: list[float]  # duration of each timed round
    speedup: float  # the first model's median time divided by the model's

    @classmethod
    def from_trial(cls, trial: Trial, trials: Sequence[Trial], metric: str, **fields: Any) -> Self:
        """Compare a model with the first and, if there is one, with the baseline.

        Args:
            trial: the model.
            trials: all models: the teacher, or several, first, and the baseline last.
            metric: the metric of `retention` and `gain`.
            fields: the fields that a subclass adds.
        """
        first, baseline = trials[0], trials[-1] if trials[-1].role == "baseline" else None
        parameters = trial.model.num_parameters()
        retentions = {name: retention_of(trial.scores[name], first.scores[name]) for name in trial.scores}
        return cls(
            name=trial.name,
            role=trial.role,
            parameters=parameters,
            parameter_ratio=parameters / first.model.num_parameters(),
            weight_bytes=None if trial.folder is None else weight_bytes(trial.folder),
            scores={name: Estimate.from_resamples(*score) for name, score in trial.scores.items()},
            differences={} if trial is first else _differences(trial.scores, first.scores),
            retention=retentions[metric],
            retentions={name: each for name, each in retentions.items() if not is_lower_better(name)},
            gain=gain_of(trial.scores[metric], baseline.scores[metric])
            if baseline and trial.role == "student"
            else None,
            seconds=trial.seconds,
            speedup=first.median_seconds / trial.median_seconds,
            **fields,
        )


@dataclass(frozen=True)
class BaseComparison:
    """The result of every comparison."""

    metric: str  # metric of `retention` and `gain`
    data: str  # name of the data
    rows: int
    models: list[Any]  # teachers, students and, if there is one, the baseline; or models of other origins
    speed: dict[str, int]  # rows of each timed round, number of rounds
    machine: dict[str, Any]  # device, CPU threads, version of torch

    @property
    def is_distillation(self) -> bool:
        """Whether students are compared with their teacher, and not models of other origins."""
        return bool(self.models[0].role != FIRST)

    @property
    def teacher(self) -> Any:
        """The model that the others are compared with, whether it is their teacher or not."""
        return self.models[0]

    @property
    def students(self) -> list[Any]:
        """The students, one or more, or the models that are compared with the first, in the given order."""
        return [model for model in self.models if model.role in ("student", OTHER)]

    @property
    def baseline(self) -> Any:
        """The student that was trained without distillation; None if there is none."""
        return self.models[-1] if self.models[-1].role == "baseline" else None
