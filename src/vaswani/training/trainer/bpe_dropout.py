"""BPE-dropout (Provilkov et al., 2020, arXiv:1910.13267): each pass splits the training text anew."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import with_bpe_dropout


class BpeDropoutCollator:
    """Splits each training row anew, with merges left out at random, before another collator pads the batch.

    The batches are planned with the lengths of the plain split, so one may exceed its token budget somewhat.
    A row that would grow beyond its limit, or has an unknown token, keeps its plain split. The tokenizers
    library draws from a generator that takes no seed: a run with BPE-dropout cannot be repeated, or resumed,
    bit by bit.

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
        source = with_bpe_dropout(source_tokenizer, p)
        target = source if target_tokenizer is source_tokenizer else with_bpe_dropout(target_tokenizer, p)
        self.sides = {
            "input_ids": (TextCodec(source, "source"), max_source_length),
            "labels": (TextCodec(target, "target"), max_target_length),
        }

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Rows of token ids -> the padded batch of a new split of their texts."""
        columns = {name: self._split([row[name] for row in rows], *self.sides[name]) for name in self.sides}
        return self.collator(
            [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        )

    def _split(self, plain: list[list[int]], codec: TextCodec, max_length: int) -> list[list[int]]:
        dropped = codec.token_ids(codec.decode(plain))
        unknown = codec.unknown_id()  # its text is lost
        return [
            old if len(new) > max_length or unknown in old else new
            for new, old in zip(dropped, plain, strict=True)
        ]
