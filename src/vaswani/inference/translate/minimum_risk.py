"""Minimum Bayes risk decoding (Kumar and Byrne, 2004, N04-1022).

A search returns the most likely translation. Minimum Bayes risk decoding returns the one that is most similar
to all translations that the model finds likely: of the hypotheses of a source, the one with the highest
expected utility

    E[u(h)] = Σ_y p(y) · u(h, y),

where y are the same hypotheses and u is a metric with y as the reference. chrF prefers longer translations
than BLEU does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from vaswani.inference.translate.results import Hypothesis, Translation, ranked_by_score

UTILITIES = ("chrf", "bleu")
# The hypotheses of a beam search have p(y) ∝ P(y|x)^SCALE, because P itself would leave all to the first few;
# with a model of the other direction p(y) ∝ (P(y|x) · P(x|y)^λ)^SCALE, and samples p(y) ∝ P(x|y)^(λ · SCALE).
# Chosen on the validation split of Multi30k: see docs/results/translation.md.
SCALE = 0.5
# Hypotheses that are equally similar to the others can differ in the last digits of a sum, which depend on
# the processor and the batch. Rounded, they tie, and the order of the search decides.
_DECIMALS = 9


@dataclass(frozen=True)
class MinimumRisk:
    """Ranks the hypotheses of translations by their expected utilities.

    Args:
        metric: the utility, one of `UTILITIES`.
        are_samples: whether they are samples, which already count by how often they were drawn.
        reverse_weight: λ of hypotheses with a `reverse_log_prob` (see `noisy_channel`).
    """

    metric: str
    are_samples: bool
    reverse_weight: float = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """The options that ask for this ranking."""
        return {"mbr_metric": self.metric}

    def __call__(self, translations: Sequence[Translation]) -> list[Translation]:
        """Return the translations with their hypotheses ranked by expected utility, the new `score`.

        A hypothesis without a score, which a model of the other direction cannot read, does not count and is
        ranked last.
        """
        return [
            replace(each, hypotheses=self._ranked(each.hypotheses)) if each.hypotheses else each
            for each in translations
        ]

    def _ranked(self, hypotheses: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
        scored = [each for each in hypotheses if each.score is not None]
        if not scored:
            return tuple(hypotheses)
        weights = list(map(self._log_weight, scored))
        expected = expected_utilities([each.text for each in scored], weights, self.metric)
        ranked = ranked_by_score(
            replace(each, score=score) for each, score in zip(scored, expected, strict=True)
        )
        return (*ranked, *(each for each in hypotheses if each.score is None))

    def _log_weight(self, hypothesis: Hypothesis) -> float:
        """Return log p(y) of a hypothesis, up to a constant of its source."""
        forward = 0.0 if self.are_samples else hypothesis.log_prob or 0.0
        return SCALE * (forward + self.reverse_weight * (hypothesis.reverse_log_prob or 0.0))


def expected_utilities(texts: Sequence[str], log_weights: Sequence[float], metric: str) -> list[float]:
    """Return the expected utility of each hypothesis of one source, from 0 to 1, rounded to nine decimals.

    Args:
        texts: the hypotheses; equal ones count together.
        log_weights: log p(y) of each, up to a constant.
        metric: the utility, "chrf" or "bleu" (of sentences, with the n-grams that they have).
    """
    weights = torch.tensor(log_weights, dtype=torch.float64).softmax(dim=0)
    weight_of = dict.fromkeys(texts, 0.0)
    for text, weight in zip(texts, weights.tolist(), strict=True):
        weight_of[text] += weight
    of_texts = torch.tensor([*weight_of.values()], dtype=torch.float64)
    expected = (_utilities([*weight_of], metric) @ of_texts).tolist()
    expected_of = {text: round(each, _DECIMALS) for text, each in zip(weight_of, expected, strict=True)}
    return [expected_of[text] for text in texts]


def _utilities(texts: Sequence[str], metric: str) -> torch.Tensor:
    """Return the metric of each text with each as reference, and 1 with itself: float64 [H, H]."""
    from vaswani.data.text import ngram_scores  # lazy: most searches need no sacreBLEU

    count: Callable[[str], ngram_scores.Ngrams] = ngram_scores.character_ngrams
    score: Callable[[ngram_scores.Counts], float] = ngram_scores.chrf_score
    if metric == "bleu":
        count = partial(ngram_scores.word_ngrams, ngram_scores.bleu_metric(texts))
        score = partial(ngram_scores.bleu_score, effective_order=True)
    rows = ngram_scores.counts_of_all_pairs([count(text) for text in texts])
    table = torch.tensor([[score(counts) for counts in row] for row in rows], dtype=torch.float64) / 100
    return table.fill_diagonal_(1.0)
