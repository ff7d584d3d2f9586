"""Translate with a trained encoder-decoder, as in Vaswani et al., 2017, section 6.1.

Beam search ranks hypotheses by log P(Y|X) / lp(Y) with GNMT's length penalty lp(Y) = ((5 + |Y|) / 6)^α,
α = 0.6, and a translation has at most 50 tokens more than its source. Lengths include the final `</s>`. The
search of a sentence ends when it has as many finished hypotheses as beams, and no other hypothesis scores
above the worst of them at its current length (transformers' `early_stopping=False`).

A translation does not depend on the batch. (Padding changes the last bits of sums, so scores agree to
rounding, and hypotheses with scores that differ by rounding may swap.)

S sentences of a batch · K hypotheses of each · L source length · T target length
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForSeq2SeqLM,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)

from vaswani.data.text_codec import TextCodec, for_languages
from vaswani.data.tokenization import length_limit
from vaswani.errors import UserError, check_positive
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, within_memory
from vaswani.inference.decoding import EXTRA_LENGTH, GNMTLengthPenalty, LengthLimits, position_limit
from vaswani.inference.pretrained import FromPretrained
from vaswani.inference.translate.finite_scores import FiniteScores, check_finite_scores
from vaswani.inference.translate.scoring import sequence_log_probs

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


class Translator(FromPretrained):
    """Translates sentences with any encoder-decoder of transformers.

        translator = Translator.from_pretrained("runs/dates")
        translator(["mercredi 27 janvier 1999"])  # ["1999-01-27"]

    Args:
        model: an encoder-decoder that can `generate`; it is put into evaluation mode.
        source_tokenizer: encodes the source, with the end token that the model was trained with.
        target_tokenizer: decodes the translation; None means the source tokenizer.
        num_beams: hypotheses kept at each step; 1 is greedy search.
        length_penalty: α; 0 ranks by log-probability, which prefers short translations.
        max_source_length: maximum tokens of a source, including the end token. `"auto"` is 1,024, or the
            length in training if that is more. None means the number of the model's positions.
        too_long: `"cut"` truncates a longer source, `"skip"` returns an empty translation with the problem.
            None means `"cut"` if `max_source_length` is a number, else `"skip"`.
        max_length: maximum tokens of a translation, which may have at most 50 more than its source.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice in a translation. None means as the
            model's generation_config.json says.
        max_tokens_per_batch: maximum tokens of a batch, with padding and the tokens that may be generated. A
            longer sentence is a batch by itself.
        source_language: of a multilingual model, as its tokenizer names it (see `for_languages`). None means
            the one that is saved with the tokenizer.
        target_language: likewise.
        source_prefix: comes before each sentence, as T5's "translate English to German: ". None means the
            one that is saved with the tokenizer.

    Raises:
        UserError: an option is out of range, or the tokenizer does not know a language.
    """

    _auto_class, _has_target = AutoModelForSeq2SeqLM, True

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        num_beams: int = 4,
        length_penalty: float = 0.6,
        max_source_length: int | Literal["auto"] | None = "auto",
        too_long: TooLong | None = None,
        max_length: int = 1024,
        no_repeat_ngram_size: int | None = None,
        max_tokens_per_batch: int = 8192,
        source_language: str | None = None,
        target_language: str | None = None,
        source_prefix: str | None = None,
    ):
        check_positive(num_beams=num_beams, max_length=max_length, max_tokens_per_batch=max_tokens_per_batch)
        if no_repeat_ngram_size is not None:
            check_positive(no_repeat_ngram_size=no_repeat_ngram_size)
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self.model = model.eval()
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
            _check_language(model, self.target_tokenizer, self.start_options)
        self.num_beams = num_beams
        try:
            self.length_penalty = GNMTLengthPenalty(length_penalty)
        except ValueError as error:
            raise UserError(str(error)) from error
        _check_special_tokens(model)
        self.positions = position_limit(model, "source")
        if too_long not in (None, "cut", "skip"):
            raise UserError(f"too_long={too_long!r} is unknown; expected 'cut' or 'skip'")
        self.too_long = too_long or ("cut" if isinstance(max_source_length, int) else "skip")
        if max_source_length == "auto":
            max_source_length = _default_source_length(model, source_tokenizer)
        self._sources.frame().check_room(max_source_length=max_source_length)
        self.max_source_length = max_source_length
        self.max_length = min(max_length, position_limit(model, "target") or max_length)
        self.max_tokens_per_batch = max_tokens_per_batch

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
            n_best: hypotheses of each; at most `num_beams`.
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
        if n_best > self.num_beams:
            raise UserError(f"n_best={n_best} is more than num_beams={self.num_beams}; raise num_beams")
        done = progress or (lambda count: None)
        return chain.from_iterable(
            self._translate_buffer(buffer, n_best, with_scores, done)
            for buffer in buffers(sentences, buffer_size)
        )

    def _translate_buffer(
        self, sentences: list[str], n_best: int, with_scores: bool, done: Callable[[int], object]
    ) -> list[Translation]:
        translations = [Translation(sentence) for sentence in sentences]
        token_ids = self._encode(sentences)
        cut_off = self._cut_off(token_ids)
        for row, ids in [*token_ids.items()]:
            if problem := self._problem(len(ids)):
                del token_ids[row]
                translations[row] = Translation(sentences[row], problem=problem)
        done(len(sentences) - len(token_ids))
        tokens = {row: len(ids) + self._limit(len(ids)) for row, ids in token_ids.items()}
        for batch in batches(tokens, self.max_tokens_per_batch):
            found = self._translate_batch([token_ids[row] for row in batch], n_best, with_scores)
            for row, hypotheses in zip(batch, found, strict=True):
                translations[row] = Translation(sentences[row], hypotheses, source_cut_off=row in cut_off)
            done(len(batch))
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
        """Return the maximum length of a translation for a source of this length (section 6.1)."""
        return min(source_length + EXTRA_LENGTH, self.max_length)

    def _translate_batch(
        self, token_ids: list[list[int]], n_best: int, with_scores: bool
    ) -> list[tuple[Hypothesis, ...]]:
        with within_memory("sentences", len(token_ids), len(token_ids[0])):
            return self._search(token_ids, n_best, with_scores)

    @torch.inference_mode()
    def _search(
        self, token_ids: list[list[int]], n_best: int, with_scores: bool
    ) -> list[tuple[Hypothesis, ...]]:
        """Return the `n_best` hypotheses of each source of a batch."""
        device = self.model.device
        limits = torch.tensor([self._limit(len(source)) for source in token_ids], device=device)
        sources = [torch.tensor(source, device=device) for source in token_ids]
        input_ids = pad_sequence(sources, True, self.source_tokenizer.pad_token_id or 0)  # [S, L]
        attention_mask = pad_sequence([torch.ones_like(source) for source in sources], True)
        ranking: dict[str, Any] = (
            {"length_penalty": self.length_penalty, "early_stopping": False} if self.num_beams > 1 else {}
        )
        if self.no_repeat_ngram_size is not None:
            ranking["no_repeat_ngram_size"] = self.no_repeat_ngram_size
        finite = FiniteScores(self.num_beams)
        sequences = self.model.generate(  # [S·K, 1 + T], with the decoder's start token
            input_ids=input_ids,
            attention_mask=attention_mask,
            num_beams=self.num_beams,
            num_return_sequences=n_best,
            do_sample=False,
            use_cache=True,  # training may have disabled it in the configuration
            max_new_tokens=None,
            max_length=1 + int(limits.max()),
            forced_eos_token_id=None,  # some configurations force it at the end of the batch's longest
            stopping_criteria=StoppingCriteriaList([LengthLimits(limits)]),
            logits_processor=LogitsProcessorList([finite]),
            **self.start_options,
            **ranking,
        )
        finite.check(self.model)
        lengths, complete = self._endings(sequences[:, 1:], limits.repeat_interleave(n_best))
        hypotheses = self._decode(sequences[:, 1:], lengths, complete)
        if with_scores:
            log_probs = sequence_log_probs(self.model, input_ids, attention_mask, sequences, lengths)
            check_finite_scores(log_probs.isfinite().all(), self.model)
            hypotheses = self._score(hypotheses, log_probs, lengths)
        groups = [hypotheses[start : start + n_best] for start in range(0, len(hypotheses), n_best)]
        return [tuple(sorted(group, key=lambda hypothesis: -(hypothesis.score or 0.0))) for group in groups]

    def _endings(self, tokens: torch.Tensor, limits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the length of each hypothesis, with its `</s>`, and whether it has one: both [S·K].

        `generate` may pad with `</s>`, so that only one within the limit counts.
        """
        end_token_ids = torch.tensor(self.model.generation_config.eos_token_id, device=tokens.device)
        within_limit = torch.arange(tokens.shape[1], device=tokens.device) < limits[:, None]
        is_end = torch.isin(tokens, end_token_ids) & within_limit  # [S·K, T]
        complete = is_end.any(dim=1)
        return torch.where(complete, is_end.int().argmax(dim=1) + 1, limits), complete

    def _decode(
        self, tokens: torch.Tensor, lengths: torch.Tensor, complete: torch.Tensor
    ) -> list[Hypothesis]:
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        texts = self._targets.decode([row[:length] for row, length in rows])
        return [Hypothesis(text, end) for text, end in zip(texts, complete.tolist(), strict=True)]

    def _score(
        self, hypotheses: list[Hypothesis], log_probs: torch.Tensor, lengths: torch.Tensor
    ) -> list[Hypothesis]:
        scores = log_probs / self.length_penalty.of(lengths)
        rows = zip(hypotheses, scores.tolist(), log_probs.tolist(), strict=True)
        return [replace(hypothesis, score=score, log_prob=log_prob) for hypothesis, score, log_prob in rows]


def _default_source_length(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the default of `max_source_length` (see `Translator`)."""
    trained = getattr(model.generation_config, "max_source_length", None)  # saved by training
    known = [length for length in (length_limit(tokenizer), trained) if isinstance(length, int)]
    return max([DEFAULT_SOURCE_LENGTH, *known])


def _check_special_tokens(model: PreTrainedModel) -> None:
    """Raise a UserError unless the model has tokens that begin and end its outputs."""
    generation: Any = model.generation_config
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


def _check_language(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, start_options: dict[str, int]
) -> None:
    """Raise a UserError if the tokenizer and the model name different target languages."""
    languages = getattr(tokenizer, "lang_code_to_id", {}).values()
    for option, token in start_options.items():
        of_model = getattr(model.generation_config, option)
        names_language = option == "forced_bos_token_id" or of_model in languages
        if names_language and of_model not in (None, token):
            raise UserError(
                f"the tokenizer's target language is token {token}, and the model has {option}={of_model}; "
                f"let tgt_lang in tokenizer_config.json and {option} in generation_config.json agree"
            )
