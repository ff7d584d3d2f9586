"""Options of generation that translators and causal language models share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from vaswani.bounds import LARGEST_SEED, Bounds
from vaswani.errors import UserError, check_positive
from vaswani.inference.sampling import Sampling

_BOUNDS = {
    "no_repeat_ngram_size": Bounds(at_least=0, whole=True),
    "repetition_penalty": Bounds(above=0),
    "temperature": Bounds(above=0),
    "top_k": Bounds(at_least=1, whole=True),
    "top_p": Bounds(above=0, at_most=1),
    "seed": Bounds(at_least=0, at_most=LARGEST_SEED, whole=True),
}


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """How the next token is chosen.

    Args:
        no_repeat_ngram_size: no sequence of this many tokens occurs twice in an output; 0 allows repetition.
            None means the value of the model's generation_config.json.
        repetition_penalty: for tokens that an output already has, positive scores are divided by this and
            negative scores are multiplied by it (Keskar et al., 2019, arXiv:1909.05858, section 4.1); above 1
            avoids repetition. A search ranks by the resulting scores. None means the value of the model's
            generation_config.json.
        temperature: samples each token from the softmax of the scores divided by this. None means a search.
        top_k: for sampling, see `Sampling`; None means all tokens.
        top_p: for sampling, see `Sampling`; None means 1, all tokens.
        seed: seed of sampling; None means 0.

    Raises:
        UserError: an option is out of range, or one of sampling is given without `temperature`.
    """

    bounds: ClassVar[Mapping[str, Bounds]] = _BOUNDS

    no_repeat_ngram_size: int | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, bounds in self.bounds.items():
            if (value := getattr(self, name)) is not None:
                bounds.check(name, value)
        for name in ("top_k", "top_p", "seed"):
            if self.temperature is None and (value := getattr(self, name)) is not None:
                raise UserError(
                    f"{name}={value} is for sampling, and no temperature is given; add temperature=1"
                )

    @property
    def sampling(self) -> Sampling | None:
        """How tokens are drawn; None for a search."""
        if self.temperature is None:
            return None
        return Sampling(self.temperature, 1.0 if self.top_p is None else self.top_p, self.top_k)

    def check_samples(self, number: int) -> None:
        """Raise a UserError unless an input can have this many outputs."""
        check_positive(num_samples=number)
        if number > 1 and self.temperature is None:
            raise UserError(
                f"num_samples={number} needs sampling, because greedy search finds one text; "
                "add temperature=1"
            )
