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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError, check_positive
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, check_several, checked, listed
from vaswani.inference.loading import LoadOptions
from vaswani.inference.score.scorer import Scorer
from vaswani.inference.sides import EncodedText, Sides, TooLong
from vaswani.inference.streaming import pieces_of
from vaswani.inference.translate.constraints import Constraints
from vaswani.inference.translate.engine import Engine, SearchOptions
from vaswani.inference.translate.engines import (
    EngineName,
    EnsembleOptions,
    load_engine,
    load_ensemble,
)
from vaswani.inference.translate.lengths import TargetLengths
from vaswani.inference.translate.phrases import Line, banned_spellings, check_phrases, prefix_tokens
from vaswani.inference.translate.reranking import check_n_best, check_reranking, reranking_of
from vaswani.inference.translate.results import Translation
from vaswani.inference.translate.reverse_model import check_reverse_model, load_reverse_model
from vaswani.inference.translate.row_search import Request, Row, RowSearch
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.inference.translate.unknown_words import UnknownWords

if TYPE_CHECKING:
    from typing_extensions import Self

_MISSING: Any = object()


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
        mbr_metric: rank the hypotheses of a search, or the samples, by minimum Bayes risk with this metric,
            "chrf" or "bleu" (see `minimum_risk`). None ranks by scores.
        reverse_model: scorer of a model from target to source, which counts in the ranking (see
            `noisy_channel`).
        reverse_weight: how much it counts. None means 0.4.
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
        mbr_metric: str | None = None,
        reverse_model: Scorer | None = None,
        reverse_weight: float | None = None,
        **options: Any,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        self.max_tokens_per_batch = max_tokens_per_batch
        self.lengths, search = _lengths_and_search(options)
        self.reranking = reranking_of(search, mbr_metric, reverse_model, reverse_weight)
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
        self.start_options, targets = self.sides.start_options, self.sides.targets
        self.source_tokenizer, self.target_tokenizer = self.sides.sources.tokenizer, targets.tokenizer
        _check_special_tokens(self.engine)
        self.constraints = Constraints(
            self.engine, self.sides, self.lengths, self.banned_phrases, self.required_phrases
        )
        self.engine.check_texts(
            required_phrases=self.required_phrases,
            banned_phrases=self.banned_phrases,
            replace_unknown=replace_unknown,
            alignments=alignments,
        )
        suppressed = (*search.suppress_sequences, *banned_spellings(targets, self.banned_phrases))
        self.options = replace(
            search,
            attention_of=_attention_needed(targets, search, alignments, replace_unknown),
            suppress_sequences=tuple(dict.fromkeys(suppressed)),
        )
        self.constraints.spellings(self.required_phrases)  # raises if they do not fit into the limits
        self.engine.check(self.options, self.start_options)
        self._unknown_words = UnknownWords(targets) if replace_unknown else None
        self._search = RowSearch(
            self.engine, self.sides, self.constraints, self.options, self._unknown_words, self.reranking
        )

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path | Sequence[str | Path],
        *,
        engine: EngineName = "torch",
        ensemble_weights: Sequence[float] | None = None,
        ensemble_average: str | None = None,
        reverse_model: str | Path | Scorer | None = None,
        reverse_source_prefix: str | None = None,
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
            reverse_model: the folder, or the name on the Hub, of a model from target to source, which ranks
                the hypotheses in addition (see `noisy_channel`). It runs in PyTorch, with the languages
                exchanged if it knows languages. Or a `Scorer` of such a model, with options of its own.
            reverse_source_prefix: the `source_prefix` of that model, such as ">>fra<< "; None means the
                prefix saved with its tokenizer.
            device: None means a CUDA device if there is one, else the CPU.
            dtype: dtype of the weights; None means as saved. CTranslate2 also has "int8" and other types.
            quantization: `"int8"` quantizes the weights after loading (see `vaswani.inference.quantization`);
                None leaves them as they are.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: accept tokenizers or weights that seem to belong to another model.
            options: other arguments of the class.

        Raises:
            UserError: an option is out of range; a model cannot be loaded (see `load_checkpoint`); the
                engine is unknown or not installed; the tokens of the models differ; or the reverse model is
                of the same direction.
        """
        # These raise before a model is loaded.
        check_search({**options, "reverse_model": reverse_model})
        if reverse_source_prefix is not None and not isinstance(reverse_model, str | Path):
            raise UserError(
                f"reverse_source_prefix={reverse_source_prefix!r} is for a reverse_model to load; name "
                "one, or leave it out"
            )
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
        if isinstance(reverse_model, str | Path):
            check_reverse_model(names, reverse_model, reverse_source_prefix, load, options)
        if len(names) == 1:
            loaded = load_engine(engine, names[0], load)
        else:
            loaded = load_ensemble(names, load, ensemble)
        if isinstance(reverse_model, str | Path):
            of_engine = load if engine == "torch" else replace(load, dtype=None, quantization=None)
            reverse_model = load_reverse_model(
                reverse_model, reverse_source_prefix, loaded[1:], of_engine, options
            )
        return cls(*loaded, reverse_model=reverse_model, **options)

    @property
    def max_source_length(self) -> int | None:
        """Maximum tokens of a source."""
        return self.sides.max_source_length

    @property
    def max_length(self) -> int:
        """Maximum tokens of a translation."""
        return self.constraints.max_length

    @property
    def reranking_options(self) -> dict[str, Any]:
        """The options that rank hypotheses anew, with their values; empty without any."""
        return {} if self.reranking is None else self.reranking.options

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
        check_several(sentences.sentence if isinstance(sentences, Line) else sentences, "sentences")
        check_positive(n_best=n_best, buffer_size=buffer_size)
        check_n_best(n_best, self.options, self.reranking_options)
        lines = _lines(checked(sentences, (str, Line)), prefixes, required)
        done = progress or (lambda count: None)
        return self._translate_buffers(buffers(lines, buffer_size), Request(n_best, with_scores), done)

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
            return self._pieces(iter([self.engine.end_token_ids[0]]))
        token_ids = encoded[0].token_ids
        tokens = self.engine.stream(
            token_ids,
            self.constraints.limit(len(token_ids)),
            self.options,
            start_options=self.start_options,
            demands=self.constraints.demands(line, encoded[0], number),
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
        whole |= self.reranking_options
        for name, value in whole.items():
            if value:
                raise UserError(
                    f"{name} needs the whole translation, which stream does not have; leave it out"
                )

    def _pieces(self, tokens: Iterator[int]) -> Generator[str, None, bool]:
        """Yield words as soon as they are complete; a later token may still change the last word."""
        targets = self.sides.targets
        found, _ = yield from pieces_of(tokens, lambda ids: targets.decode([ids])[0], targets.byte_ids)
        return found[-1] in self.engine.end_token_ids

    def prefix_tokens(self, prefix: str) -> tuple[int, ...]:
        """Return the tokens of a text that translations can begin with, or raise a UserError."""
        return prefix_tokens(self.sides.targets, prefix, self.banned_phrases)

    def _translate_buffers(
        self, lines: Iterable[list[Line]], request: Request, done: Callable[[int], object]
    ) -> Iterator[Translation]:
        start = 0
        for buffer in lines:
            yield from self._translate_buffer(buffer, start, request, done)
            start += len(buffer)

    def _translate_buffer(
        self, lines: list[Line], start: int, request: Request, done: Callable[[int], object]
    ) -> list[Translation]:
        """Translate the sentences of a buffer; its first sentence is number `start` of the stream."""
        translations = [Translation(line.sentence) for line in lines]
        for line in lines:
            self.engine.check_texts(prefix=line.prefix, required_phrases=line.required)
        rows_of = self._equal_rows(lines)  # equal rows, by the first of them
        encoded = self._encode(lines, rows_of)
        rows: dict[int, Row] = {}
        for number, source in encoded.items():
            try:
                demands = self.constraints.demands(lines[number], source, start + number)
            except UserError as error:
                for same in rows_of[number]:
                    translations[same] = Translation(lines[number].sentence, problem=str(error))
            else:
                rows[number] = Row(lines[number], source.token_ids, demands, source.cut_off)
        done(len(lines) - sum(len(rows_of[number]) for number in rows))
        lengths = {number: len(row.token_ids) for number, row in rows.items()}
        tokens = {number: length + self.constraints.limit(length) for number, length in lengths.items()}
        for batch in batches(tokens, self.max_tokens_per_batch):
            found = self._search.translations([rows[number] for number in batch], request)
            for row, translation in zip(batch, found, strict=True):
                for same in rows_of[row]:
                    translations[same] = translation
            done(sum(len(rows_of[row]) for row in batch))
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


def check_search(options: Mapping[str, Any], n_best: int | None = None, remedy: str = "raise n_best") -> None:
    """Raise a UserError if the options of a search contradict each other, before a model is loaded.

    Args:
        options: options of `Translator.from_pretrained`.
        n_best: number of hypotheses of each sentence that will be asked for, if known.
        remedy: see `check_n_best`.
    """
    _, search = _lengths_and_search(options, others=True)
    mbr_metric, reverse_model = options.get("mbr_metric"), options.get("reverse_model")
    check_reranking(search, mbr_metric, reverse_model, options.get("reverse_weight"))
    if n_best is not None:
        check_n_best(n_best, search, {"reverse_model": reverse_model, "mbr_metric": mbr_metric}, remedy)


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


def _lengths_and_search(
    options: Mapping[str, Any], others: bool = False
) -> tuple[TargetLengths, SearchOptions]:
    """Split options into those of lengths and of the search; with `others`, ignore all other options."""
    names = {field.name for field in fields(TargetLengths)}
    lengths = {name: value for name, value in options.items() if name in names}
    known = names | {field.name for field in fields(SearchOptions)}
    search = {name: value for name, value in options.items() if name not in names}
    if others:
        search = {name: value for name, value in search.items() if name in known}
    return TargetLengths(**lengths), SearchOptions(**search)


def _attention_needed(
    targets: TextCodec, search: SearchOptions, alignments: bool, replace_unknown: bool
) -> int | Literal["all"] | None:
    """Return the tokens whose attention the engine reports, as `SearchOptions.attention_of`.

    Raises:
        UserError: the options contradict each other, or there is no unknown token to replace.
    """
    if alignments and replace_unknown:
        raise UserError(
            "alignments and replace_unknown exclude each other, because a word that replaces an unknown "
            "one is not aligned; give one of them"
        )
    if alignments:
        return "all"
    if not replace_unknown:
        return search.attention_of
    if (unknown := targets.unknown_id()) is None:
        raise UserError("replace_unknown: the target tokenizer has no unknown token; leave it out")
    return unknown


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
