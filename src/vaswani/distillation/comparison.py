"""Compare models with the first of them: size, quality with confidence intervals, decoding speed.

All models are scored on the same bootstrap resamples of the rows (see `evaluation/estimates.py`), so the
intervals of differences, retentions and gains are paired.

R resamples
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from vaswani.data.evenly_spread import evenly_spread
from vaswani.distillation.measuring import (
    FIRST,
    OTHER,
    ROUNDS,
    SPEED_ROWS,
    BaseComparison,
    Measured,
    Score,
    Trial,
    machine_of,
    seconds_in_turns,
)
from vaswani.errors import UserError
from vaswani.evaluation.estimates import PERCENTILES, RESAMPLES
from vaswani.evaluation.resampling import resampled_scores
from vaswani.evaluation.text_metrics import check_task, task_of_metric
from vaswani.evaluation.translator import Evaluation, evaluate
from vaswani.files.run_settings import read_settings
from vaswani.inference.translate.translation import Translator

# Derived from other options, or reported elsewhere.
UNREPORTED_OPTIONS = {"suppress_sequences", "attention_of", "max_length"}

Progress = Callable[[int], object]


@dataclass(frozen=True)
class Candidate:
    """A model to measure, with the search options of its translator."""

    name: str  # name in the report
    translator: Translator
    folder: Path | None = None  # folder of the weight files, to report their size; None if not saved


@dataclass(frozen=True)
class ModelResult(Measured):
    """The measurements of one model; scores are 0 to 100, and gains are in points."""

    dtype: str  # dtype of the weights
    max_length: int  # most tokens of a translation: the option, or less if the model has fewer positions
    untranslated_rows: int  # they count as empty translations
    cut_off_rows: int  # rows whose source was truncated to `max_source_length` tokens
    sentences_per_second: float  # from the median of `seconds`


@dataclass(frozen=True)
class Comparison(BaseComparison):
    """The result of `compare`."""

    models: list[ModelResult]
    signatures: dict[str, str]  # signatures of the metrics that have one
    search: dict[str, Any]  # search options of all models
    bootstrap: dict[str, Any]  # number of resamples, percentiles of the intervals, seed


def load_candidates(names: Sequence[str], **options: Any) -> list[Candidate]:
    """Load models and name them (see `names_in_report`).

    Args:
        names: folders, or names on the Hub.
        options: passed to `Translator.from_pretrained`. Unless `max_source_length` is given, all models use
            the smallest limit among them.

    Raises:
        UserError: a folder is given twice, or cannot be loaded.
    """
    candidates = []
    for name, shown in zip(names, names_in_report(names), strict=True):
        translator = Translator.from_pretrained(name, **options)
        loaded_from = Path(translator.model.name_or_path)  # for a Hub model, its folder in the cache
        candidates.append(Candidate(shown, translator, loaded_from))
    if options.get("max_source_length", "auto") == "auto":
        limits = [each.translator.max_source_length for each in candidates]
        for each in candidates:
            each.translator.sides.max_source_length = min(filter(None, limits), default=None)
    return candidates


def names_in_report(names: Sequence[str]) -> list[str]:
    """Return the names of models' folders, or the names as given if two folders are named alike.

    Raises:
        UserError: a folder is given twice.
    """
    folders = [Path(os.path.realpath(name)) for name in names]
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise UserError(f"{names[number]} is given twice; give each model once")
    shown = [folder.name for folder in folders]
    return shown if len(set(shown)) == len(shown) else list(names)


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
    is_distillation: bool = True,
) -> Comparison:
    """Decode the rows with every model, score the outputs and time the decoding.

    Args:
        teacher: the model that the others are compared with.
        students: one or more models.
        rows: mappings with the texts `source` and `target`.
        data: name of the data, for the report.
        baseline: the same student, trained without distillation.
        metric: the metric of retention and gains, a name in `METRICS`; the other metrics of its task are
            computed too.
        seed: seed of the resamples.
        progress: called with the number of sentences decoded since the last call; the numbers add up to
            `sentences_to_decode`.
        is_distillation: whether the report calls the models teacher and students.

    Raises:
        UserError: no student, no rows, an unknown metric, or models with different search options.
    """
    candidates = [teacher, *students, *([baseline] if baseline else [])]
    roles = roles_of(len(students), baseline is not None, is_distillation)
    translators = [candidate.translator for candidate in candidates]
    _check(students, translators, metric)
    rows, task = list(rows), task_of_metric(metric)
    evaluations = [evaluate(translator, rows, task, progress) for translator in translators]
    # Evenly spread, because the rows may be sorted by length.
    sources = [rows[number]["source"] for number in evenly_spread(len(rows), SPEED_ROWS)]
    seconds = decoding_seconds(translators, sources, progress)

    references = [row["target"] for row in rows]
    scores = [_scores(evaluation, references, task, seed) for evaluation in evaluations]
    trials = [
        Trial(one.name, role, one.translator.model, one.folder, of_model, times)
        for one, role, of_model, times in zip(candidates, roles, scores, seconds, strict=True)
    ]
    return Comparison(
        metric=metric,
        data=data,
        rows=len(rows),
        models=[
            ModelResult.from_trial(
                trial,
                trials,
                metric,
                dtype=str(trial.model.dtype).removeprefix("torch."),
                max_length=translator.max_length,
                untranslated_rows=evaluation.untranslated_rows,
                cut_off_rows=evaluation.cut_off_rows,
                sentences_per_second=len(sources) / trial.median_seconds,
            )
            for trial, translator, evaluation in zip(trials, translators, evaluations, strict=True)
        ],
        signatures=evaluations[0].signatures,
        search=_search(teacher.translator),
        bootstrap={"resamples": RESAMPLES, "percentiles": PERCENTILES, "seed": seed},
        speed={"rows": len(sources), "rounds": ROUNDS},
        machine=machine_of(teacher.translator.model.device),
    )


def roles_of(others: int, has_baseline: bool, is_distillation: bool) -> list[str]:
    """Return the roles of the first model, the others and, if there is one, the baseline."""
    first, other = ("teacher", "student") if is_distillation else (FIRST, OTHER)
    return [first, *[other] * others, *["baseline"] * has_baseline]


def were_distilled(folders: Iterable[Path]) -> bool:
    """Return whether the training of every model had a teacher, as the settings in its folder say."""
    return all(read_settings(folder).get("teacher") for folder in folders)


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
        **translator.reranking_options,
        "banned_phrases": list(translator.banned_phrases),
        "required_phrases": list(translator.required_phrases),
    }
    left_out = always.keys() | UNREPORTED_OPTIONS
    return always | {name: value for name, value in others.items() if value and name not in left_out}


def _scores(evaluation: Evaluation, references: list[str], task: str, seed: int) -> dict[str, Score]:
    texts = [translation.text for translation in evaluation.translations]
    resampled = resampled_scores(texts, references, task, seed)
    return {metric: (score, resampled[metric]) for metric, score in evaluation.scores.items()}


# Speed.


def decoding_seconds(
    translators: Sequence[Translator], sources: Sequence[str], progress: Progress | None = None
) -> list[list[float]]:
    """Return the seconds that each translator takes for all sources in `ROUNDS` rounds; they take turns."""

    def decoding(translator: Translator) -> Callable[[], object]:
        return lambda: list(translator.translate(sources, with_scores=False, progress=progress))

    return seconds_in_turns(list(map(decoding, translators)), ROUNDS)
