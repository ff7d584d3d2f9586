"""BPE-dropout (Provilkov et al., 2020, arXiv:1910.13267): each pass splits the training text anew."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from vaswani.data.tokenization import bpe_dropout


class BpeDropoutCollator:
    """Splits each training row anew, with merges left out at random, before another collator pads the batch.

    The batches are planned with the lengths of the plain split, so one may exceed its token budget somewhat.
    A row that would grow beyond its limit keeps its plain split. The tokenizers library draws from a
    generator that takes no seed: a run with BPE-dropout cannot be repeated, or resumed, bit by bit.

    Args:
        collator: takes rows of `input_ids` and `labels` and returns a batch.
        max_source_length, max_target_length: tokens that a split may have.
        p: probability of leaving out a merge.
    """

    def __init__(
        self,
        collator: Callable[[Sequence[dict[str, Any]]], dict[str, Any]],
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        *,
        max_source_length: int,
        max_target_length: int,
        p: float,
    ):
        self.collator = collator
        self.sides = {
            "input_ids": (source_tokenizer, max_source_length),
            "labels": (target_tokenizer, max_target_length),
        }
        self.p = p

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Rows of token ids -> the padded batch of a new split of their texts."""
        columns = {name: self._split([row[name] for row in rows], *self.sides[name]) for name in self.sides}
        return self.collator(
            [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        )

    def _split(
        self, plain: list[list[int]], tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> list[list[int]]:
        texts = tokenizer.batch_decode(plain, skip_special_tokens=True)
        with bpe_dropout(tokenizer, self.p):
            dropped = tokenizer(texts)["input_ids"]
        return [new if len(new) <= max_length else old for new, old in zip(dropped, plain, strict=True)]
