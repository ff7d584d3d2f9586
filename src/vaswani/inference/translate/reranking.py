"""Rank the hypotheses of a search, or samples, by another criterion than the model's score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from vaswani.bounds import Bounds
from vaswani.errors import UserError
from vaswani.inference.score.scorer import Scorer
from vaswani.inference.translate.engine import SearchOptions
from vaswani.inference.translate.minimum_risk import UTILITIES, MinimumRisk
from vaswani.inference.translate.noisy_channel import WEIGHT, NoisyChannel
from vaswani.inference.translate.results import Translation


class Reranker(Protocol):
    """Ranks all hypotheses of translations anew, and sets their scores."""

    @property
    def options(self) -> dict[str, Any]:
        """The options that ask for the ranking, for messages and reports; first the one that names it."""

    def __call__(self, translations: Sequence[Translation]) -> list[Translation]:
        """Return the translations with their hypotheses ranked."""


def check_reranking(
    search: SearchOptions,
    mbr_metric: str | None,
    reverse_model: object | None,
    reverse_weight: float | None,
) -> None:
    """Raise a UserError unless the options can rank the hypotheses of a search, or samples."""
    if reverse_weight is not None:
        Bounds(above=0).check("reverse_weight", reverse_weight)
        if reverse_model is None:
            raise UserError(
                f"reverse_weight={reverse_weight} is for a reverse_model; add one, or leave it out"
            )
    if mbr_metric is not None and mbr_metric not in UTILITIES:
        raise UserError(f"mbr_metric={mbr_metric} is unknown; choose {' or '.join(UTILITIES)}")
    options = {f"mbr_metric={mbr_metric}": mbr_metric, "reverse_model": reverse_model}
    given = [option for option, value in options.items() if value is not None]
    if given and search.num_beams == 1 and search.sampling is None:
        raise UserError(
            f"{given[0]} ranks the hypotheses of a beam search, and num_beams=1; give more beams, or leave "
            "it out"
        )
    if mbr_metric is not None and (beta := search.coverage_penalty):
        raise UserError(
            f"mbr_metric={mbr_metric} and coverage_penalty={beta} both rank the hypotheses; leave one out"
        )


def rerankers_of(
    search: SearchOptions,
    mbr_metric: str | None,
    reverse_model: Scorer | None,
    reverse_weight: float | None,
) -> list[Reranker]:
    """Return the rankings that the options ask for, in their order; empty if the scores of the search rank.

    Raises:
        UserError: as `check_reranking`.
    """
    check_reranking(search, mbr_metric, reverse_model, reverse_weight)
    rerankers: list[Reranker] = []
    weight = WEIGHT if reverse_weight is None else reverse_weight
    if reverse_model is not None:
        rerankers.append(NoisyChannel(reverse_model, weight))
    if mbr_metric is not None:
        rerankers.append(MinimumRisk(mbr_metric, search.sampling is not None, weight))
    return rerankers
