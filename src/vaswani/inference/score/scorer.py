"""Score given texts by any encoder-decoder, causal or masked language model of transformers or vaswani.

A score does not depend on the batch, except for rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.errors import UserError, check_positive
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.run_metadata import auto_class_of, class_name, read_config
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, check_several, listed, within_memory
from vaswani.inference.decoding import GNMTLengthPenalty
from vaswani.inference.finite_scores import check_finite_scores
from vaswani.inference.loading import FromPretrained
from vaswani.inference.pairs import Pair, PairEncoder
from vaswani.inference.score.token_scores import (
    CausalScores,
    Encoded,
    MaskedScores,
    PairScores,
    TokenScores,
)

Kind = Literal["seq2seq", "causal", "masked"]

KINDS: dict[Any, Kind] = {
    AutoModelForSeq2SeqLM: "seq2seq",
    AutoModelForCausalLM: "causal",
    AutoModelForMaskedLM: "masked",
    AutoModelForPreTraining: "masked",
}
EXPECTED = "an encoder-decoder, or a causal or masked language model"


@dataclass(frozen=True)
class Score:
    """The score of one text.

    Args:
        log_prob: the sum of the natural log-probabilities of the tokens; None with a problem.
        num_tokens: the number of scored tokens.
        tokens: each scored token, as in the vocabulary, with its log-probability; None if not requested.
        problem: why the text was not scored; None if it was.
        cut_off: whether its source was truncated.
        forced_log_prob: the part of `log_prob` that belongs to a first token which the model forces
            (`forced_bos_token_id`), such as the tag of a language. Rankings do not count it.
    """

    log_prob: float | None
    num_tokens: int = 0
    tokens: tuple[tuple[str, float], ...] | None = None
    problem: str | None = None
    cut_off: bool = False
    forced_log_prob: float = 0.0

    @property
    def chosen_log_prob(self) -> float | None:
        """`log_prob` - `forced_log_prob`; None with a problem."""
        return None if self.log_prob is None else self.log_prob - self.forced_log_prob

    @property
    def perplexity(self) -> float | None:
        """exp(-log_prob / num_tokens); None without tokens, or if it is too large for a float."""
        return None if self.log_prob is None else perplexity_of(self.log_prob, self.num_tokens)


def perplexity_of(log_prob: float, num_tokens: int) -> float | None:
    """Return exp(-log_prob / num_tokens); None without tokens, or if it is too large for a float."""
    if not num_tokens:
        return None
    try:
        return math.exp(-log_prob / num_tokens)
    except OverflowError:
        return None


def kind_of(config: PreTrainedConfig) -> Kind | None:
    """Return how the model of a configuration scores texts; None if it cannot.

    Args:
        config: the configuration, with the name of the model's class.
    """
    return "seq2seq" if config.is_encoder_decoder else KINDS.get(auto_class_of(config))


def _kind_of_model(model: PreTrainedModel) -> Kind:
    """Return how a model scores texts, from its class, which its configuration may not name."""
    config = copy.copy(model.config)
    config.architectures = [type(model).__name__]
    kind = kind_of(config) or kind_of(model.config)
    if kind is None:
        raise UserError(f"a {type(model).__name__} gives tokens no probabilities; expected {EXPECTED}")
    return kind


def kind_of_checkpoint(name: str | Path, revision: str | None = None) -> Kind:
    """Return how the model in a folder or on the Hub scores texts (see `kind_of`), without loading the model.

    Raises:
        UserError: the model cannot score texts.
    """
    folder = local_folder(name, revision, weights=False)
    config = read_config(folder)
    kind = kind_of(config)
    if kind is None:
        raise UserError(
            f"{folder} holds {class_name(config)}, which gives tokens no probabilities; expected {EXPECTED}"
        )
    return kind


class Scorer(FromPretrained):
    """Scores texts, or targets of given sources, with any language model or encoder-decoder.

        scorer = Scorer.from_pretrained("runs/dates")
        scorer([("March 3, 2024", "2024-03-03")])[0].log_prob

    Encoder-decoders score pairs of a source and a target: log P(Y|X), with the end token, as
    `Translator` scores its hypotheses. Causal and masked language models score texts (see `CausalScores` and
    `MaskedScores`).

    Args:
        model: the model; it is put into evaluation mode.
        source_tokenizer: encodes sources, or the texts of a language model.
        target_tokenizer: encodes targets; None means the source tokenizer.
        length_penalty: α of GNMT's length penalty, with which `rank` compares the targets of one source.
        max_length: maximum tokens of a target or text; longer ones are not scored. None means the limit of
            the model, or 4,096 if it has none.
        max_tokens_per_batch: maximum tokens of a batch, padding included. A longer text forms its own batch.
        pair_options: options for an encoder-decoder: `max_source_length`, `too_long`, `source_language`,
            `target_language` and `source_prefix`, as in `Translator`.

    Attributes:
        kind: how the model scores texts (see `kind_of`).

    Raises:
        UserError: an option is out of range or not for this model, or the model scores no texts.
    """

    _has_target = True
    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        length_penalty: float = 0.6,
        max_length: int | None = None,
        max_tokens_per_batch: int = 8192,
        **pair_options: Any,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch, max_length=max_length)
        kind = _kind_of_model(model)
        if pair_options and kind != "seq2seq":
            raise UserError(f"{next(iter(pair_options))} is for encoder-decoders; leave it out")
        try:
            self.length_penalty = GNMTLengthPenalty(length_penalty)
        except ValueError as error:
            raise UserError(str(error)) from error
        self.kind = kind
        self.model = model.eval()
        self.max_tokens_per_batch = max_tokens_per_batch
        self._scores: TokenScores
        if kind == "seq2seq":
            tokenizers = source_tokenizer, target_tokenizer
            pairs = PairEncoder(model, *tokenizers, max_length=max_length, **pair_options)
            self._scores = PairScores(model, pairs)
        else:
            of_kind = CausalScores if kind == "causal" else MaskedScores
            self._scores = of_kind(model, source_tokenizer, max_length)

    @classmethod
    def _class_to_load(cls, name: str | Path, revision: str | None) -> Any:
        return AutoModelForSeq2SeqLM if kind_of_checkpoint(name, revision) == "seq2seq" else None

    def __call__(self, texts: Iterable[Any], *, with_tokens: bool = False) -> list[Score]:
        """Score texts, in order (see `stream`)."""
        return list(self.stream(texts, with_tokens=with_tokens))

    def stream(
        self,
        texts: Iterable[Any],
        *,
        with_tokens: bool = False,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Score]:
        """Score a stream of texts, in order and in bounded memory.

        Args:
            texts: for an encoder-decoder, pairs of a source and a target, or `Pair`s; else texts. They are
                read, sorted by length and scored one buffer at a time.
            with_tokens: whether to return the tokens.
            buffer_size: number of texts to read ahead; smaller at the beginning and for very long texts.
            progress: is called with the number of texts of each finished batch.

        Raises:
            UserError: a single text is given, or an item is not what the model scores (a text or a pair).
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        check_several(texts)
        check_positive(buffer_size=buffer_size)
        done = progress or (lambda count: None)
        for buffer in buffers(map(self._checked, texts), buffer_size):
            yield from self._score_buffer(buffer, with_tokens, done)

    def rank(self, source: str, targets: Sequence[str]) -> list[tuple[str, Score]]:
        """Return the targets of a source with their scores, best first (see `rank_key`).

        Raises:
            UserError, RunError: as `stream`.
        """
        targets = listed("targets", targets)
        scores = self([Pair(source, target) for target in targets])
        scored = zip(targets, scores, strict=True)
        return sorted(scored, key=lambda target: self.rank_key(target[1]), reverse=True)

    def rank_key(self, score: Score) -> float:
        """Return `chosen_log_prob` / lp(Y), by which targets are ranked; minus infinity with a problem."""
        chosen = score.chosen_log_prob
        return -math.inf if chosen is None else chosen / self.length_penalty.of(score.num_tokens)

    def _checked(self, text: Any) -> str | Pair:
        is_pair = self.kind == "seq2seq"
        if is_pair and isinstance(text, tuple | list) and len(text) == 2:
            text = Pair(*text)
        parts = [text.source, text.target] if isinstance(text, Pair) else [text]
        if isinstance(text, Pair if is_pair else str) and all(isinstance(part, str) for part in parts):
            return text
        expected = "a source and a target, as it is an encoder-decoder" if is_pair else "a text"
        raise UserError(f"the model scores {expected}; got {str(text)[:60]!r}")

    def _score_buffer(
        self, texts: Sequence[Any], with_tokens: bool, done: Callable[[int], object]
    ) -> list[Score]:
        encoded = self._scores.encode(texts)
        waiting = [0 if text.problem else text.rows for text in encoded]  # rows not scored yet
        sizes = {
            (number, row): encoded[number].size for number, rows in enumerate(waiting) for row in range(rows)
        }
        done(waiting.count(0))
        found: dict[tuple[int, int], list[float]] = {}
        for batch in batches(sizes, self.max_tokens_per_batch):
            with within_memory("texts", len(batch), sizes[batch[0]]):
                log_probs = self._scores.log_probs([(encoded[number], row) for number, row in batch])
            check_finite_scores(all(math.isfinite(each) for row in log_probs for each in row), self.model)
            found.update(zip(batch, log_probs, strict=True))
            for number, _ in batch:
                waiting[number] -= 1
            done(sum(waiting[number] == 0 for number in {number for number, _ in batch}))
        return [
            self._score(text, [each for row in range(text.rows) for each in found[number, row]], with_tokens)
            if text.problem is None
            else Score(None, problem=text.problem)
            for number, text in enumerate(encoded)
        ]

    def _score(self, text: Encoded, log_probs: list[float], with_tokens: bool) -> Score:
        tokens = None
        if with_tokens:
            tokens = tuple(zip(self._scores.codec.tokens(text.scored), log_probs, strict=True))
        is_forced = text.scored[:1] == [self._scores.forced_token_id]
        return Score(
            math.fsum(log_probs),
            len(text.scored),
            tokens,
            cut_off=text.cut_off,
            forced_log_prob=log_probs[0] if is_forced else 0.0,
        )
