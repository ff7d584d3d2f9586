"""Format the results of an evaluation: scores with their intervals, and the speed."""

from collections.abc import Mapping
from typing import Any

from vaswani.evaluation.confidence import Estimate


def score_lines(names: Mapping[str, str], scores: Mapping[str, Estimate]) -> list[str]:
    """Return a line for each score, with its name for display."""
    return [_score_line(names[name], score) for name, score in scores.items()]


def metric_lines(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of `score_lines` for the metrics of `evaluation.json` (see `metric_entries`)."""
    return [
        _score_line(metric["name"], Estimate(metric["value"], metric["low"], metric["high"]))
        for metric in metrics.values()
    ]


def _score_line(name: str, score: Estimate) -> str:
    return f"{name} {score.value:.2f} {score.interval}"


def type_lines(types: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for the spans of each type (see `scores_by_type`)."""
    return [
        f"{name}: precision {found['precision']:.2f}, recall {found['recall']:.2f}, F1 {found['f1']:.2f} "
        f"({found['spans']:,} spans)"
        for name, found in types.items()
    ]


def speed_line(count: int, unit: str, seconds: float) -> str:
    """Return the number of units, such as "rows", the time that they took, and the speed."""
    return f"{count:,} {unit} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f} a second)"


def score_fields(scores: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the scores as plain JSON values, and their `intervals` by name."""
    values = {name: score.value for name, score in scores.items()}
    return {**values, "intervals": {name: [score.low, score.high] for name, score in scores.items()}}
