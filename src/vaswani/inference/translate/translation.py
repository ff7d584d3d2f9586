"""Translate with a trained encoder-decoder, as in Vaswani et al., 2017, section 6.1.

Beam search ranks hypotheses by log P(Y|X) / lp(Y) with GNMT's length penalty lp(Y) = ((5 + |Y|) / 6)^α,
α = 0.6, and a translation has at most 50 tokens more than its source. Lengths include the final `</s>`. The
search of a sentence ends when it has as many finished hypotheses as beams, and no other hypothesis scores
above the worst of them at its current length (transformers' `early_stopping=False`).

With `temperature`, translations are sampled from the model instead; n-best lists hold independent samples.

A translation does not depend on the batch. (Padding changes the last bits of sums, so scores agree to
rounding, and hypotheses with scores that differ by rounding may swap.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import RunError, UserError, check_positive
from vaswani.inference.align.words import Words, words_of_texts
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, checked, listed, within_memory
from vaswani.inference.required_phrases import Phrase, tokens_needed
from vaswani.inference.sides import EncodedText, Sides, TooLong
from vaswani.inference.translate.engine import Demands, Engine, Output, SearchOptions
from vaswani.inference.translate.engines import (
    EngineName,
    EnsembleOptions,
    LoadOptions,
    load_engine,
    load_ensemble,
)
from vaswani.inference.translate.lengths import TargetLengths
from vaswani.inference.translate.phrases import (
    Line,
    banned_spellings,
    check_phrases,
    find_spelling,
    prefix_tokens,
    required_phrase,
)
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.unknown_words import UnknownWords
from vaswani.inference.translate.word_alignment import WordAlignment, word_alignment

if TYPE_CHECKING:
    from typing_extensions import Self

_MISSING: Any = object()
_MOST_SPELLINGS = 200  # of banned phrases, found in outputs of a sentence and then suppressed


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Args:
        text: the translation, without special tokens.
        complete: whether it ends with `</s>`, and not at the length limit.
        score: ranks hypotheses: `log_prob` / lp(Y); None without scores.
        log_prob: log P(Y|X), the sum of the natural log-probabilities of the tokens and `</s>`; or None.
        alignment: pairs of a source word and a word of the translation, both counted from 0; None without
            `alignments`, or if the words are not known (see `word_alignment`).
    """

    text: str
    complete: bool
    score: float | None = None
    log_prob: float | None = None
    alignment: WordAlignment | None = None


@dataclass(frozen=True)
class Translation:
    """The result for one sentence.

    Args:
        source: the sentence.
        hypotheses: hypotheses, best first; empty for an empty sentence or one with a problem.
        problem: why the sentence could not be translated; None if it could.
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

    @property
    def cut_off(self) -> bool:
        """Whether the best hypothesis ends at the length limit."""
        return any(not best.complete for best in self.hypotheses[:1])


class Translator:
    """Translates sentences with any encoder-decoder of transformers.

        translator = Translator.from_pretrained("runs/dates")
        translator(["mercredi 27 janvier 1999"])  # ["1999-01-27"]

    Args:
        model: an encoder-decoder that can `generate` (it is put into evaluation mode), or an engine.
        source_tokenizer: encodes the source, with the end token that the model was trained with.
        target_tokenizer: decodes the translation; None means the source tokenizer.
        max_source_length: maximum tokens of a source, including the end token. `"auto"` means 1,024, or the
            length in training if that is more. None means the number of the model's positions.
        too_long: `"cut"` truncates a longer source, `"skip"` returns an empty translation with the problem.
            None means `"cut"` if `max_source_length` is a number, else `"skip"`.
        max_tokens_per_batch: maximum tokens of a batch, with padding and the tokens that may be generated. A
            longer sentence forms its own batch.
        source_language: source language of a multilingual model, as its tokenizer names it (see
            `for_languages`). None means the language saved with the tokenizer.
        target_language: target language, in the same form.
        source_prefix: text before each sentence, such as T5's "translate English to German: "; empty for
            none. None means the prefix saved with the tokenizer.
        replace_unknown: replace unknown tokens by words of the source (see `UnknownWords`).
        alignments: align the words of each hypothesis to the words of the source.
        banned_phrases: texts that no translation contains, not even as part of a word.
        required_phrases: texts that every translation contains (see `RequiredPhrases`).
        options: options for the lengths of translations (see `TargetLengths`) and for the search or sampling
            (see `SearchOptions`).

    Raises:
        UserError: an option is out of range or contradicts another, the engine does not support it, the
            tokenizer does not know a language, or the target vocabulary cannot write a required phrase.
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
        replace_unknown: bool = False,
        alignments: bool = False,
        banned_phrases: Sequence[str] | None = None,
        required_phrases: Sequence[str] | None = None,
        **options: Any,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        self.lengths, self.options = _lengths_and_search(options)
        self.banned_phrases, self.required_phrases = check_phrases(banned_phrases, required_phrases)
        self.engine = model if isinstance(model, Engine) else TorchEngine(model)
        self.sides = Sides(
            self.engine.generation_config,
            self.engine.source_positions,
            source_tokenizer,
            target_tokenizer,
            max_source_length=max_source_length,
            too_long=too_long,
            source_language=source_language,
            target_language=target_language,
            source_prefix=source_prefix,
        )
        self.start_options = self.sides.start_options
        self._sources, self._targets = self.sides.sources, self.sides.targets
        self.source_tokenizer, self.target_tokenizer = self._sources.tokenizer, self._targets.tokenizer
        _check_special_tokens(self.engine)
        self.max_length = min(
            self.lengths.max_length, self.engine.target_positions or self.lengths.max_length
        )
        if (self.lengths.min_length or 0) > self.max_length:
            raise UserError(
                f"min_length={self.lengths.min_length} is more than the {self.max_length} positions of the "
                "model; lower it"
            )
        self.max_tokens_per_batch = max_tokens_per_batch
        self.engine.check_texts(
            required_phrases=self.required_phrases,
            banned_phrases=self.banned_phrases,
            replace_unknown=replace_unknown,
            alignments=alignments,
        )
        self._forced_tokens = self._count_forced_tokens()
        suppressed = banned_spellings(self._targets, self.banned_phrases)
        if alignments and replace_unknown:
            raise UserError(
                "alignments and replace_unknown exclude each other, because a word that replaces an unknown "
                "one is not aligned; give one of them"
            )
        self._unknown_words = self._checked_unknown_words() if replace_unknown else None
        if alignments:
            self.options = replace(self.options, attention_of="all")
        sequences = dict.fromkeys((*self.options.suppress_sequences, *suppressed))
        self.options = replace(self.options, suppress_sequences=tuple(sequences))
        self._spellings: dict[str, Phrase] = {}
        self._check_room(self.required_phrases)
        self.engine.check(self.options, self.start_options)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | Sequence[str | Path],
        *,
        engine: EngineName = "torch",
        ensemble_weights: Sequence[float] | None = None,
        ensemble_average: str | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        quantization: str | None = None,
        revision: str | None = None,
        allow_mismatch: bool = False,
        **options: Any,
    ) -> Self:
        """Load a model with its tokenizers, or several models that predict together.

        Args:
            name: the folder, or the name on the Hub, of an encoder-decoder of transformers or vaswani; for
                other engines than torch, of a model that `vaswani export` or the engine's own converter
                wrote. The models of a list form an `Ensemble` with the tokenizers of the first; they must
                have the same tokens.
            engine: the engine that searches.
            ensemble_weights: weights of the models, above 0; None means equal weights.
            ensemble_average: how to average their predictions: "probabilities" (the default) or
                "log_probabilities".
            device: None means a CUDA device if there is one, else the CPU.
            dtype: dtype of the weights; None means as saved. CTranslate2 also has "int8" and other types.
            quantization: `"int8"` quantizes the weights after loading (see `vaswani.inference.quantization`);
                None leaves them as they are.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: accept tokenizers or weights that seem to belong to another model.
            options: other arguments of the class.

        Raises:
            UserError: an option is out of range; a model cannot be loaded (see `load_checkpoint`); the
                engine is unknown or not installed; or the tokens of the models differ.
        """
        # These raise before a model is loaded.
        _lengths_and_search(options, others=True)
        check_phrases(options.get("banned_phrases"), options.get("required_phrases"))
        load = LoadOptions(
            device=device,
            dtype=dtype,
            quantization=quantization,
            revision=revision,
            allow_mismatch=allow_mismatch,
        )
        names = [name] if isinstance(name, str | Path) else [*name]
        ensemble = EnsembleOptions(weights=ensemble_weights, average=ensemble_average)
        ensemble.check(len(names), engine, load)
        if len(names) == 1:
            return cls(*load_engine(engine, names[0], load), **options)
        return cls(*load_ensemble(names, load, ensemble), **options)

    @property
    def max_source_length(self) -> int | None:
        """Maximum tokens of a source."""
        return self.sides.max_source_length

    @property
    def model(self) -> Any:
        """The model of a `TorchEngine`."""
        return cast(TorchEngine, self.engine).model

    def __call__(self, sentences: Iterable[str]) -> list[str]:
        """Translate sentences in order; an empty sentence stays empty.

        A sentence that is too long gives an empty text with a warning, or is truncated (see `too_long`).
        """
        translations = list(self.translate(sentences, with_scores=False))
        for number, translation in enumerate(translations):
            if translation.problem:
                warnings.warn(f"sentence {number} is left empty: {translation.problem}", stacklevel=2)
        return [translation.text for translation in translations]

    def translate(
        self,
        sentences: Iterable[str | Line],
        *,
        prefixes: Iterable[str] | None = None,
        required: Iterable[Sequence[str]] | None = None,
        n_best: int = 1,
        with_scores: bool = True,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Translation]:
        """Translate a stream of sentences in order.

        Args:
            sentences: any number of sentences; they are read, sorted by length and translated one buffer at a
                time. Equal sentences of a buffer are translated once, unless they are sampled.
            prefixes: for each sentence, the text that its translation begins with, empty for none. Scores and
                lengths include its tokens.
            required: for each sentence, phrases that its translation contains, besides `required_phrases`.
            n_best: number of hypotheses of each sentence, at most `num_beams`. With `temperature`, number of
                samples of each sentence, sorted by score.
            with_scores: score the hypotheses, which takes another pass over them.
            buffer_size: number of sentences to read ahead; smaller at the beginning and for very long ones.
            progress: is called with the number of sentences of each finished batch.

        Raises:
            UserError: an argument is out of range, or a single text is given.
            RunError: during iteration, if a batch does not fit into the device's memory, or scores are NaN
                or infinite.
        """
        if isinstance(sentences, str | Line):
            text = sentences if isinstance(sentences, str) else sentences.sentence
            raise UserError(f"expected a list of sentences, got one text: write [{text[:20]!r}]")
        check_positive(n_best=n_best, buffer_size=buffer_size)
        if self.options.sampling is None and n_best > (beams := self.options.num_beams):
            raise UserError(f"n_best={n_best} is more than num_beams={beams}; raise num_beams")
        if self.options.sampling is not None and n_best == 1 and (beta := self.options.coverage_penalty):
            raise UserError(
                f"coverage_penalty={beta} ranks the samples of a sentence, and n_best=1; raise n_best, or "
                "leave it out"
            )
        asked = _Asked(n_best, with_scores, progress or (lambda count: None))
        lines = _lines(checked(sentences, (str, Line)), prefixes, required)
        return chain.from_iterable(self._translate_buffers(buffers(lines, buffer_size), asked))

    def stream(
        self, sentence: str, *, prefix: str = "", required: Sequence[str] = (), number: int = 0
    ) -> Generator[str, None, bool]:
        """Yield the translation of a sentence in pieces, as soon as they are found; join them for the whole.

            for piece in translator.stream("mercredi 27 janvier 1999"):
                print(piece, end="", flush=True)

        Args:
            sentence: the sentence; an empty one yields no pieces.
            prefix: text that the translation begins with.
            required: phrases that the translation contains, besides `required_phrases`.
            number: number of the sentence among those that are sampled with the same seed.

        Returns:
            A generator of pieces, which returns whether the translation ends before the length limit.

        Raises:
            UserError: the search has beams; an option needs the whole translation; the engine cannot stream;
                or the sentence cannot be translated, for example because it is too long.
            RunError: during iteration, if the scores are NaN or infinite.
        """
        self.check_stream()
        (line,) = _lines(checked([sentence]), [prefix], [required])
        self.engine.check_texts(prefix=prefix, required_phrases=line.required)
        encoded = self._encode([line], [0])
        if not encoded:
            return self._pieces(iter([self._ends()[0]]))
        row = _Row(line, encoded[0].token_ids, self._demands(line, encoded[0], number))
        tokens = self.engine.stream(
            row.token_ids,
            self._limit(len(row.token_ids)),
            self.options,
            start_options=self.start_options,
            demands=row.demands,
        )
        return self._pieces(tokens)

    def check_stream(self) -> None:
        """Raise a UserError unless the engine and the options find a translation from left to right."""
        self.engine.check_stream()
        if self.options.num_beams > 1:
            raise UserError(
                f"stream follows one hypothesis, and num_beams={self.options.num_beams}; give num_beams=1, "
                "or a temperature"
            )
        whole = {
            "banned_phrases": self.banned_phrases,
            "replace_unknown": self._unknown_words,
            "alignments": self.options.attention_of == "all",
        }
        for name, value in whole.items():
            if value:
                raise UserError(
                    f"{name} needs the whole translation, which stream does not have; leave it out"
                )

    def _ends(self) -> list[int]:
        """Return the tokens that end a translation."""
        given: Any = self.engine.generation_config.eos_token_id
        return given if isinstance(given, list) else [given]

    def _pieces(self, tokens: Iterator[int]) -> Generator[str, None, bool]:
        """Yield words as soon as they are complete; a later token may still change the last word."""
        found: list[int] = []
        written = ""
        for token in tokens:
            found.append(token)
            (text,) = self._targets.decode([found])
            complete = text[: text.rfind(" ") + 1]
            if complete.startswith(written) and complete != written:
                yield complete[len(written) :]
                written = complete
        (text,) = self._targets.decode([found])
        if not text.startswith(written):
            raise RunError(f"the tokenizer has changed the text {written!r}, which is given, to {text!r}")
        if text != written:
            yield text[len(written) :]
        return found[-1] in self._ends()

    def prefix_tokens(self, prefix: str) -> tuple[int, ...]:
        """Return the tokens of a text that translations can begin with, or raise a UserError."""
        return prefix_tokens(self._targets, prefix, self.banned_phrases)

    def _translate_buffers(self, lines: Iterable[list[Line]], asked: _Asked) -> Iterator[list[Translation]]:
        start = 0
        for buffer in lines:
            yield self._translate_buffer(buffer, start, asked)
            start += len(buffer)

    def _translate_buffer(self, lines: list[Line], start: int, asked: _Asked) -> list[Translation]:
        """Translate the sentences of a buffer; its first sentence is number `start` of the stream."""
        translations = [Translation(line.sentence) for line in lines]
        for line in lines:
            self.engine.check_texts(prefix=line.prefix, required_phrases=line.required)
        rows_of = self._equal_rows(lines)  # equal rows, by the first of them
        encoded = self._encode(lines, rows_of)
        rows: dict[int, _Row] = {}
        for number, source in encoded.items():
            try:
                demands = self._demands(lines[number], source, start + number)
            except UserError as error:
                for same in rows_of[number]:
                    translations[same] = Translation(lines[number].sentence, problem=str(error))
            else:
                rows[number] = _Row(lines[number], source.token_ids, demands)
        asked.done(len(lines) - sum(len(rows_of[number]) for number in rows))
        lengths = {number: len(row.token_ids) for number, row in rows.items()}
        tokens = {number: length + self._limit(length) for number, length in lengths.items()}
        for batch in batches(tokens, self.max_tokens_per_batch):
            found = self._translate_batch([rows[number] for number in batch], asked)
            for row, translation in zip(batch, found, strict=True):
                for same in rows_of[row]:
                    translations[same] = replace(translation, source_cut_off=encoded[row].cut_off)
            asked.done(sum(len(rows_of[row]) for row in batch))
        return translations

    def _equal_rows(self, lines: list[Line]) -> dict[int, list[int]]:
        """Group rows with equal lines by the first of them; with sampling, each row forms its own group."""
        if self.options.sampling is not None:
            return {row: [row] for row in range(len(lines))}
        rows: dict[Line, list[int]] = {}
        for row, line in enumerate(lines):
            rows.setdefault(line, []).append(row)
        return {same[0]: same for same in rows.values()}

    def _encode(self, lines: list[Line], rows: Iterable[int]) -> dict[int, EncodedText]:
        """Return the tokens of the non-empty sentences of these rows."""
        rows = [row for row in rows if lines[row].sentence.strip()]
        return dict(zip(rows, self.sides.encode_sources([lines[row].sentence for row in rows]), strict=True))

    def _limit(self, source_length: int) -> int:
        """Return the maximum length of a translation for a source of this length (see `TargetLengths`)."""
        return min(self.lengths.most(source_length), self.max_length)

    def _demands(self, line: Line, source: EncodedText, number: int) -> Demands:
        """Return the constraints on the translation of a line; `number` is its number in the stream.

        Raises:
            UserError: the line cannot be translated; the message says why.
        """
        if source.problem:
            raise UserError(f"it {source.problem}")
        prefix: tuple[int, ...] = ()
        if line.prefix:
            prefix = self.prefix_tokens(line.prefix)
        _, required = check_phrases(self.banned_phrases, (*self.required_phrases, *line.required))
        limit = self._limit(len(source.token_ids))
        phrases = self._check_room(required, len(prefix), limit)
        least = min(self.lengths.least(len(source.token_ids)), limit)
        return Demands(min_length=least, number=number, prefix=prefix, required=phrases)

    def _check_room(
        self, required: Sequence[str], prefix_length: int = 0, limit: int | None = None
    ) -> tuple[Phrase, ...]:
        """Return the spellings of phrases; raise a UserError if prefix and phrases exceed a length limit."""
        for phrase in required:
            if phrase not in self._spellings:
                self._spellings[phrase] = required_phrase(self._targets, phrase)
        phrases = tuple(self._spellings[phrase] for phrase in required)
        needed = prefix_length + tokens_needed(phrases)
        most = (self.max_length if limit is None else limit) - self._forced_tokens
        if needed and needed >= most:
            raise UserError(
                f"the prefix and required phrases take {needed} tokens and the end token, and a translation "
                f"may have {most}; raise max_length or max_length_ratio, or require less"
            )
        return phrases

    def _count_forced_tokens(self) -> int:
        """Return the number of tokens that the model forces to begin an output, such as a language token."""
        of_model = getattr(self.engine.generation_config, "forced_bos_token_id", None)
        return int(self.start_options.get("forced_bos_token_id", of_model) is not None)

    def _translate_batch(self, rows: list[_Row], asked: _Asked) -> list[Translation]:
        with within_memory("sentences", len(rows), len(rows[0].token_ids)):
            found = self._search(rows, self.options, asked)
        return [self._translation(row, written, asked) for row, written in zip(rows, found, strict=True)]

    def _search(self, rows: list[_Row], options: SearchOptions, asked: _Asked) -> list[list[_Written]]:
        """Return the outputs of the engine with their texts."""
        found = self.engine.search(
            [row.token_ids for row in rows],
            [self._limit(len(row.token_ids)) for row in rows],
            options,
            start_options=self.start_options,
            demands=[row.demands for row in rows],
            n_best=asked.n_best,
            with_scores=asked.with_scores,
        )
        texts = iter(self._targets.decode([output.token_ids for output in chain.from_iterable(found)]))
        words = self._words_of_sources(rows) if options.attention_of is not None else [None] * len(rows)
        return [
            [self._written(next(texts), output, row.line.sentence, of_source) for output in outputs]
            for row, outputs, of_source in zip(rows, found, words, strict=True)
        ]

    def _words_of_sources(self, rows: list[_Row]) -> list[Words | None]:
        """Return the word of each token of the sources; None where no token belongs to a word."""
        sentences, token_ids = [row.line.sentence for row in rows], [row.token_ids for row in rows]
        found = words_of_texts(self._sources, sentences, token_ids)
        return [words if any(word is not None for word in words or ()) else None for words in found]

    def _written(self, text: str, output: Output, sentence: str, source_words: Words | None) -> _Written:
        """Return an output with its text and alignment; replace unknown words in the text."""
        if source_words is None:
            return _Written(text, output)
        if self._unknown_words is not None and output.attention:
            text = self._unknown_words.text(output, sentence.split(), source_words)
        is_aligned = self.options.attention_of == "all"
        return _Written(
            text, output, word_alignment(self._targets, source_words, output) if is_aligned else None
        )

    def _checked_unknown_words(self) -> UnknownWords:
        """Ask the engine for the attention of unknown tokens; raise a UserError if there is no such token."""
        unknown = self._targets.unknown_id()
        if unknown is None:
            raise UserError("replace_unknown: the target tokenizer has no unknown token; leave it out")
        self.options = replace(self.options, attention_of=unknown)
        return UnknownWords(self._targets)

    def _translation(self, row: _Row, found: list[_Written], asked: _Asked) -> Translation:
        """Return the translation of a line; search again while a hypothesis has a banned phrase."""
        sentence, options = row.line.sentence, self.options
        while spellings := self._banned_spellings(found):
            options = replace(options, suppress_sequences=(*options.suppress_sequences, *spellings))
            added = len(options.suppress_sequences) - len(self.options.suppress_sequences)
            is_banned_in_vain = len({*options.suppress_sequences}) < len(
                options.suppress_sequences
            )  # one was forced
            if is_banned_in_vain or added > _MOST_SPELLINGS:
                return Translation(sentence, problem="every translation that was found has a banned phrase")
            (found,) = self._search([row], options, asked)
        required = (*self.required_phrases, *row.line.required)
        kept = [
            written
            for written in found
            if written.text.startswith(row.line.prefix)
            and all(phrase in written.text for phrase in required)
            and not any(phrase in written.text for phrase in self.banned_phrases)  # from replaced words
        ]
        if not kept:
            problem = "no translation that was found has the prefix and required phrases and no banned phrase"
            return Translation(sentence, problem=problem)
        hypotheses = [self._hypothesis(written) for written in kept]
        is_ranked = self.engine.ranks_by_score(self.options)
        return Translation(sentence, _ranked(hypotheses) if is_ranked else tuple(hypotheses))

    def _banned_spellings(self, found: list[_Written]) -> set[tuple[int, ...]]:
        """Return the token sequences that write banned phrases in outputs."""
        written = (
            find_spelling(self._targets, each.output.token_ids, phrase)
            for each in found
            for phrase in self.banned_phrases
            if phrase in each.text
        )
        return {tokens for tokens in written if tokens is not None}

    def _hypothesis(self, written: _Written) -> Hypothesis:
        output = written.output
        score = output.score(self.options.length_penalty)
        return Hypothesis(written.text, output.complete, score, output.log_prob, written.alignment)


@dataclass(frozen=True)
class _Row:
    """A line with the tokens of its source, and the constraints on its translation."""

    line: Line
    token_ids: list[int]
    demands: Demands


class _Written(NamedTuple):
    """A hypothesis of an engine with its text."""

    text: str
    output: Output
    alignment: WordAlignment | None = None


@dataclass(frozen=True)
class _Asked:
    """Arguments of a call of `Translator.translate`."""

    n_best: int
    with_scores: bool
    done: Callable[[int], object]


def _lines(
    sentences: Iterable[str | Line],
    prefixes: Iterable[str] | None,
    required: Iterable[Sequence[str]] | None,
) -> Iterator[Line]:
    """Yield the sentences with the prefixes and required phrases of their translations.

    Raises:
        UserError: there are more or fewer prefixes or lists of phrases than sentences, or one is not text.
    """
    if isinstance(prefixes, str):
        listed("prefixes", prefixes)
    given: list[Iterable[Any]] = [each for each in (sentences, prefixes, required) if each is not None]
    for values in zip_longest(*given, fillvalue=_MISSING):
        if _MISSING in values:
            raise UserError("give as many prefixes, and lists of required phrases, as sentences")
        rest = iter(values[1:])
        line = values[0] if isinstance(values[0], Line) else Line(values[0])
        if prefixes is not None:
            line = replace(line, prefix=listed("prefixes", [next(rest)])[0])
        if required is not None:
            line = replace(line, required=listed("required, of a sentence,", next(rest)))
        yield line


def _lengths_and_search(options: dict[str, Any], others: bool = False) -> tuple[TargetLengths, SearchOptions]:
    """Split options into those of lengths and of the search; with `others`, ignore all other options."""
    names = {field.name for field in fields(TargetLengths)}
    lengths = {name: value for name, value in options.items() if name in names}
    known = names | {field.name for field in fields(SearchOptions)}
    search = {name: value for name, value in options.items() if name not in names}
    if others:
        search = {name: value for name, value in search.items() if name in known}
    return TargetLengths(**lengths), SearchOptions(**search)


def _ranked(hypotheses: Iterable[Hypothesis]) -> tuple[Hypothesis, ...]:
    """Return hypotheses sorted by score, best first; without scores, in their given order."""
    return tuple(sorted(hypotheses, key=lambda hypothesis: -(hypothesis.score or 0.0)))


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
