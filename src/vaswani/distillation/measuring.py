"""Measurements of every comparison of students with a teacher: retention, gain, speed, size and machine.

R resamples
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani.evaluation.confidence import Estimate

SPEED_ROWS = 500  # most rows of a timed round
ROUNDS = 5  # timed, after one of warm-up

Score = tuple[float, np.ndarray]  # score on the rows, and on resamples of them [R], the same for all models


def retention_of(score: Score, teachers: Score) -> Estimate | None:
    """Return the score as a fraction of the teacher's, with the paired interval.

    Returns None unless the teacher's score is positive. Resamples in which it is not are left out.
    """
    if not teachers[0] > 0:
        return None
    defined = teachers[1] > 0
    return Estimate.from_resamples(score[0] / teachers[0], score[1][defined] / teachers[1][defined])


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


class ByRole:
    """The models of a comparison by their role: "teacher", "student" or "baseline"."""

    models: list[Any]  # teachers, students and, if there is one, the baseline

    @property
    def teacher(self) -> Any:
        """The model that the others are compared with."""
        return self.models[0]

    @property
    def students(self) -> list[Any]:
        """The students, one or more, in the given order."""
        return [model for model in self.models if model.role == "student"]

    @property
    def baseline(self) -> Any:
        """The student that was trained without distillation; None if there is none."""
        return self.models[-1] if self.models[-1].role == "baseline" else None
