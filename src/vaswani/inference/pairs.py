"""Encode pairs of a source and a target for an encoder-decoder, as in its training and its search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec, end_token_id
from vaswani.errors import UserError, check_positive
from vaswani.inference.position_limits import DEFAULT_LENGTH, position_limit
from vaswani.inference.sides import EncodedText, Sides


@dataclass(frozen=True)
class Pair:
    """A source with a target. `len(pair)` is the number of characters of both.

    Args:
        source: the text of the source.
        target: the text that is scored.
        complete: whether the end token belongs to the target.
    """

    source: str
    target: str
    complete: bool = True

    def __len__(self) -> int:
        return len(self.source) + len(self.target)


class PairEncoder:
    """Encodes the sources and targets of an encoder-decoder.

    A target ends with the end token, like the outputs of `Translator`: tokens that a tokenizer adds after it,
    such as mBART's language code, are left out; if the tokenizer adds no end token, one is added.

    Args:
        model: an encoder-decoder.
        source_tokenizer: encodes sources.
        target_tokenizer: encodes targets; None means the source tokenizer.
        max_length: maximum tokens of a target; longer targets get a `problem`. None means the model's
            positions, or 4,096 if there is no limit.
        of_sides: `max_source_length`, `too_long`, `source_language`, `target_language` and `source_prefix`,
            see `Sides`.

    Attributes:
        sources, targets: the codecs of the two sides.
        start_options: options of `generate` that select the target language.
        start_token_id: begins the decoder's input.
        forced_token_id: begins every target; None if the model forces no token (see `Sides`).

    Raises:
        UserError: an option is out of range, the tokenizer does not know a language, or there is no token
            that begins or ends a target.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_length: int | None = None,
        **of_sides: Any,
    ):
        check_positive(max_length=max_length)
        generation_config: Any = model.generation_config
        tokenizers = source_tokenizer, target_tokenizer
        self._sides = Sides(generation_config, position_limit(model, "source"), *tokenizers, **of_sides)
        self.sources, self.targets = self._sides.sources, self._sides.targets
        self.start_options = self._sides.start_options
        self.forced_token_id = self._sides.forced_token_id
        self.start_token_id = _start_token_id(model, self.start_options)
        self.max_length = max_length or DEFAULT_LENGTH
        self._positions = position_limit(model, "target")
        self._behind_end, self._missing_end = _ending(model, self.targets)

    def encode_sources(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the tokens of each source; an empty source gets a `problem`."""
        return [
            encoded if text.strip() else EncodedText(encoded.token_ids, "is empty")
            for text, encoded in zip(texts, self._sides.encode_sources(texts), strict=True)
        ]

    def encode_targets(self, texts: Sequence[str], complete: Sequence[bool]) -> list[EncodedText]:
        """Return the tokens of each target: with the end token if the target is complete, else without it."""
        return [
            self._target(ids, is_complete)
            for ids, is_complete in zip(self.targets.token_ids(texts), complete, strict=True)
        ]

    def _target(self, ids: list[int], complete: bool) -> EncodedText:
        ids = [*ids[: len(ids) - self._behind_end], *self._missing_end]
        ids = ids if complete else ids[:-1]
        if ids in ([], [self.forced_token_id]):
            return EncodedText(ids, "is empty and has no end token")
        positions = self._positions
        if positions is not None and len(ids) > positions:
            return EncodedText(ids, f"has {len(ids):,} tokens, and the model has positions for {positions:,}")
        if len(ids) > self.max_length:
            return EncodedText(
                ids, f"has {len(ids):,} tokens, more than max_length={self.max_length}; raise that"
            )
        return EncodedText(ids)


def _start_token_id(model: PreTrainedModel, start_options: dict[str, int]) -> int:
    """Return the token that begins the decoder's input, as `generate` chooses it."""
    generation: Any = model.generation_config
    known = start_options.get("decoder_start_token_id"), generation.decoder_start_token_id
    token = next((each for each in (*known, generation.bos_token_id) if isinstance(each, int)), None)
    if token is None:
        raise UserError(
            "the model's generation_config.json has no decoder_start_token_id, so it cannot read targets; "
            "add it, or use another checkpoint"
        )
    return token


def _ending(model: PreTrainedModel, targets: TextCodec) -> tuple[int, list[int]]:
    """Return how many trailing tokens to remove, and the end token to append if the tokenizer adds none."""
    generation: Any = model.generation_config
    given = generation.eos_token_id
    ends = given if isinstance(given, list) else [end_token_id(targets.tokenizer) if given is None else given]
    trailing = targets.frame().trailing
    places = [place for place, token in enumerate(trailing) if token in ends]
    if places:
        return len(trailing) - 1 - places[0], []
    if ends[0] is None:
        raise UserError(
            "the model's generation_config.json has no eos_token_id, so that no target ends; add it, or use "
            "another checkpoint"
        )
    return len(trailing), [ends[0]]
