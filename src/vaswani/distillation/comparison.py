"""Measuring students against their teacher: size, quality with confidence, retention and decoding speed.

The same bootstrap resamples of the rows serve every model (see `evaluation/confidence.py`), so the intervals
of retentions and differences are paired.

R resamples
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani.data.evenly_spread import evenly_spread
from vaswani.errors import UserError
from vaswani.evaluation.confidence import PERCENTILES, RESAMPLES, Estimate, resampled_scores
from vaswani.evaluation.text_metrics import check_task, score_texts, task_of_metric
from vaswani.evaluation.translator import Evaluation, evaluate
from vaswani.inference.translate.translation import Translator

SPEED_ROWS = 500  # most rows that speed is measured on
ROUNDS = 5  # that are timed, after one of warm-up

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Candidate:
    """A model to be measured.

    Args:
        name: how the report calls it.
        translator: the model with its options of the search.
        folder: where its weights lie, for their size; None if they were not saved.
    """

    name: str
    translator: Translator
    folder: Path | None = None


@dataclass(frozen=True)
class ModelResult:
    """What was measured of one model.

    Args:
        name: of the candidate.
        role: "teacher", "student" or "baseline".
        parameters: their number; those that layers share count once.
        parameter_ratio: to the teacher's.
        weight_bytes: size of the weight files; None if they were not saved.
        dtype: of the weights.
        max_length: most tokens of a translation: positions may limit it more than the option does.
        untranslated_rows: those too long for the model, which count as empty.
        cut_off_rows: those of which it read only `max_source_length` tokens.
        scores: of each metric of the task, 0 to 100.
        retention: the comparison's metric as a fraction of the teacher's, with the paired interval; None if
            the teacher scores 0. Resamples in which the teacher scores 0 are left out.
        gain: of a student over the baseline, in points of the metric, with the paired interval.
        seconds: of each timed round.
        sentences_per_second: from the median of `seconds`.
        speedup: ratio of the teacher's median to the model's.
    """

    name: str
    role: str
    parameters: int
    parameter_ratio: float
    weight_bytes: int | None
    dtype: str
    max_length: int
    untranslated_rows: int
    cut_off_rows: int
    scores: dict[str, Estimate]
    retention: Estimate | None
    gain: Estimate | None
    seconds: list[float]
    sentences_per_second: float
    speedup: float


@dataclass(frozen=True)
class Comparison:
    """What `compare` measured.

    Args:
        metric: the name of the one that retention and gains are of.
        data: what the rows are.
        rows: their number.
        models: the teacher, the students and, if there is one, the baseline.
        signatures: of the metrics that have one.
        search: options that all models were decoded with.
        bootstrap: number of resamples, the percentiles that intervals end at, seed.
        speed: rows that were decoded in each timed round, and number of rounds.
        machine: device, CPU threads and version of torch.
    """

    metric: str
    data: str
    rows: int
    models: list[ModelResult]
    signatures: dict[str, str]
    search: dict[str, Any]
    bootstrap: dict[str, Any]
    speed: dict[str, int]
    machine: dict[str, Any]

    @property
    def teacher(self) -> ModelResult:
        """The first of the models."""
        return self.models[0]

    @property
    def students(self) -> list[ModelResult]:
        """One or more, as they were given."""
        return [model for model in self.models if model.role == "student"]

    @property
    def baseline(self) -> ModelResult | None:
        """The student that was trained without distillation."""
        return self.models[-1] if self.models[-1].role == "baseline" else None


def load_candidates(names: Sequence[str], **options: Any) -> list[Candidate]:
    """Load models, to be called by the names of their folders if these differ and else by their paths.

    Args:
        names: folders, or names on the Hub.
        options: those of `Translator.from_pretrained`. Of their own limits on the source, all models take the
            shortest.

    Raises:
        UserError: a folder given twice, or one that cannot be loaded.
    """
    folders = [Path(os.path.realpath(name)) for name in names]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{names[number]} is given twice; give each model once")
    differ = len({folder.name for folder in folders}) == len(folders)
    candidates = []
    for name, folder in zip(names, folders, strict=True):
        translator = Translator.from_pretrained(name, **options)
        loaded_from = Path(translator.model.name_or_path)  # of a model on the Hub, the folder in its cache
        candidates.append(Candidate(folder.name if differ else name, translator, loaded_from))
    if options.get("max_source_length", "auto") == "auto":
        limits = [each.translator.max_source_length for each in candidates]
        for each in candidates:
            each.translator.max_source_length = min(filter(None, limits), default=None)
    return candidates


def compare(
    teacher: Candidate,
    students: Sequence[Candidate],
    rows: Iterable[Mapping[str, str]],
    *,
    data: str,
    baseline: Candidate | None = None,
    metric: str = "bleu",
    seed: int = 0,
    progress: Progress | None = None,
) -> Comparison:
    """Decode the rows with every model and measure them all.

    Args:
        teacher: what the others are measured against.
        students: one or more.
        rows: mappings with the texts `source` and `target`.
        data: what the rows are, for the report.
        baseline: the same student, trained without distillation.
        metric: a name of `METRICS`, that retention and gains are of; the others of its task are measured too.
        seed: of the resamples.
        progress: is told of so many more sentences decoded, of `sentences_to_decode`.

    Raises:
        UserError: no student, no rows, an unknown metric, or models to be decoded in different ways.
    """
    candidates = [teacher, *students, *([baseline] if baseline else [])]
    roles = ["teacher", *["student"] * len(students), *["baseline"] * (baseline is not None)]
    translators = [candidate.translator for candidate in candidates]
    _check(students, translators, metric)
    rows, task = list(rows), task_of_metric(metric)
    score = partial(score_texts, task=task)
    evaluations = [evaluate(translator, rows, score, progress) for translator in translators]
    sources = [rows[number]["source"] for number in evenly_spread(len(rows), SPEED_ROWS)]  # may be sorted
    seconds = decoding_seconds(translators, sources, progress)

    references = [row["target"] for row in rows]
    resampled = [resampled_scores(_texts(evaluation), references, task, seed) for evaluation in evaluations]
    measured = list(map(_Measured, candidates, roles, evaluations, resampled, seconds))
    without_distillation = measured[-1] if baseline else None
    return Comparison(
        metric=metric,
        data=data,
        rows=len(rows),
        models=[_result(one, measured[0], without_distillation, metric, len(sources)) for one in measured],
        signatures=evaluations[0].signatures,
        search=_search(teacher.translator),
        bootstrap={"resamples": RESAMPLES, "percentiles": PERCENTILES, "seed": seed},
        speed={"rows": len(sources), "rounds": ROUNDS},
        machine=_machine(teacher.translator.model.device),
    )


def sentences_to_decode(models: int, rows: int) -> int:
    """How many sentences `compare` decodes in all, for a progress bar."""
    return models * (rows + (1 + ROUNDS) * min(rows, SPEED_ROWS))


def _check(students: Sequence[Candidate], translators: Sequence[Translator], metric: str) -> None:
    check_task(task_of_metric(metric))
    if not students:
        raise UserError("there is no student to compare with the teacher; give at least one")
    searches = [{**_search(each), "device": str(each.model.device)} for each in translators]
    for name, value in searches[0].items():
        for search in searches:
            if search[name] != value:
                raise UserError(
                    f"models to compare have {name}={value} and {name}={search[name]}; give all the same"
                )


def _search(translator: Translator) -> dict[str, Any]:
    """The options that must be the same for a fair comparison."""
    return {
        "num_beams": translator.num_beams,
        "length_penalty": float(translator.length_penalty),
        "max_tokens_per_batch": translator.max_tokens_per_batch,
        "max_source_length": translator.max_source_length,
    }


def _machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"device": name, "threads": torch.get_num_threads(), "torch": str(torch.__version__)}


def _texts(evaluation: Evaluation) -> list[str]:
    return [translation.text for translation in evaluation.translations]


# Speed.


def decoding_seconds(
    translators: Sequence[Translator], sources: Sequence[str], progress: Progress | None = None
) -> list[list[float]]:
    """Seconds that each translator takes for all sources, `ROUNDS` times; they take turns.

    What else happens on the machine so meets them all alike. A round of warm-up comes first.
    """
    seconds: list[list[float]] = [[] for _ in translators]
    for _ in range(1 + ROUNDS):
        for translator, times in zip(translators, seconds, strict=True):
            start = time.perf_counter()
            list(translator.translate(sources, with_scores=False, progress=progress))
            times.append(time.perf_counter() - start)
    return [times[1:] for times in seconds]


# Results.


@dataclass(frozen=True)
class _Measured:
    candidate: Candidate
    role: str
    evaluation: Evaluation
    resampled: dict[str, np.ndarray]  # scores [R] of each metric
    seconds: list[float]

    @property
    def parameters(self) -> int:
        return self.candidate.translator.model.num_parameters()

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


def _result(
    model: _Measured, teacher: _Measured, baseline: _Measured | None, metric: str, speed_rows: int
) -> ModelResult:
    translator, scores = model.candidate.translator, model.evaluation.scores
    return ModelResult(
        name=model.candidate.name,
        role=model.role,
        parameters=model.parameters,
        parameter_ratio=model.parameters / teacher.parameters,
        weight_bytes=None if model.candidate.folder is None else weight_bytes(model.candidate.folder),
        dtype=str(translator.model.dtype).removeprefix("torch."),
        max_length=translator.max_length,
        untranslated_rows=model.evaluation.untranslated_rows,
        cut_off_rows=model.evaluation.cut_off_rows,
        scores={
            name: Estimate.from_resamples(score, model.resampled[name]) for name, score in scores.items()
        },
        retention=_retention(model, teacher, metric),
        gain=_gain(model, baseline, metric) if baseline and model.role == "student" else None,
        seconds=model.seconds,
        sentences_per_second=speed_rows / model.median_seconds,
        speedup=teacher.median_seconds / model.median_seconds,
    )


def _retention(model: _Measured, teacher: _Measured, metric: str) -> Estimate | None:
    if teacher.evaluation.scores[metric] == 0:
        return None
    ratio = model.evaluation.scores[metric] / teacher.evaluation.scores[metric]
    defined = teacher.resampled[metric] > 0
    return Estimate.from_resamples(
        ratio, model.resampled[metric][defined] / teacher.resampled[metric][defined]
    )


def _gain(model: _Measured, baseline: _Measured, metric: str) -> Estimate:
    return Estimate.from_resamples(
        model.evaluation.scores[metric] - baseline.evaluation.scores[metric],
        model.resampled[metric] - baseline.resampled[metric],
    )


def weight_bytes(folder: Path) -> int:
    """Size of the weight files in a folder: of the safetensors or, where there are none, of the pickled."""
    files = list(folder.glob("model*.safetensors")) or list(folder.glob("pytorch_model*.bin"))
    return sum(file.stat().st_size for file in files)
