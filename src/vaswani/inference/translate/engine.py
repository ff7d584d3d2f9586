"""What a `Translator` asks of an engine: hypotheses for token ids, whatever computes them.

`TorchEngine` runs any encoder-decoder of transformers. An engine knows token ids only; texts, buffers and
limits are the translator's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import GenerationConfig

from vaswani.errors import UserError, check_positive
from vaswani.inference.decoding import GNMTLengthPenalty


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How an engine searches.

    Args:
        num_beams: hypotheses kept at each step; 1 is greedy search.
        length_penalty: α; 0 ranks by log-probability, which prefers short translations.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice in a translation. None means as the
            model's generation_config.json says.

    Raises:
        UserError: an option is out of range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    no_repeat_ngram_size: int | None = None

    def __post_init__(self) -> None:
        check_positive(num_beams=self.num_beams)
        if self.no_repeat_ngram_size is not None:
            check_positive(no_repeat_ngram_size=self.no_repeat_ngram_size)
        try:
            object.__setattr__(self, "length_penalty", GNMTLengthPenalty(self.length_penalty))
        except ValueError as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class Output:
    """One hypothesis of an engine.

    Args:
        token_ids: of the target, with the end token, without the start token.
        complete: whether it ends with the end token, and not at the length limit.
        log_prob: the sum of the natural log-probabilities of the tokens; None without scores.
    """

    token_ids: list[int]
    complete: bool
    log_prob: float | None = None

    def score(self, length_penalty: Any) -> float | None:
        """`log_prob` / lp(Y), as a `GNMTLengthPenalty` says; None without scores."""
        return None if self.log_prob is None else self.log_prob / length_penalty.of(len(self.token_ids))


class Engine(ABC):
    """Searches translations of token ids.

    Attributes:
        name: as `Translator.from_pretrained` calls it.
        generation_config: of the model; only its special tokens and lengths are read by the translator.
        source_positions: the longest source that the model has positions for, or None if there is no limit.
        target_positions: likewise of a target.
    """

    name: ClassVar[str]
    generation_config: GenerationConfig
    source_positions: int | None
    target_positions: int | None

    @abstractmethod
    def search(
        self,
        sources: list[list[int]],
        limits: list[int],
        options: SearchOptions,
        *,
        start_options: dict[str, int],
        n_best: int = 1,
        with_scores: bool = False,
    ) -> list[list[Output]]:
        """Return the `n_best` best hypotheses of each source of a batch, best first.

        Args:
            sources: token ids, as the model was trained with.
            limits: for each source, the most tokens of its target, the end token included.
            options: of the search.
            start_options: tokens that begin a target in a language, `decoder_start_token_id` or
                `forced_bos_token_id`, that replace those of the generation_config.
            n_best: hypotheses of each source.
            with_scores: whether to give each `Output` its `log_prob`.

        Raises:
            UserError: the engine lacks an option.
            RunError: the model's scores are NaN or infinite.
        """
