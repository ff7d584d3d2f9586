"""Format the results of an evaluation: scores with their intervals, and the speed."""

from collections.abc import Mapping
from typing import Any

from vaswani.evaluation.estimates import Estimate

MAX_LABELS = 20  # that are shown


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


def label_lines(labels: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return a line for each label or type of span (see `LabelMetric.by_label`), or for the worst if many."""
    names = list(labels)
    if len(names) > MAX_LABELS:
        names = sorted(names, key=lambda name: labels[name]["f1"])[:MAX_LABELS]
    lines = [
        f"{name}: precision {labels[name]['precision']:.2f}, recall {labels[name]['recall']:.2f}, "
        f"F1 {labels[name]['f1']:.2f} ({labels[name]['support']:,} in the references)"
        for name in names
    ]
    more = len(labels) - len(names)
    return [*lines, f"… and {more:,} labels with higher F1"] if more else lines


def speed_line(count: int, unit: str, seconds: float) -> str:
    """Return the number of units, such as "rows", the time that they took, and the speed."""
    return f"{count:,} {unit} in {seconds:.1f} s ({count / max(seconds, 1e-9):.1f} a second)"


def score_fields(scores: Mapping[str, Estimate]) -> dict[str, Any]:
    """Return the scores as plain JSON values, and their `intervals` by name."""
    values = {name: score.value for name, score in scores.items()}
    return {**values, "intervals": {name: [score.low, score.high] for name, score in scores.items()}}
