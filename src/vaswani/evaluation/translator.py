"""Evaluate a translator: translate a corpus with references and score the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vaswani.errors import UserError
from vaswani.inference.translate.translation import Translation, Translator

Scorer = Callable[[list[str], list[str]], tuple[dict[str, float], dict[str, str]]]


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Args:
        translations: one for each row, in order.
        scores: by metric.
        signatures: by metric, where there are any; they describe how a score was computed.
        seconds: spent on translating.
    """

    translations: list[Translation]
    scores: dict[str, float]
    signatures: dict[str, str]
    seconds: float

    @property
    def untranslated_rows(self) -> int:
        """Rows whose source is too long for the model."""
        return sum(translation.problem is not None for translation in self.translations)

    @property
    def cut_off_rows(self) -> int:
        """Rows whose source was truncated."""
        return sum(translation.source_cut_off for translation in self.translations)

    def __str__(self) -> str:
        rows = [
            f"{name:<12}{value:>7.2f}  {self.signatures.get(name, '')}" for name, value in self.scores.items()
        ]
        count, speed = len(self.translations), len(self.translations) / max(self.seconds, 1e-9)
        rows.append(f"{count:,} rows in {self.seconds:.1f} s ({speed:.1f} a second)")
        if self.untranslated_rows:
            rows.append(f"too long, counted as empty: {self.untranslated_rows:,}")
        if self.cut_off_rows:
            rows.append(f"source cut off: {self.cut_off_rows:,}")
        return "\n".join(row.rstrip() for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the translations as plain JSON values."""
        unread = {"untranslated_rows": self.untranslated_rows, "cut_off_rows": self.cut_off_rows}
        rows = {"rows": len(self.translations), **unread}
        return {**rows, **self.scores, "signatures": self.signatures, "seconds": round(self.seconds, 3)}


def evaluate(
    translator: Translator,
    rows: Iterable[Mapping[str, str]],
    score: Scorer,
    progress: Callable[[int], object] | None = None,
) -> Evaluation:
    """Translate the `source` of each row and score the translations against the `target`s.

    A source that is too long for the model counts as an empty translation.

    Args:
        translator: the model with its options.
        rows: mappings with the texts `source` and `target`.
        score: returns scores and signatures for translations and references.
        progress: is called with the number of rows of each finished batch.

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
    scores, signatures = score([translation.text for translation in translations], references)
    return Evaluation(translations, scores, signatures, seconds)
