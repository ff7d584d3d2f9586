"""The two sides of an encoder-decoder: encode its sources, and select the tokens that begin its targets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import GenerationConfig, PreTrainedTokenizerBase

from vaswani.data.sources.reading import shown
from vaswani.data.text_codec import TextCodec, for_languages, languages_of, marks_languages
from vaswani.data.tokenization import length_limit
from vaswani.errors import UserError, listing

logger = logging.getLogger(__name__)

TooLong = Literal["cut", "skip"]

DEFAULT_SOURCE_LENGTH = 1024  # tokens; a search takes seconds, not hours


@dataclass(frozen=True)
class EncodedText:
    """The tokens of a text.

    Args:
        token_ids: the tokens, with special tokens.
        problem: why the model cannot read them, such as "has 9 tokens, ..."; None if it can.
        cut_off: whether the text was truncated.
    """

    token_ids: list[int]
    problem: str | None = None
    cut_off: bool = False


class Sides:
    """Encodes the sources of an encoder-decoder, and provides the codec and start tokens of its targets.

    Args:
        generation_config: the generation configuration of the model.
        positions: the longest source that the model has positions for, or None if there is no limit.
        source_tokenizer: encodes sources.
        target_tokenizer: encodes and decodes targets; None means the source tokenizer.
        max_source_length, too_long, source_language, target_language, source_prefix: see `Translator`.

    Attributes:
        sources, targets: the codecs of both sides, for the given languages.
        positions: as given.
        max_source_length: maximum tokens of a source, or None.
        too_long: what happens to a longer source: "cut" or "skip".
        start_options: options of `generate` that select the target language.
        forced_token_id: the first token of every target if the model forces one (`forced_bos_token_id`), such
            as the tag of a language; else None.

    Raises:
        UserError: an option is out of range, the tokenizer does not know a language, or the tokenizer and the
            model name different languages.
    """

    def __init__(
        self,
        generation_config: GenerationConfig,
        positions: int | None,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_source_length: int | Literal["auto"] | None = "auto",
        too_long: TooLong | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        source_prefix: str | None = None,
    ):
        if too_long not in (None, "cut", "skip"):
            raise UserError(f"too_long={too_long!r} is unknown; expected 'cut' or 'skip'")
        source, target = for_languages(
            source_tokenizer,
            target_tokenizer or source_tokenizer,
            source_language=source_language,
            target_language=target_language,
            source_prefix=source_prefix,
        )
        self.sources, self.targets = TextCodec(source, "source"), TextCodec(target, "target")
        self.start_options = self.targets.start_options()
        of_model: int | None = getattr(generation_config, "forced_bos_token_id", None)
        self.forced_token_id = self.start_options.get("forced_bos_token_id", of_model)
        if target_language is None:
            _check_language(generation_config, target, self.start_options)
        self.positions = positions
        self._skips_as_asked = too_long == "skip"
        self.too_long = too_long or ("cut" if isinstance(max_source_length, int) else "skip")
        if max_source_length == "auto":
            max_source_length = _default_source_length(generation_config, source_tokenizer)
        self._warned = False
        self._frame = self.sources.frame()
        self._frame.check_room(max_source_length=max_source_length)
        self.max_source_length = max_source_length

    def encode_sources(self, texts: Sequence[str]) -> list[EncodedText]:
        """Return the tokens of each source; sources that are too long are truncated or get a `problem`."""
        self._warn_of_untagged(texts)
        return [self._source(token_ids) for token_ids in self.sources.token_ids(texts)]

    def _warn_of_untagged(self, texts: Sequence[str]) -> None:
        """Warn once if the model cannot know the language to write for a source."""
        if not self._warned and (untagged := self.sources.untagged(texts)):
            self._warned = True
            logger.warning(
                "The source %s begins with none of the model's tags (%s): the language of its output is left "
                "to chance. Give source_prefix, such as %r, or write a tag before each source.",
                *(shown(untagged[0]), listing(self.sources.tags[:5]), f"{self.sources.tags[0]} "),
            )

    def _source(self, token_ids: list[int]) -> EncodedText:
        length, most, positions = len(token_ids), self.max_source_length, self.positions
        limits = [limit for limit in (most, positions) if limit is not None and length > limit]
        if not limits:
            return EncodedText(token_ids)
        if self.too_long == "cut":
            return EncodedText(self._frame.cut(token_ids, min(limits)), cut_off=True)
        if positions in limits:
            remedy = "too_long=cut" if self._skips_as_asked else f"max_source_length={positions}"
            problem = f"and the model has positions for {positions:,}; {remedy} would truncate it"
        else:
            problem = f"more than max_source_length={most}; raise that, or truncate it (too_long=cut)"
        return EncodedText(token_ids, f"has {length:,} tokens, {problem}")


def _default_source_length(generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the default of `max_source_length` (see `Translator`)."""
    trained = getattr(generation_config, "max_source_length", None)  # saved by training
    known = [length for length in (length_limit(tokenizer), trained) if isinstance(length, int)]
    return max([DEFAULT_SOURCE_LENGTH, *known])


def _check_language(
    generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase, start_options: dict[str, int]
) -> None:
    """Raise a UserError if tokenizer and model name different target languages, or if none is chosen."""
    languages = getattr(tokenizer, "lang_code_to_id", {}).values()
    is_chosen_by_model = (
        generation_config.forced_bos_token_id is not None
        or generation_config.decoder_start_token_id in languages
    )
    if marks_languages(tokenizer) and not start_options and not is_chosen_by_model:
        raise UserError(
            "the model writes several languages, and none is chosen; give target_language "
            f"({listing(languages_of(tokenizer))})"
        )
    for option, token in start_options.items():
        of_model = getattr(generation_config, option)
        names_language = option == "forced_bos_token_id" or of_model in languages
        if names_language and of_model not in (None, token):
            raise UserError(
                f"the tokenizer's target language is token {token}, and the model has {option}={of_model}; "
                f"let tgt_lang in tokenizer_config.json and {option} in generation_config.json agree"
            )
