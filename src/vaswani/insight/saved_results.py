"""Read the scores, sizes and speeds of models that evaluations and distillations have written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaswani.errors import UserError, one_line
from vaswani.evaluation import score_names
from vaswani.evaluation.estimates import Estimate
from vaswani.files.json_files import read_object
from vaswani.files.run_files import EVALUATION_FILE, REPORT_DATA


@dataclass(frozen=True)
class MeasuredModel:
    """The measurements of a model.

    Args:
        name: name for the legend.
        role: "teacher", "student" or "baseline" of a distillation; "first" for the model that others were
            compared with; else "model".
        parameters: number of parameters.
        speed: rows per second; None if unknown.
        scores: with their intervals, by metric.
        retentions: fractions of the teacher's or first model's scores, with their intervals, by metric.
        names: display names by metric.
        rows: number of rows scored; None if unknown.
        data: the name of these rows, "SPLIT of DATA"; None if unknown.
        hashes: SHA-256 of the files that hold them; empty if unknown.
    """

    name: str
    role: str
    parameters: int
    speed: float | None
    scores: dict[str, Estimate]
    retentions: dict[str, Estimate] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=lambda: score_names.TEXTS)
    rows: int | None = None
    data: str | None = None
    hashes: tuple[str, ...] = ()


def read_measured(path: Path) -> list[MeasuredModel]:
    """Return the measured models of a file or folder.

    Args:
        path: a report of `vaswani distill` or `vaswani compare`, or its folder, for all models in it; or the
            folder of an evaluated training.

    Raises:
        UserError: the path is none of these, or cannot be read.
    """
    if path.is_dir() and (path / REPORT_DATA).exists():
        path = path / REPORT_DATA
    if path.is_dir():
        return [_read_run(path)]
    try:
        return _read_report(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {one_line(error)}"
        )
        raise UserError(
            f"{path} cannot be read as a report of a comparison ({reason}); give a {REPORT_DATA} that "
            "vaswani distill or compare has written, or the folder of a training"
        ) from error


def _read_report(report: dict[str, Any]) -> list[MeasuredModel]:
    names = report.get("names", score_names.TEXTS)
    return [
        MeasuredModel(
            name=model["name"],
            role=model["role"],
            parameters=model["parameters"],
            speed=model.get("sentences_per_second", model.get("rows_per_second")),
            scores=_estimates(model["scores"]),
            retentions=_estimates(model.get("retentions", {report["metric"]: model["retention"]})),
            names=names,
            rows=report.get("rows"),
            data=report.get("data"),
        )
        for model in report["models"]
    ]


def _read_run(folder: Path) -> MeasuredModel:
    """Return the model of a training, with the speed of its final evaluation if the scores are from there."""
    if not (folder / EVALUATION_FILE).exists():
        raise UserError(
            f"{folder} has neither {EVALUATION_FILE} nor {REPORT_DATA}; give the folder of a training that "
            "was evaluated (evaluate_test), or of a distillation"
        )
    # These import transformers, which reports do not need.
    from vaswani.hub.card import evaluated_data
    from vaswani.hub.run_metadata import read_run_metadata

    run = read_run_metadata(folder)
    metrics, split = run.evaluation.get("metrics", {}), run.evaluation.get("split", "test")
    results = folder / f"{split}_results.json"
    speed = None
    if results.exists() and "data" not in run.evaluation:  # which `vaswani evaluate --save_scores` writes
        speed = read_object(results).get(f"{split}_samples_per_second")
    return MeasuredModel(
        name=folder.resolve().name,
        role="model",
        parameters=run.num_parameters,
        speed=speed,
        scores=_estimates(metrics),
        names={metric: entry["name"] for metric, entry in metrics.items()},
        rows=run.evaluation.get("rows"),
        data=f"{split} of {evaluated_data(run)}",
        hashes=() if "data" in run.evaluation else _hashes(run.corpus.get(split)),
    )


def _hashes(recorded: Any) -> tuple[str, ...]:
    """Return the SHA-256 of the files of a split, as `corpus.json` records it; empty if it records none."""
    files = recorded.get("files", []) if isinstance(recorded, dict) else []
    return tuple(file["sha256"] for file in files if "sha256" in file)


def _estimates(entries: Mapping[str, Any]) -> dict[str, Estimate]:
    """Return the estimates that have a value."""
    return {
        metric: Estimate(entry["value"], entry["low"], entry["high"])
        for metric, entry in entries.items()
        if entry is not None and entry["value"] is not None
    }
