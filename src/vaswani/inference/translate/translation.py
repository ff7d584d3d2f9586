"""Translate with a trained encoder-decoder, as in Vaswani et al., 2017, section 6.1.

Beam search ranks hypotheses by log P(Y|X) / lp(Y) with GNMT's length penalty lp(Y) = ((5 + |Y|) / 6)^α,
α = 0.6, and a translation has at most 50 tokens more than its source. Lengths include the final `</s>`. The
search of a sentence ends when it has as many finished hypotheses as beams, and no other hypothesis scores
above the worst of them at its current length (transformers' `early_stopping=False`).

With `temperature`, translations are drawn from the model instead, and n-best lists are of independent draws.

A translation does not depend on the batch. (Padding changes the last bits of sums, so scores agree to
rounding, and hypotheses with scores that differ by rounding may swap.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec, for_languages
from vaswani.data.tokenization import length_limit
from vaswani.errors import UserError, check_positive
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, within_memory
from vaswani.inference.translate.engine import Demands, Engine, Output, SearchOptions
from vaswani.inference.translate.engines import EngineName, LoadOptions, load_engine
from vaswani.inference.translate.lengths import TargetLengths
from vaswani.inference.translate.torch_engine import TorchEngine

if TYPE_CHECKING:
    from typing_extensions import Self

TooLong = Literal["cut", "skip"]

DEFAULT_SOURCE_LENGTH = 1024  # tokens; a search takes seconds, not hours


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Args:
        text: the translation, without special tokens.
        complete: whether it ends with `</s>`, and not at the length limit.
        score: ranks hypotheses: `log_prob` / lp(Y); None without scores.
        log_prob: log P(Y|X), the sum of the natural log-probabilities of the tokens and `</s>`; or None.
    """

    text: str
    complete: bool
    score: float | None = None
    log_prob: float | None = None


@dataclass(frozen=True)
class Translation:
    """The result for one sentence.

    Args:
        source: the sentence.
        hypotheses: best first; none for an empty sentence or one with a problem.
        problem: why the sentence could not be translated.
        source_cut_off: whether the sentence was truncated.
    """

    source: str
    hypotheses: tuple[Hypothesis, ...] = ()
    problem: str | None = None
    source_cut_off: bool = False

    @property
    def text(self) -> str:
        """The best hypothesis, or an empty text if there is none."""
        return self.hypotheses[0].text if self.hypotheses else ""


class Translator:
    """Translates sentences with any encoder-decoder of transformers.

        translator = Translator.from_pretrained("runs/dates")
        translator(["mercredi 27 janvier 1999"])  # ["1999-01-27"]

    Args:
        model: an encoder-decoder that can `generate`, which is put into evaluation mode; or an engine.
        source_tokenizer: encodes the source, with the end token that the model was trained with.
        target_tokenizer: decodes the translation; None means the source tokenizer.
        max_source_length: maximum tokens of a source, including the end token. `"auto"` is 1,024, or the
            length in training if that is more. None means the number of the model's positions.
        too_long: `"cut"` truncates a longer source, `"skip"` returns an empty translation with the problem.
            None means `"cut"` if `max_source_length` is a number, else `"skip"`.
        max_tokens_per_batch: maximum tokens of a batch, with padding and the tokens that may be generated. A
            longer sentence is a batch by itself.
        source_language: of a multilingual model, as its tokenizer names it (see `for_languages`). None means
            the one that is saved with the tokenizer.
        target_language: likewise.
        source_prefix: comes before each sentence, as T5's "translate English to German: ". None means the
            one that is saved with the tokenizer.
        options: of the lengths of translations (see `TargetLengths`) and of the search or sampling (see
            `SearchOptions`).

    Raises:
        UserError: an option is out of range or contradicts another, the engine does not support it, or the
            tokenizer does not know a language.
    """

    def __init__(
        self,
        model: PreTrainedModel | Engine,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_source_length: int | Literal["auto"] | None = "auto",
        too_long: TooLong | None = None,
        max_tokens_per_batch: int = 8192,
        source_language: str | None = None,
        target_language: str | None = None,
        source_prefix: str | None = None,
        **options: Any,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        self.lengths, self.options = _lengths_and_search(options)
        self.engine = model if isinstance(model, Engine) else TorchEngine(model)
        self.source_tokenizer, self.target_tokenizer = for_languages(
            source_tokenizer,
            target_tokenizer or source_tokenizer,
            source_language=source_language,
            target_language=target_language,
            source_prefix=source_prefix,
        )
        self._sources = TextCodec(self.source_tokenizer, "source")
        self._targets = TextCodec(self.target_tokenizer, "target")
        self.start_options = self._targets.start_options()
        if target_language is None:
            check_language(self.engine.generation_config, self.target_tokenizer, self.start_options)
        self.engine.check(self.options, self.start_options)
        _check_special_tokens(self.engine)
        self.positions = self.engine.source_positions
        if too_long not in (None, "cut", "skip"):
            raise UserError(f"too_long={too_long!r} is unknown; expected 'cut' or 'skip'")
        self.too_long = too_long or ("cut" if isinstance(max_source_length, int) else "skip")
        if max_source_length == "auto":
            max_source_length = default_source_length(self.engine.generation_config, source_tokenizer)
        self._sources.frame().check_room(max_source_length=max_source_length)
        self.max_source_length = max_source_length
        self.max_length = min(
            self.lengths.max_length, self.engine.target_positions or self.lengths.max_length
        )
        self.max_tokens_per_batch = max_tokens_per_batch

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        engine: EngineName = "torch",
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        quantization: str | None = None,
        revision: str | None = None,
        allow_mismatch: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model with its tokenizers.

        Args:
            name: a folder, or a name on the Hub, of an encoder-decoder of transformers or vaswani; for other
                engines than torch, of what `vaswani export` or the engine's own converter wrote.
            engine: that searches.
            device: None means a CUDA device if there is one, else the CPU.
            dtype: of the weights; None means as saved. CTranslate2 also has "int8" and other types.
            quantization: `"int8"` quantizes the weights after loading (see `vaswani.inference.quantization`);
                None leaves them as they are.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: accept tokenizers or weights that seem to belong to another model.
            options: of the class.

        Raises:
            UserError: an option is out of range; the model cannot be loaded (see `load_checkpoint`); or the
                engine is unknown or not installed.
        """
        _lengths_and_search(options, others=True)  # raises before a model is loaded
        load = LoadOptions(
            device=device,
            dtype=dtype,
            quantization=quantization,
            revision=revision,
            allow_mismatch=allow_mismatch,
        )
        return cls(*load_engine(engine, name, load), **options)

    @property
    def model(self) -> Any:
        """The model of a `TorchEngine`."""
        return cast(TorchEngine, self.engine).model

    def __call__(self, sentences: Iterable[str]) -> list[str]:
        """Translate sentences in order; an empty one stays empty.

        A sentence that is too long gives an empty text with a warning, or is truncated (see `too_long`).
        """
        translations = list(self.translate(sentences, with_scores=False))
        for number, translation in enumerate(translations):
            if translation.problem:
                warnings.warn(f"sentence {number} is left empty: {translation.problem}", stacklevel=2)
        return [translation.text for translation in translations]

    def translate(
        self,
        sentences: Iterable[str],
        *,
        n_best: int = 1,
        with_scores: bool = True,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Translation]:
        """Translate a stream of sentences in order.

        Args:
            sentences: any number; they are read, sorted by length and translated one buffer at a time.
            n_best: hypotheses of each; at most `num_beams`. With `temperature`, samples of each, sorted by
                their scores.
            with_scores: score the hypotheses, which takes another pass over them.
            buffer_size: sentences read ahead; fewer at the beginning, and if they are very long.
            progress: is called with the number of sentences of each finished batch.

        Raises:
            UserError: an argument is out of range, or a single text is given.
            RunError: during iteration, if a batch does not fit into the device's memory, or scores are NaN
                or infinite.
        """
        if isinstance(sentences, str):
            raise UserError(f"expected a list of sentences, got one text: write [{sentences[:20]!r}]")
        check_positive(n_best=n_best, buffer_size=buffer_size)
        if self.options.sampling is None and n_best > (beams := self.options.num_beams):
            raise UserError(f"n_best={n_best} is more than num_beams={beams}; raise num_beams")
        asked = _Asked(n_best, with_scores, progress or (lambda count: None))
        return chain.from_iterable(self._translate_buffers(buffers(sentences, buffer_size), asked))

    def _translate_buffers(
        self, sentences: Iterable[list[str]], asked: _Asked
    ) -> Iterator[list[Translation]]:
        start = 0
        for buffer in sentences:
            yield self._translate_buffer(buffer, start, asked)
            start += len(buffer)

    def _translate_buffer(self, sentences: list[str], start: int, asked: _Asked) -> list[Translation]:
        """Translate the sentences of a buffer, the first of which is number `start` of all."""
        translations = [Translation(sentence) for sentence in sentences]
        token_ids = self._encode(sentences)
        cut_off = self._cut_off(token_ids)
        for row, ids in [*token_ids.items()]:
            if problem := self._problem(len(ids)):
                del token_ids[row]
                translations[row] = Translation(sentences[row], problem=problem)
        asked.done(len(sentences) - len(token_ids))
        tokens = {row: len(ids) + self._limit(len(ids)) for row, ids in token_ids.items()}
        for batch in batches(tokens, self.max_tokens_per_batch):
            sources = [token_ids[row] for row in batch]
            demands = [self._demands(len(token_ids[row]), start + row) for row in batch]
            for row, hypotheses in zip(batch, self._translate_batch(sources, demands, asked), strict=True):
                translations[row] = Translation(sentences[row], hypotheses, source_cut_off=row in cut_off)
            asked.done(len(batch))
        return translations

    def _encode(self, sentences: list[str]) -> dict[int, list[int]]:
        """Return token ids of the sentences that are not empty, by position."""
        rows = [row for row, sentence in enumerate(sentences) if sentence.strip()]
        return dict(zip(rows, self._sources.token_ids([sentences[row] for row in rows]), strict=True))

    def _cut_off(self, token_ids: dict[int, list[int]]) -> set[int]:
        """Truncate sources that are too long, if `too_long` is "cut"; return their rows."""
        limits = [limit for limit in (self.max_source_length, self.positions) if limit is not None]
        most = min(limits, default=None) if self.too_long == "cut" else None
        longer = {} if most is None else {row: ids for row, ids in token_ids.items() if len(ids) > most}
        if most is not None and longer:
            frame = self._sources.frame()
            token_ids.update({row: frame.cut(ids, most) for row, ids in longer.items()})
        return set(longer)

    def _problem(self, length: int) -> str | None:
        """Describe why a source of this length is not translated; None if it is."""
        if self.positions is not None and length > self.positions:
            return (
                f"it has {length:,} tokens, and the model has positions for {self.positions:,}; "
                f"max_source_length={self.positions} would truncate it"
            )
        if self.max_source_length is not None and length > self.max_source_length:
            return (
                f"it has {length:,} tokens, more than max_source_length={self.max_source_length}; "
                "raise that, or truncate it (too_long=cut)"
            )
        return None

    def _limit(self, source_length: int) -> int:
        """Return the maximum length of a translation for a source of this length (see `TargetLengths`)."""
        return min(self.lengths.most(source_length), self.max_length)

    def _demands(self, source_length: int, number: int) -> Demands:
        """Return what the translation of a source of this length must be; `number` is its place."""
        least = min(self.lengths.least(source_length), self._limit(source_length))
        return Demands(min_length=least, number=number)

    def _translate_batch(
        self, sources: list[list[int]], demands: list[Demands], asked: _Asked
    ) -> list[tuple[Hypothesis, ...]]:
        with within_memory("sentences", len(sources), len(sources[0])):
            found = self.engine.search(
                sources,
                [self._limit(len(source)) for source in sources],
                self.options,
                start_options=self.start_options,
                demands=demands,
                n_best=asked.n_best,
                with_scores=asked.with_scores,
            )
        texts = iter(self._targets.decode([output.token_ids for output in chain.from_iterable(found)]))
        hypotheses = [[self._hypothesis(next(texts), output) for output in outputs] for outputs in found]
        return [_ranked(each) if self._ranks_by_score else tuple(each) for each in hypotheses]

    @property
    def _ranks_by_score(self) -> bool:
        """Whether hypotheses are in the order of their scores, in which no repetition is penalized."""
        of_model = getattr(self.engine.generation_config, "repetition_penalty", None)
        penalty = self.options.repetition_penalty
        return self.options.sampling is not None or (of_model if penalty is None else penalty) in (None, 1)

    def _hypothesis(self, text: str, output: Output) -> Hypothesis:
        return Hypothesis(text, output.complete, output.score(self.options.length_penalty), output.log_prob)


@dataclass(frozen=True)
class _Asked:
    """What a call of `Translator.translate` asks for."""

    n_best: int
    with_scores: bool
    done: Callable[[int], object]


def _lengths_and_search(options: dict[str, Any], others: bool = False) -> tuple[TargetLengths, SearchOptions]:
    """Return the options of lengths and of the search; `others` may be among them."""
    names = {field.name for field in fields(TargetLengths)}
    lengths = {name: value for name, value in options.items() if name in names}
    known = names | {field.name for field in fields(SearchOptions)}
    search = {name: value for name, value in options.items() if name not in names}
    if others:
        search = {name: value for name, value in search.items() if name in known}
    return TargetLengths(**lengths), SearchOptions(**search)


def _ranked(hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return hypotheses by their scores, or as they are without scores."""
    return tuple(sorted(hypotheses, key=lambda hypothesis: -(hypothesis.score or 0.0)))


def default_source_length(generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the default of `max_source_length` (see `Translator`)."""
    trained = getattr(generation_config, "max_source_length", None)  # saved by training
    known = [length for length in (length_limit(tokenizer), trained) if isinstance(length, int)]
    return max([DEFAULT_SOURCE_LENGTH, *known])


def _check_special_tokens(engine: Engine) -> None:
    """Raise a UserError unless the model has tokens that begin and end its outputs."""
    generation: Any = engine.generation_config
    begins = generation.decoder_start_token_id, generation.bos_token_id
    missing = {
        "decoder_start_token_id": all(token is None for token in begins),
        "eos_token_id": generation.eos_token_id is None,
    }
    if names := [name for name, is_missing in missing.items() if is_missing]:
        raise UserError(
            f"the model's generation_config.json has no {' and no '.join(names)}, so it cannot translate; "
            "add them, or use another checkpoint"
        )


def check_language(
    generation_config: GenerationConfig, tokenizer: PreTrainedTokenizerBase, start_options: dict[str, int]
) -> None:
    """Raise a UserError if the tokenizer and the model name different target languages."""
    languages = getattr(tokenizer, "lang_code_to_id", {}).values()
    for option, token in start_options.items():
        of_model = getattr(generation_config, option)
        names_language = option == "forced_bos_token_id" or of_model in languages
        if names_language and of_model not in (None, token):
            raise UserError(
                f"the tokenizer's target language is token {token}, and the model has {option}={of_model}; "
                f"let tgt_lang in tokenizer_config.json and {option} in generation_config.json agree"
            )
