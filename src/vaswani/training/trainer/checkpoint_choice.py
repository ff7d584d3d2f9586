"""Select the checkpoints of a run that `vaswani average` averages: the last, or the best."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

from vaswani.errors import UserError
from vaswani.evaluation.score_names import is_lower_better
from vaswani.files.json_files import read_object
from vaswani.files.run_files import LOG_FILE, MANIFEST, checkpoints
from vaswani.hub.hashes import check_whole

PREFIX = "eval_"
COSTS = ("runtime", "per_second", "model_preparation_time")  # logged with an evaluation, but not metrics


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return the newest checkpoints of a run, the oldest of them first.

    Raises:
        UserError: there are fewer.
    """
    return _checkpoints(run, count)[-count:]


def best_checkpoints(run: Path, count: int, metric: str | None = None) -> list[Path]:
    """Return the best checkpoints of a run, the oldest of them first.

    Of two equal checkpoints, the older one is better. Checkpoints that were not evaluated when they were
    saved do not count.

    Args:
        run: the folder of the run.
        count: number of checkpoints.
        metric: metric of the evaluations in training, such as bleu. Greater is better, except for losses and
            `LOWER_IS_BETTER`. None means the run's `metric_for_best_model`.

    Raises:
        UserError: the run has no such metric, fewer checkpoints were evaluated, or one is incomplete.
    """
    found = _checkpoints(run, count)
    for path in found:
        check_whole(path)
    name, greater_is_better = _metric(found[-1]) if metric is None else _named(metric)
    evaluations = {path: _evaluation(path) for path in found}
    scores = {path: scores[name] for path, scores in evaluations.items() if name in scores}
    if not scores and (known := sorted({*chain(*evaluations.values())})):
        raise UserError(f"no checkpoint of {run} was evaluated by {name}; expected one of {', '.join(known)}")
    if len(scores) < count:
        raise UserError(
            f"{run} has {len(scores)} checkpoints that were evaluated by {name}, fewer than the {count} to "
            "average; ask for fewer, or use --last"
        )
    best = sorted(scores, key=lambda path: scores[path], reverse=greater_is_better)[:count]
    return [path for path in found if path in best]


def _checkpoints(run: Path, count: int) -> list[Path]:
    """Return the checkpoints of a run, the oldest first; raise a UserError if there are too few."""
    if not run.is_dir():
        raise UserError(f"{run} is not a folder; give the folder of a run, with its checkpoints")
    try:
        found = checkpoints(run)[::-1]
    except OSError as error:
        raise UserError(f"{run} cannot be read ({error.strerror}); check its permissions") from error
    if len(found) < count:
        raise UserError(
            f"{run} has {len(found)} checkpoints, fewer than the {count} to average; ask for fewer, or keep "
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
            f"the run of {checkpoint} has no metric_for_best_model to rank its checkpoints by; give "
            "--metric, such as bleu, or use --last"
        )
    name, greater_is_better = _named(name)
    greater = settings.get("greater_is_better")
    return name, greater_is_better if greater is None else greater


def _named(metric: str) -> tuple[str, bool]:
    """Return a metric without "eval_", and whether a greater one is better."""
    name = metric.removeprefix(PREFIX)
    return name, not is_lower_better(name)


def _evaluation(checkpoint: Path) -> dict[str, float]:
    """Return the finite metrics of the model in a checkpoint; empty if it was not evaluated."""
    state = read_object(checkpoint / LOG_FILE)
    logged = [entry for entry in state["log_history"] if entry.get("step") == state["global_step"]]
    last = {name: value for entry in logged for name, value in entry.items() if name.startswith(PREFIX)}
    return {
        name.removeprefix(PREFIX): value
        for name, value in last.items()
        if not name.endswith(COSTS) and math.isfinite(value)
    }
