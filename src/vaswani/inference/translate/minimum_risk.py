"""Minimum Bayes risk decoding (Kumar and Byrne, 2004, N04-1022).

A search returns the most likely translation. Minimum Bayes risk decoding returns the one that is most similar
to all translations that the model finds likely: of the hypotheses of a source, the one with the highest
expected utility

    E[u(h)] = Σ_y p(y) · u(h, y),

where y are the same hypotheses and u is a metric with y as the reference. chrF prefers longer translations
than BLEU does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations
from statistics import fmean

import torch

from vaswani.data.text.bleu import bleu_metric
from vaswani.errors import UserError

UTILITIES = ("chrf", "bleu")
# The hypotheses of a beam search have p(y) ∝ P(y|x)^SCALE, because P itself would leave all to the first few.
# Chosen on the validation split of Multi30k: see docs/results/translation.md.
SCALE = 0.5


def check_minimum_risk(metric: str | None, *, num_beams: int, sampled: bool, coverage_penalty: float) -> None:
    """Raise a UserError unless a metric can rank the hypotheses of a search or samples.

    Args:
        metric: the utility; None ranks nothing, and fits everything.
        num_beams: hypotheses of the search.
        sampled: whether translations are sampled instead.
        coverage_penalty: another rank of the hypotheses.
    """
    if metric is None:
        return
    if metric not in UTILITIES:
        raise UserError(f"mbr_metric={metric} is unknown; choose {' or '.join(UTILITIES)}")
    if num_beams == 1 and not sampled:
        raise UserError(
            f"mbr_metric={metric} ranks the hypotheses of a beam search, and num_beams=1; give more beams, "
            "or leave it out"
        )
    if coverage_penalty:
        raise UserError(
            f"mbr_metric={metric} and coverage_penalty={coverage_penalty} both rank the hypotheses; leave "
            "one out"
        )


def expected_utilities(texts: Sequence[str], log_probs: Sequence[float] | None, metric: str) -> list[float]:
    """Return the expected utility of each hypothesis of one source, from 0 to 1.

    Args:
        texts: the hypotheses; equal ones count together.
        log_probs: log P(y|x) of each; None for samples, which all have the same weight.
        metric: the utility, "chrf" or "bleu" (of sentences, with the n-grams that they have).
    """
    logits = torch.zeros(len(texts)) if log_probs is None else SCALE * torch.tensor(log_probs)
    weight_of = dict.fromkeys(texts, 0.0)
    for text, weight in zip(texts, logits.double().softmax(dim=0).tolist(), strict=True):
        weight_of[text] += weight
    utilities = _chrf([*weight_of]) if metric == "chrf" else _bleu([*weight_of])
    weights = torch.tensor([*weight_of.values()], dtype=torch.float64)
    expected = dict(zip(weight_of, (utilities @ weights).tolist(), strict=True))
    return [expected[text] for text in texts]


def _chrf(texts: Sequence[str]) -> torch.Tensor:
    """Return chrF2 of each text against each as reference, as sacreBLEU computes it: float64 [H, H]."""
    letters = ["".join(text.split()) for text in texts]
    return _of_pairs([_counts(each, 6) for each in letters], _f_score)


def _f_score(matches: Sequence[int], of_text: Sequence[int], of_reference: Sequence[int]) -> float:
    """Return F2 of the mean precision and the mean recall, over the orders that both texts have."""
    orders = [
        counts for counts in zip(matches, of_text, of_reference, strict=True) if counts[1] and counts[2]
    ]
    if not matches[0]:
        return 0.0
    precision = fmean(matched / total for matched, total, _ in orders)
    recall = fmean(matched / total for matched, _, total in orders)
    return 5 * precision * recall / (4 * precision + recall)


def _bleu(texts: Sequence[str]) -> torch.Tensor:
    """Return BLEU of each text against each as reference, as sacreBLEU's `sentence_bleu`: float64 [H, H]."""
    metric = bleu_metric(texts)
    words = [metric.tokenizer(text.rstrip()).split() for text in texts]

    def score(matches: list[int], of_text: list[int], of_reference: list[int]) -> float:
        found = metric.compute_bleu(
            matches, of_text, of_text[0], of_reference[0], smooth_method="exp", effective_order=True
        )
        return float(found.score) / 100

    return _of_pairs([_counts(each, 4) for each in words], score)


def _counts(tokens: Sequence[str], orders: int) -> list[Counter[Sequence[str]]]:
    """Count the n-grams of a text, of the orders from 1."""
    return [
        Counter(tuple(tokens[start : start + order]) for start in range(len(tokens) - order + 1))
        for order in range(1, orders + 1)
    ]


def _of_pairs(counts: list[list[Counter[Sequence[str]]]], score: Callable[..., float]) -> torch.Tensor:
    """Return the score of each text against each other, and 1 against itself: float64 [H, H].

    Args:
        counts: the n-grams of each text, by order.
        score: takes the numbers of common n-grams, of those of the text and of those of the reference.
    """
    totals = [[each.total() for each in of_text] for of_text in counts]
    table = torch.ones(len(counts), len(counts), dtype=torch.float64)
    for one, two in combinations(range(len(counts)), 2):
        matches = [(a & b).total() for a, b in zip(counts[one], counts[two], strict=True)]
        table[one, two] = score(matches, totals[one], totals[two])
        table[two, one] = score(matches, totals[two], totals[one])
    return table
