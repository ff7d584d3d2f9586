"""Compare students with their teacher: size, quality with confidence intervals, retention, decoding speed.

All models are scored on the same bootstrap resamples of the rows (see `evaluation/confidence.py`), so the
intervals of retentions and gains are paired.

R resamples
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vaswani.data.evenly_spread import evenly_spread
from vaswani.distillation.measuring import (
    ROUNDS,
    SPEED_ROWS,
    ByRole,
    Score,
    gain_of,
    machine_of,
    retention_of,
    seconds_in_turns,
    weight_bytes,
)
from vaswani.errors import UserError
from vaswani.evaluation.confidence import PERCENTILES, RESAMPLES, Estimate, resampled_scores
from vaswani.evaluation.text_metrics import check_task, score_texts, task_of_metric
from vaswani.evaluation.translator import Evaluation, evaluate
from vaswani.inference.translate.translation import Translator

# Derived from other options, or reported elsewhere.
NOT_TOLD = {"suppress_sequences", "attention_of", "max_length"}

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Candidate:
    """A model to measure, with the search options of its translator."""

    name: str  # name in the report
    translator: Translator
    folder: Path | None = None  # folder of the weight files, to report their size; None if not saved


@dataclass(frozen=True)
class ModelResult:
    """The measurements of one model."""

    name: str
    role: str  # "teacher", "student" or "baseline"
    parameters: int  # shared parameters count once
    parameter_ratio: float  # relative to the teacher
    weight_bytes: int | None  # size of the weight files; None if they were not saved
    dtype: str  # dtype of the weights
    max_length: int  # most tokens of a translation: the option, or less if the model has fewer positions
    untranslated_rows: int  # too long for the model; they count as empty translations
    cut_off_rows: int  # rows whose source was truncated to `max_source_length` tokens
    scores: dict[str, Estimate]  # the score in each metric of the task, 0 to 100
    # The score as a fraction of the teacher's, with the paired interval. Resamples in which the teacher
    # scores 0 are left out. None if the teacher scores 0 on all rows.
    retention: Estimate | None
    retentions: dict[str, Estimate | None]  # the retention in each metric
    gain: Estimate | None  # students only: points over the baseline, with the paired interval
    seconds: list[float]  # duration of each timed round
    sentences_per_second: float  # from the median of `seconds`
    speedup: float  # the teacher's median time divided by the model's


@dataclass(frozen=True)
class Comparison(ByRole):
    """The result of `compare`."""

    metric: str  # metric of `retention` and `gain`
    data: str  # name of the data
    rows: int
    models: list[ModelResult]  # the teacher, the students and, if there is one, the baseline
    signatures: dict[str, str]  # signatures of the metrics that have one
    search: dict[str, Any]  # search options of all models
    bootstrap: dict[str, Any]  # number of resamples, percentiles of the intervals, seed
    speed: dict[str, int]  # rows of each timed round, number of rounds
    machine: dict[str, Any]  # device, CPU threads, version of torch


def load_candidates(names: Sequence[str], **options: Any) -> list[Candidate]:
    """Load models and name them after their folders, or by the given names if two folders are named alike.

    Args:
        names: folders, or names on the Hub.
        options: passed to `Translator.from_pretrained`. Unless `max_source_length` is given, all models use
            the smallest limit among them.

    Raises:
        UserError: a folder is given twice, or cannot be loaded.
    """
    folders = [Path(os.path.realpath(name)) for name in names]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{names[number]} is given twice; give each model once")
    differ = len({folder.name for folder in folders}) == len(folders)
    candidates = []
    for name, folder in zip(names, folders, strict=True):
        translator = Translator.from_pretrained(name, **options)
        loaded_from = Path(translator.model.name_or_path)  # for a Hub model, its folder in the cache
        candidates.append(Candidate(folder.name if differ else name, translator, loaded_from))
    if options.get("max_source_length", "auto") == "auto":
        limits = [each.translator.max_source_length for each in candidates]
        for each in candidates:
            each.translator.sides.max_source_length = min(filter(None, limits), default=None)
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
    """Decode the rows with every model, score the outputs and time the decoding.

    Args:
        teacher: the model that the others are compared with.
        students: one or more.
        rows: mappings with the texts `source` and `target`.
        data: name of the data, for the report.
        baseline: the same student, trained without distillation.
        metric: the metric of retention and gains, a name in `METRICS`; the other metrics of its task are
            computed too.
        seed: seed of the resamples.
        progress: called with the number of sentences decoded since the last call; the numbers add up to
            `sentences_to_decode`.

    Raises:
        UserError: no student, no rows, an unknown metric, or models with different search options.
    """
    candidates = [teacher, *students, *([baseline] if baseline else [])]
    roles = ["teacher", *["student"] * len(students), *["baseline"] * (baseline is not None)]
    translators = [candidate.translator for candidate in candidates]
    _check(students, translators, metric)
    rows, task = list(rows), task_of_metric(metric)
    score = partial(score_texts, task=task)
    evaluations = [evaluate(translator, rows, score, progress) for translator in translators]
    # Evenly spread, because the rows may be sorted by length.
    sources = [rows[number]["source"] for number in evenly_spread(len(rows), SPEED_ROWS)]
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
        machine=machine_of(teacher.translator.model.device),
    )


def sentences_to_decode(models: int, rows: int) -> int:
    """The number of sentences that `compare` decodes, for a progress bar."""
    return models * (rows + (1 + ROUNDS) * min(rows, SPEED_ROWS))


def _check(students: Sequence[Candidate], translators: Sequence[Translator], metric: str) -> None:
    check_task(task_of_metric(metric))
    if not students:
        raise UserError("there is no student to compare with the teacher; give at least one")
    searches = [{**_search(each), "device": str(each.model.device)} for each in translators]
    for name in dict.fromkeys(chain.from_iterable(searches)):
        value = searches[0].get(name)
        for search in searches:
            if (other := search.get(name)) != value:
                raise UserError(
                    f"models to compare have {name}={value} and {name}={other}; give all the same"
                )


def _search(translator: Translator) -> dict[str, Any]:
    """The options that must be equal for a fair comparison: these four, and all others that are set."""
    always = {
        "num_beams": translator.options.num_beams,
        "length_penalty": float(translator.options.length_penalty),
        "max_tokens_per_batch": translator.max_tokens_per_batch,
        "max_source_length": translator.max_source_length,
    }
    others = {
        **vars(translator.options),
        **vars(translator.lengths),
        "banned_phrases": list(translator.banned_phrases),
        "required_phrases": list(translator.required_phrases),
    }
    left_out = always.keys() | NOT_TOLD
    return always | {name: value for name, value in others.items() if value and name not in left_out}


def _texts(evaluation: Evaluation) -> list[str]:
    return [translation.text for translation in evaluation.translations]


# Speed.


def decoding_seconds(
    translators: Sequence[Translator], sources: Sequence[str], progress: Progress | None = None
) -> list[list[float]]:
    """Return the seconds that each translator takes for all sources in `ROUNDS` rounds; they take turns."""

    def decoding(translator: Translator) -> Callable[[], object]:
        return lambda: list(translator.translate(sources, with_scores=False, progress=progress))

    return seconds_in_turns(list(map(decoding, translators)), ROUNDS)


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

    def score(self, metric: str) -> Score:
        """Return the score on the rows and the scores on the resampled rows."""
        return self.evaluation.scores[metric], self.resampled[metric]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.seconds)


def _result(
    model: _Measured, teacher: _Measured, baseline: _Measured | None, metric: str, speed_rows: int
) -> ModelResult:
    translator = model.candidate.translator
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
        scores={name: Estimate.from_resamples(*model.score(name)) for name in model.evaluation.scores},
        retention=retention_of(model.score(metric), teacher.score(metric)),
        retentions={
            name: retention_of(model.score(name), teacher.score(name)) for name in model.evaluation.scores
        },
        gain=gain_of(model.score(metric), baseline.score(metric))
        if baseline and model.role == "student"
        else None,
        seconds=model.seconds,
        sentences_per_second=speed_rows / model.median_seconds,
        speedup=teacher.median_seconds / model.median_seconds,
    )
