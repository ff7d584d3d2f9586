"""Rank the hypotheses of a search, or samples, by another criterion than the model's score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vaswani.bounds import Bounds
from vaswani.errors import UserError
from vaswani.inference.score.scorer import Scorer
from vaswani.inference.translate.engine import SearchOptions
from vaswani.inference.translate.minimum_risk import UTILITIES, MinimumRisk
from vaswani.inference.translate.noisy_channel import WEIGHT, NoisyChannel
from vaswani.inference.translate.results import Translation


@dataclass(frozen=True)
class Reranking:
    """Ranks all hypotheses of translations anew, and sets their scores.

    Args:
        noisy_channel: ranks them by both directions.
        minimum_risk: ranks them by minimum Bayes risk, with the weights of both directions if they have them.
    """

    noisy_channel: NoisyChannel | None = None
    minimum_risk: MinimumRisk | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that ask for the ranking, for messages and reports; empty if there is none."""
        parts = self.noisy_channel, self.minimum_risk
        return {name: value for part in parts if part for name, value in part.options.items()}

    def __call__(self, translations: list[Translation], sources: Iterable[str]) -> list[Translation]:
        """Return the translations with their hypotheses ranked.

        Args:
            translations: translations with all hypotheses of a search, or samples.
            sources: the text that each translates; read only for the other direction.
        """
        if self.noisy_channel is not None:
            translations = self.noisy_channel(translations, sources)
        return translations if self.minimum_risk is None else self.minimum_risk(translations)


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


def check_n_best(
    n_best: int, search: SearchOptions, rankings: Mapping[str, Any], remedy: str = "raise n_best"
) -> None:
    """Raise a UserError unless a search, or sampling, can return and rank a number of hypotheses.

    Args:
        n_best: the number of hypotheses of each sentence.
        search: the options of the search.
        rankings: the options of a `Reranking`; those that are not given are None.
        remedy: what to do if the only sample of a sentence would be ranked.
    """
    if search.sampling is None:
        if n_best > (beams := search.num_beams):
            raise UserError(f"n_best={n_best} is more than num_beams={beams}; raise num_beams")
        return
    for name, value in {**rankings, "coverage_penalty": search.coverage_penalty}.items():
        if value and n_best == 1:
            raise UserError(
                f"{name}={value} ranks the samples of a sentence, and n_best=1; {remedy}, or leave it out"
            )


def reranking_of(
    search: SearchOptions,
    mbr_metric: str | None,
    reverse_model: Scorer | None,
    reverse_weight: float | None,
) -> Reranking | None:
    """Return the ranking that the options ask for; None if the scores of the search rank.

    Raises:
        UserError: as `check_reranking`.
    """
    check_reranking(search, mbr_metric, reverse_model, reverse_weight)
    if mbr_metric is None and reverse_model is None:
        return None
    weight = WEIGHT if reverse_weight is None else reverse_weight
    are_samples = search.sampling is not None
    return Reranking(
        None if reverse_model is None else NoisyChannel(reverse_model, weight),
        None if mbr_metric is None else MinimumRisk(mbr_metric, are_samples, weight),
    )
