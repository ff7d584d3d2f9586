"""Align the words of pairs by the cross-attention of any encoder-decoder of transformers or vaswani.

A target word is aligned to the source word that it attends to most. The attention of a target word to a
source word is the sum over their tokens; special tokens and the tokens of a source prefix belong to no word.
An alignment does not depend on the batch, except for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError, check_positive
from vaswani.inference.align.attention import STEPS, Step, attention_of_pairs
from vaswani.inference.align.links import Links, aligned_words, check_method, symmetrize
from vaswani.inference.align.words import Words, words_of_texts
from vaswani.inference.batches import BUFFERED_TEXTS, batches, buffers, check_ordered, within_memory
from vaswani.inference.cross_attention import Layer, check_returns_weights
from vaswani.inference.loading import FromPretrained
from vaswani.inference.pairs import Pair, PairEncoder


@dataclass(frozen=True)
class Alignment:
    """The links between the words of a pair.

    Args:
        links: pairs of a source word and a target word, both counted from 0.
        problem: why the pair was not aligned; None if it was.
        source_cut_off: whether the source was truncated.
    """

    links: Links = frozenset()
    problem: str | None = None
    source_cut_off: bool = False


class Aligner(FromPretrained):
    """Aligns the words of sources and targets by the cross-attention of an encoder-decoder.

        aligner = Aligner.from_pretrained("runs/dates")
        aligner([("March 3, 2024", "2024-03-03")])[0].links

    Args:
        model: the encoder-decoder; it is put into evaluation mode.
        source_tokenizer: encodes sources.
        target_tokenizer: encodes targets; None means the source tokenizer.
        layer: layer of the decoder, counted from 0, or backward from -1; `"all"` averages all layers. None
            means the last layer but one (Garg et al., 2019, arXiv:1909.02074), or the last of up to three.
        heads: heads of the layer, counted from 0; their weights are averaged. None means all.
        step: the decoder step whose attention represents a target token: `"predict"` is the step that
            predicts the token, `"read"` the step that reads it as input (Chen et al., 2020,
            arXiv:2004.14837).
        max_length: maximum tokens of a target; longer targets are not aligned. None means the limit of the
            model, or 4,096 if it has none.
        max_tokens_per_batch: maximum tokens of a batch, padding included. A longer pair forms its own batch.
        pair_options: `max_source_length`, `source_language`, `target_language` and `source_prefix`, as in
            `Translator`; longer sources are not aligned.

    Raises:
        UserError: an option is out of range, or the model has no such layer or head, or returns no weights.
    """

    _auto_class, _has_target = AutoModelForSeq2SeqLM, True

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        layer: Layer | None = None,
        heads: Sequence[int] | None = None,
        step: Step = "predict",
        max_length: int | None = None,
        max_tokens_per_batch: int = 8192,
        **pair_options: Any,
    ):
        check_positive(max_tokens_per_batch=max_tokens_per_batch)
        if step not in STEPS:
            raise UserError(f"step={step} is unknown; expected {' or '.join(STEPS)}")
        if heads is not None and not heads:
            raise UserError("heads is empty; give numbers of heads, or leave it out for all")
        self.model = model.eval()
        check_returns_weights(model, "an alignment")
        options = {"max_length": max_length, "too_long": "skip", **pair_options}
        self.pairs = PairEncoder(model, source_tokenizer, target_tokenizer, **options)
        self.layer, self.heads, self.step = layer, heads, step
        self.max_tokens_per_batch = max_tokens_per_batch
        self._weights(self.pairs.sources.token_ids(["a"]), self.pairs.targets.token_ids(["a"]))  # raises

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> list[Alignment]:
        """Align the words of pairs, in order (see `stream`)."""
        return list(self.stream(pairs))

    def stream(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Alignment]:
        """Align the words of a stream of pairs, in order and in bounded memory.

        Args:
            pairs: pairs of a source and a target; read, sorted by length and aligned one buffer at a time.
            buffer_size: number of pairs to read ahead; smaller at the beginning and for very long pairs.
            progress: is called with the number of pairs of each finished batch.

        Raises:
            UserError: a single text is given, or an item that is not a pair of texts.
            RunError: a batch does not fit into the device's memory, or its weights are not finite.
        """
        check_positive(buffer_size=buffer_size)
        done = progress or (lambda count: None)
        if isinstance(pairs, str):
            raise UserError(f"expected a list of pairs, got one text: {pairs[:20]!r}")
        check_ordered(pairs, "pairs")
        for buffer in buffers(map(_checked, pairs), buffer_size):
            yield from self._align_buffer(buffer, done)

    def _align_buffer(self, pairs: Sequence[Pair], done: Callable[[int], object]) -> list[Alignment]:
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        sides = self.pairs.encode_sources(sources), self.pairs.encode_targets(targets, [True] * len(pairs))
        words = (
            words_of_texts(self.pairs.sources, sources, [each.token_ids for each in sides[0]]),
            words_of_texts(self.pairs.targets, targets, [each.token_ids for each in sides[1]]),
        )
        alignments = [
            Alignment(problem=_problem(source.problem, target.problem, of_source, of_target))
            if all(map(str.strip, (pair.source, pair.target)))
            else Alignment()
            for pair, source, target, of_source, of_target in zip(pairs, *sides, *words, strict=True)
        ]
        sizes = {
            number: len(sides[0][number].token_ids) + len(sides[1][number].token_ids)
            for number, alignment in enumerate(alignments)
            if alignment.problem is None and sources[number].strip() and targets[number].strip()
        }
        done(len(pairs) - len(sizes))
        for batch in batches(sizes, self.max_tokens_per_batch):
            with within_memory("pairs", len(batch), sizes[batch[0]]):
                weights = self._weights(
                    [sides[0][number].token_ids for number in batch],
                    [self._read(sides[1][number].token_ids, words[1][number]) for number in batch],
                )
            for number, of_pair in zip(batch, weights, strict=True):
                links = aligned_words(of_pair, words[0][number] or [], words[1][number] or [])
                alignments[number] = Alignment(links, source_cut_off=sides[0][number].cut_off)
            done(len(batch))
        return alignments

    def _weights(self, sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
        return attention_of_pairs(
            self.model,
            sources,
            targets,
            self.pairs.start_token_id,
            layer=self.layer,
            heads=self.heads,
            step=self.step,
        )

    def _read(self, token_ids: list[int], words: Words | None) -> list[int]:
        """Return a target up to its last word, because later tokens belong to no word; all if it has none."""
        places = [place for place, word in enumerate(words or []) if word is not None]
        return token_ids[: places[-1] + 1] if places else token_ids


def _checked(pair: Any) -> Pair:
    if not (
        isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
    ):
        raise UserError(f"expected a source and a target, got {str(pair)[:60]!r}")
    return Pair(*pair)


def _problem(
    of_source: str | None, of_target: str | None, source: Words | None, target: Words | None
) -> str | None:
    """Return why a pair is not aligned: a side is too long, or the words of its tokens are unknown."""
    untold = "has tokens that its tokenizer does not map to its words"
    for side, problem, words in (("source", of_source, source), ("target", of_target, target)):
        if problem or words is None:
            return f"its {side} {problem or untold}"
    return None


class SymmetricAligner:
    """Aligns the words of pairs by two models of opposite directions.

    Args:
        forward: aligns with a model from source to target.
        backward: aligns with a model from target to source.
        method: a method of `symmetrize`.

    Raises:
        UserError: the method is unknown.
    """

    def __init__(self, forward: Aligner, backward: Aligner, method: str = "grow-diag-final-and"):
        check_method(method)
        self.forward, self.backward, self.method = forward, backward, method

    def __call__(self, pairs: Iterable[tuple[str, str]]) -> list[Alignment]:
        """Align the words of pairs, in order (see `stream`)."""
        return list(self.stream(pairs))

    def stream(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        buffer_size: int = BUFFERED_TEXTS,
        progress: Callable[[int], object] | None = None,
    ) -> Iterator[Alignment]:
        """Align like `Aligner.stream`; a pair that either model cannot align has a `problem`."""
        given, turned = tee(pairs)
        backward = self.backward.stream(
            ((target, source) for source, target in turned), buffer_size=buffer_size
        )
        forward = self.forward.stream(given, buffer_size=buffer_size, progress=progress)
        for one, other in zip(forward, backward, strict=True):
            if problem := one.problem or other.problem:
                where = "" if one.problem else "in the other direction, "
                yield Alignment(problem=where + problem)
                continue
            links = frozenset((source, target) for target, source in other.links)
            cut_off = one.source_cut_off or other.source_cut_off
            yield Alignment(symmetrize(one.links, links, self.method), source_cut_off=cut_off)
