"""Noisy-channel reranking (Yee et al., 2019, D19-1571; Ng et al., 2019, W19-5333).

A model of P(Y|X) can prefer a fluent translation that leaves out a part of its source. A second model, of the
other direction, notices that: the source is not likely given such a translation. By Bayes' rule P(Y|X) is
proportional to P(X|Y) · P(Y), so both models judge the same, and their errors differ. The hypotheses of a
search, or samples, are ranked by

    log P(Y|X) / lp(Y) + λ · log P(X|Y) / lp(X),

where lp is GNMT's length penalty. Neither term counts a first token that its model forces, such as the tag of
a language: it says nothing about the translation. Yee et al. also add log P(Y) of a language model, for which
much more text is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from vaswani.errors import UserError
from vaswani.inference.pairs import Pair
from vaswani.inference.score.scorer import Score, Scorer
from vaswani.inference.translate.results import Hypothesis, Translation, ranked_by_score

# λ, chosen on the validation split of Multi30k: see docs/results/translation.md.
WEIGHT = 0.4


@dataclass(frozen=True)
class NoisyChannel:
    """Ranks the hypotheses of translations by both directions.

    Args:
        scorer: scores sources given translations; its `length_penalty` gives lp(X).
        weight: λ.

    Raises:
        UserError: the scorer is none, or its model is not an encoder-decoder.
    """

    scorer: Scorer
    weight: float = WEIGHT

    def __post_init__(self) -> None:
        scorer = self.scorer
        if not isinstance(scorer, Scorer):
            raise UserError(f"reverse_model={scorer!r} is not a Scorer; give Scorer.from_pretrained(FOLDER)")
        if scorer.kind != "seq2seq":
            raise UserError(f"reverse_model is a {scorer.kind} language model; expected an encoder-decoder")

    @property
    def options(self) -> dict[str, Any]:
        """The options that ask for this ranking, with the name of the model without its folder."""
        model = self.scorer.model
        name = Path(model.name_or_path).name or type(model).__name__
        return {"reverse_model": name, "reverse_weight": self.weight}

    def __call__(self, translations: Sequence[Translation], sources: Iterable[str]) -> list[Translation]:
        """Return the translations with their hypotheses ranked; the `score` of each is the sum above.

        A hypothesis that the model of the other direction cannot read, such as an empty one, is ranked last,
        without scores. If it can read none, or not write the source, the translation has a `problem`.

        Args:
            translations: translations with all their hypotheses.
            sources: for each, the text X that its hypotheses translate.

        Raises:
            RunError: as `Scorer.stream`.
        """
        pairs = [
            [Pair(hypothesis.text, source) for hypothesis in translation.hypotheses]
            for translation, source in zip(translations, sources, strict=True)
        ]
        distinct = list(dict.fromkeys(chain.from_iterable(pairs)))
        scores = dict(zip(distinct, self.scorer(distinct), strict=True))
        return [
            self._ranked(translation, [scores[pair] for pair in of_translation])
            for translation, of_translation in zip(translations, pairs, strict=True)
        ]

    def _ranked(self, translation: Translation, scores: Sequence[Score]) -> Translation:
        found = list(zip(translation.hypotheses, scores, strict=True))
        problems = [score.problem for hypothesis, score in found if hypothesis.text.strip()]
        if problems and all(problems):
            return Translation(translation.source, problem=f"in the other direction, {problems[0]}")
        return replace(translation, hypotheses=ranked_by_score(self._scored(*each) for each in found))

    def _scored(self, hypothesis: Hypothesis, score: Score) -> Hypothesis:
        if score.problem is not None:
            return replace(hypothesis, score=None)
        together = (hypothesis.score or 0.0) + self.weight * self.scorer.rank_key(score)
        return replace(hypothesis, score=together, reverse_log_prob=score.chosen_log_prob)
