"""The interface of the engines of a `Translator`, which find hypotheses for token ids.

`TorchEngine` runs any encoder-decoder of transformers, `CTranslate2Engine` models exported for CTranslate2
(see `engines.py`). An engine handles only token ids; the translator handles texts, buffers and limits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from transformers import GenerationConfig

from vaswani.bounds import Bounds
from vaswani.errors import UserError
from vaswani.inference.decoding import GNMTLengthPenalty
from vaswani.inference.generation_options import GenerationOptions
from vaswani.inference.required_phrases import Phrase

DEFAULT_BEAMS = 4  # section 6.1
_BOUNDS = {"num_beams": Bounds(at_least=1, whole=True), "coverage_penalty": Bounds(at_least=0)}


@dataclass(frozen=True, kw_only=True)
class SearchOptions(GenerationOptions):
    """Options of an engine's search or sampling, besides those of `GenerationOptions`.

    Args:
        num_beams: hypotheses kept at each step; 1 is greedy search. None means 4, or 1 with `temperature`.
        length_penalty: α; 0 ranks by log-probability, which prefers short translations.
        coverage_penalty: β of Wu et al., 2016, arXiv:1609.08144, equation 14: adds
            β · Σ_i log(min(Σ_j p_ij, 1)) to the score of a hypothesis, where p_ij is how much target token j
            attends to source token i. The search itself does not use it; its `num_beams` hypotheses are
            ranked again. 0 means no penalty.
        suppress_sequences: sequences of token ids that no translation contains.
        attention_of: a token whose attention each `Output` reports, or `"all"` for all tokens; None for none.

    Raises:
        UserError: an option is out of range; an option of sampling is given without `temperature`, or beams
            with it; or coverage would rank the only hypothesis of greedy search.
    """

    bounds: ClassVar[Mapping[str, Bounds]] = {**GenerationOptions.bounds, **_BOUNDS}

    num_beams: Any = None  # an int, once initialized
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    suppress_sequences: tuple[tuple[int, ...], ...] = ()
    attention_of: int | Literal["all"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is not None and self.num_beams not in (None, 1):
            raise UserError(
                f"num_beams={self.num_beams} searches, and temperature={self.temperature} samples; "
                "leave one out"
            )
        if self.num_beams is None:
            object.__setattr__(self, "num_beams", DEFAULT_BEAMS if self.temperature is None else 1)
        if self.coverage_penalty and self.num_beams == 1 and self.temperature is None:
            raise UserError(
                f"coverage_penalty={self.coverage_penalty} ranks the hypotheses of a beam search, and "
                "num_beams=1; give more beams, or leave it out"
            )
        try:
            object.__setattr__(self, "length_penalty", GNMTLengthPenalty(self.length_penalty))
        except ValueError as error:
            raise UserError(str(error)) from error


@dataclass(frozen=True)
class Demands:
    """Constraints on the translation of one source, besides its length limit.

    Args:
        min_length: minimum number of tokens, the end token included; at most the limit.
        number: number of the sentence in its stream. Sampling is seeded with `seed` and this number, so a
            sentence has the same samples in every batch.
        prefix: tokens that the translation begins with, after a token that the model forces; scores include
            them.
        required: phrases that the translation contains, in the form of `RequiredPhrases`. The prefix and the
            phrases must fit into the limit. The hypotheses are ranked by their scores.

    With a prefix or a phrase there may be fewer hypotheses than requested.
    """

    min_length: int = 0
    number: int = 0
    prefix: tuple[int, ...] = ()
    required: tuple[Phrase, ...] = ()


@dataclass(frozen=True)
class Output:
    """One hypothesis of an engine.

    Args:
        token_ids: tokens of the target, with the end token and without the start token.
        complete: whether it ends with the end token, and not at the length limit.
        log_prob: the sum of the natural log-probabilities of the tokens; None without scores.
        forced_log_prob: the part of `log_prob` that belongs to a first token which the model forces
            (`forced_bos_token_id`), such as the tag of a language. Searches do not count it.
        coverage: what `SearchOptions.coverage_penalty` adds to its score.
        attention: for each occurrence of the token `SearchOptions.attention_of`, its attention weights over
            the source tokens.
    """

    token_ids: list[int]
    complete: bool
    log_prob: float | None = None
    forced_log_prob: float = 0.0
    coverage: float = 0.0
    attention: tuple[tuple[float, ...], ...] = ()

    def score(self, length_penalty: Any) -> float | None:
        """Return (`log_prob` - `forced_log_prob`) / lp(Y) + `coverage`; None without scores.

        lp is from a `GNMTLengthPenalty`.
        """
        if self.log_prob is None:
            return None
        chosen = self.log_prob - self.forced_log_prob
        return chosen / length_penalty.of(len(self.token_ids)) + self.coverage


def ranked(outputs: Iterable[Output], options: SearchOptions) -> list[Output]:
    """Return outputs sorted by score, best first; without scores, in their given order."""
    return sorted(outputs, key=lambda output: -(output.score(options.length_penalty) or 0.0))


# Fields of a `generation_config` that make a search rank by other scores than the model's.
_OTHER_SCORES = (
    *("encoder_repetition_penalty", "exponential_decay_length_penalty"),
    *("sequence_bias", "renormalize_logits"),
)


class Engine(ABC):
    """Searches translations of token ids.

    Attributes:
        name: the name of the engine in `Translator.from_pretrained`.
        supports: the fields of `SearchOptions`, and of `Demands`, that the engine honours.
        streams: whether it can yield the tokens of a target one by one (see `stream`).
        generation_config: that of the model; the translator reads only its special tokens and lengths.
        source_positions: the longest source that the model has positions for, or None if there is no limit.
        target_positions: the longest target that the model has positions for, or None if there is no limit.
    """

    name: ClassVar[str]
    supports: ClassVar[frozenset[str]]
    streams: ClassVar[bool] = False
    generation_config: GenerationConfig
    source_positions: int | None
    target_positions: int | None

    @property
    def end_token_ids(self) -> list[int]:
        """The tokens that end a target."""
        ends: Any = self.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def check(self, options: SearchOptions, start_options: dict[str, int]) -> None:
        """Raise unless the engine supports the options of a search.

        Args:
            options: the options of the search; options with default values are always supported.
            start_options: see `search`.

        Raises:
            UserError: the engine lacks an option.
        """
        defaults = SearchOptions()
        for name in (field.name for field in fields(options) if field.name not in self.supports):
            value = getattr(options, name)
            if value != getattr(defaults, name):
                raise self._lacks(f"{name}={value!r}")

    def check_texts(
        self,
        *,
        prefix: str = "",
        required_phrases: Sequence[str] = (),
        banned_phrases: Sequence[str] = (),
        replace_unknown: bool = False,
        alignments: bool = False,
    ) -> None:
        """Raise a UserError unless the engine supports these options, which concern the texts of outputs."""
        for name, asked in {"replace_unknown": replace_unknown, "alignments": alignments}.items():
            if asked and "attention_of" not in self.supports:
                raise self._lacks(name)
        if prefix and "prefix" not in self.supports:
            raise self._lacks(f"prefix={prefix!r}")
        if required_phrases and "required" not in self.supports:
            raise self._lacks(f"required_phrases={list(required_phrases)}")
        if banned_phrases and "suppress_sequences" not in self.supports:
            raise self._lacks(f"banned_phrases={list(banned_phrases)}")

    def ranks_by_score(self, options: SearchOptions) -> bool:
        """Return whether a search ranks by the model's scores; n-best lists are then sorted by them.

        Otherwise an n-best list keeps the order of the search. Its first hypothesis is the one that a search
        for a single hypothesis returns.
        """
        generation = self.generation_config
        penalty = options.repetition_penalty
        if penalty is None:
            penalty = getattr(generation, "repetition_penalty", None)
        others = (getattr(generation, name, None) for name in _OTHER_SCORES)
        return options.sampling is not None or all(value in (None, False, 1) for value in (penalty, *others))

    def _lacks(self, what: str) -> UserError:
        return UserError(f"{what} is not supported by engine={self.name}; leave it out, or use engine=torch")

    def check_stream(self) -> None:
        """Raise a UserError unless the engine streams."""
        if not self.streams:
            raise self._lacks("stream")

    def stream(
        self,
        source: list[int],
        limit: int,
        options: SearchOptions,
        *,
        start_options: dict[str, int],
        demands: Demands,
    ) -> Iterator[int]:
        """Yield the tokens of greedy search, or of one sample, as they are found; see `search`.

        Raises:
            RunError: the model's scores are NaN or infinite.
        """
        raise NotImplementedError  # `check_stream` raises before

    @abstractmethod
    def search(
        self,
        sources: list[list[int]],
        limits: list[int],
        options: SearchOptions,
        *,
        start_options: dict[str, int],
        demands: list[Demands] | None = None,
        n_best: int = 1,
        with_scores: bool = False,
    ) -> list[list[Output]]:
        """Return the `n_best` best hypotheses of each source of a batch, best first, or as many samples.

        Args:
            sources: token ids of the sources, in the form that the model was trained with.
            limits: for each source, the maximum tokens of its target, the end token included.
            options: options of the search.
            start_options: the token that selects the target language, as `decoder_start_token_id` or
                `forced_bos_token_id`; replaces that of the generation_config.
            demands: constraints on the translation of each source; None means no constraints.
            n_best: number of hypotheses of each source.
            with_scores: whether to set the `log_prob` of each `Output`.

        Raises:
            RunError: the model's scores are NaN or infinite.
        """
