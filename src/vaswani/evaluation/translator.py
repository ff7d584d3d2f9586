"""Evaluate a translator: translate a corpus with references and score the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vaswani.errors import UserError
from vaswani.evaluation import score_names
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.final import metric_entries
from vaswani.evaluation.resampling import resampled_scores
from vaswani.evaluation.summary import score_fields, speed_line
from vaswani.evaluation.text_metrics import score_texts
from vaswani.inference.translate.results import Translation
from vaswani.inference.translate.translation import Translator


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Args:
        translations: one for each row, in order.
        scores: the scores by metric.
        signatures: descriptions of how scores were computed, for metrics that have one.
        seconds: time spent on translating.
        estimates: the scores with their 95 % confidence intervals; empty unless requested.
    """

    translations: list[Translation]
    scores: dict[str, float]
    signatures: dict[str, str]
    seconds: float
    estimates: dict[str, Estimate] = field(default_factory=dict)

    @property
    def untranslated_rows(self) -> int:
        """Number of rows that have no translation, because their source is too long, for example."""
        return sum(translation.problem is not None for translation in self.translations)

    @property
    def cut_off_rows(self) -> int:
        """Number of rows whose source was truncated."""
        return sum(translation.source_cut_off for translation in self.translations)

    @property
    def unfinished_rows(self) -> int:
        """Number of rows whose translation ends at the length limit."""
        return sum(translation.cut_off for translation in self.translations)

    def __str__(self) -> str:
        width = max(map(len, self.scores)) + 1
        rows = [
            f"{name:<{width}}{value:>7.2f}  {self._interval(name)}{self.signatures.get(name, '')}"
            for name, value in self.scores.items()
        ]
        rows.append(speed_line(len(self.translations), "rows", self.seconds))
        if problems := [each.problem for each in self.translations if each.problem is not None]:
            rows.append(f"not translated, counted as empty: {len(problems):,}; the first: {problems[0]}")
        if self.cut_off_rows:
            rows.append(f"source cut off: {self.cut_off_rows:,}")
        if self.unfinished_rows:
            rows.append(f"output cut off at the length limit: {self.unfinished_rows:,}")
        return "\n".join(row.rstrip() for row in rows)

    def _interval(self, name: str) -> str:
        return f"{self.estimates[name].interval}  " if name in self.estimates else ""

    def metrics(self) -> dict[str, Any]:
        """Return the scores with their intervals as in `evaluation.json`."""
        return metric_entries(score_names.TEXTS, self.estimates, self.signatures)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the translations as plain JSON values."""
        return {
            "rows": len(self.translations),
            "untranslated_rows": self.untranslated_rows,
            "cut_off_rows": self.cut_off_rows,
            "unfinished_rows": self.unfinished_rows,
            **self.scores,
            **(score_fields(self.estimates) if self.estimates else {}),
            "signatures": self.signatures,
            "seconds": round(self.seconds, 3),
        }


def evaluate(
    translator: Translator,
    rows: Iterable[Mapping[str, str]],
    task: str = "translation",
    progress: Callable[[int], object] | None = None,
    with_intervals: bool = False,
) -> Evaluation:
    """Translate the `source` of each row and score the translations against the `target`s.

    A source that cannot be translated, because it is too long, for example, counts as an empty translation.

    Args:
        translator: the model with its options.
        rows: mappings with the texts `source` and `target`.
        task: selects the metrics (see `score_texts`).
        progress: is called with the number of rows of each finished batch.
        with_intervals: also compute the confidence intervals of the scores.

    Raises:
        UserError: there are no rows.
    """
    sources, references = [], []
    for row in rows:
        sources.append(row["source"])
        references.append(row["target"])
    if not sources:
        raise UserError("there are no rows to evaluate on; check the corpus and its split")
    start = time.perf_counter()
    translations = list(translator.translate(sources, with_scores=False, progress=progress))
    seconds = time.perf_counter() - start
    texts = [translation.text for translation in translations]
    scores, signatures = score_texts(texts, references, task)
    resampled = resampled_scores(texts, references, task) if with_intervals else {}
    estimates = {name: Estimate.from_resamples(scores[name], found) for name, found in resampled.items()}
    return Evaluation(translations, scores, signatures, seconds, estimates)
