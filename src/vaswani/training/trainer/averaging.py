"""Which checkpoints of a run `vaswani average` averages: the last, or the best."""

from __future__ import annotations

import math
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from vaswani.errors import UserError
from vaswani.files.json_files import read_object
from vaswani.files.run_files import MANIFEST
from vaswani.hub.hashes import check_whole
from vaswani.training.trainer.checkpoints import checkpoints


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the newest checkpoints of a run, the oldest of them first.

    Raises:
        UserError: there are fewer.
    """
    return _checkpoints(run, count)[-count:]


def best_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the best checkpoints of a run by its `metric_for_best_model`, the oldest of them first.

    Of equal ones the older is better. Those that were not evaluated when they were saved do not count.

    Raises:
        UserError: the run has no such metric, fewer checkpoints were evaluated, or one is incomplete.
    """
    found = _checkpoints(run, count)
    for path in found:
        check_whole(path)
    name, greater_is_better = _metric(found[-1])
    scores = {path: score for path in found if (score := _score(path, name)) is not None}
    if len(scores) < count:
        raise UserError(
            f"{run} has {len(scores)} checkpoints that were evaluated by {name}, and {count} are to be "
            "averaged; ask for fewer, or use --last"
        )
    best = sorted(scores, key=lambda path: scores[path], reverse=greater_is_better)[:count]
    return [path for path in found if path in best]


def _checkpoints(run: Path, count: int) -> list[Path]:
    """Return the checkpoints of a run, the oldest first; raise a UserError if they are too few."""
    if not run.is_dir():
        raise UserError(f"{run} is not a folder; give the folder of a run, with its checkpoints")
    try:
        found = checkpoints(run)[::-1]
    except OSError as error:
        raise UserError(f"{run} cannot be read ({error.strerror}); check its permissions") from error
    if len(found) < count:
        raise UserError(
            f"{run} has {len(found)} checkpoints, and {count} are to be averaged; ask for fewer, or keep "
            "more in training (save_total_limit)"
        )
    return found


def _metric(checkpoint: Path) -> tuple[str, bool]:
    """Return the name of the metric that a run ranks its models by, and whether a greater one is better."""
    manifest = read_object(checkpoint / MANIFEST)
    settings = {**manifest.get("library_defaults", {}), **manifest.get("settings", {})}
    name = settings.get("metric_for_best_model")
    if name is None:
        raise UserError(
            f"the run of {checkpoint} has no metric_for_best_model to rank its checkpoints by; use --last, "
            "or name checkpoints"
        )
    greater = settings.get("greater_is_better")
    return name.removeprefix("eval_"), not name.endswith("loss") if greater is None else greater


def _score(checkpoint: Path, name: str) -> float | None:
    """Return the metric of the model in a checkpoint; None if it was not evaluated or is no number."""
    state = read_object(checkpoint / TRAINER_STATE_NAME)
    scores = [
        entry[f"eval_{name}"]
        for entry in state["log_history"]
        if entry.get("step") == state["global_step"] and f"eval_{name}" in entry
    ]
    return scores[-1] if scores and math.isfinite(scores[-1]) else None
