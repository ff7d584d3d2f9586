"""Denoising for encoder-decoders: the target is the text that was removed from the source.

A marker (a special token) replaces each removed piece of text. Documents are cut into pieces at sentence
ends. Each piece is a row. A `Noise` turns rows into sources and targets when a batch is made, so each epoch
differs.

N tokens of a row · B rows of a batch · S tokens of its longest source · T tokens of its longest target
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Value
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase

from vaswani.data.collation import Example, Seq2SeqCollator
from vaswani.data.columns import Integers
from vaswani.data.text.row_noise import RowNoise
from vaswani.data.text_codec import Frame, TextCodec
from vaswani.data.tokenization import MASK_TOKEN

LENGTHS = {"source_length": Value("int32"), "target_length": Value("int32")}  # special tokens included


class Noise(Protocol):
    """Removes text from a row."""

    def __call__(self, row: Example, generator: np.random.Generator) -> tuple[Integers, Integers]:
        """Return the token ids of source and target, without the special tokens around every text."""


def frames(tokenizer: PreTrainedTokenizerBase) -> tuple[Frame, Frame]:
    """Return the special tokens around every source and every target, as in fine-tuning."""
    return TextCodec(tokenizer, "source").frame(), TextCodec(tokenizer, "target").frame()


class DenoisingCollator(RowNoise):
    """Make batches of sources and targets from rows of text (see `RowNoise` and `Seq2SeqCollator`).

    Args:
        tokenizer: gives the padding token and the special tokens around sources and targets.
        decoder_start_token_id: first token of every decoder input.
        noise: makes a source and a target from each row.
        seed: seed of the noise, not negative.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        decoder_start_token_id: int,
        noise: Noise,
        seed: int = 0,
    ):
        super().__init__(seed)
        self.noise = noise
        self.frames = frames(tokenizer)
        self.collator = Seq2SeqCollator(int(tokenizer.pad_token_id), decoder_start_token_id)

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Return int64: `input_ids` and `attention_mask` [B, S], `labels` and `decoder_input_ids` [B, T]."""
        return self.collator([self.pair(row) for row in examples])

    def pair(self, row: Example) -> dict[str, Integers]:
        """Return the source of a row, as `input_ids`, and its target, as `labels`."""
        tokens = np.asarray(row["input_ids"], dtype=np.int64)
        sides = self.noise({**row, "input_ids": tokens}, self.generator(tokens))
        framed = (
            np.concatenate([frame.leading, side, frame.trailing]).astype(np.int64)
            for frame, side in zip(self.frames, sides, strict=True)
        )
        return dict(zip(("input_ids", "labels"), framed, strict=True))


def with_markers(tokenizer: PreTrainedTokenizerBase, markers: Sequence[str]) -> PreTrainedTokenizerBase:
    """Return the tokenizer, or a copy to which the missing special tokens are added."""
    lacking = [name for name in markers if name not in tokenizer.get_vocab()]
    if not lacking:
        return tokenizer
    tokenizer = copy.deepcopy(tokenizer)
    tokens = {name: AddedToken(name, special=True, normalized=False) for name in lacking}
    if mask := tokens.pop(MASK_TOKEN, None):
        tokenizer.add_special_tokens({"mask_token": mask})
    others: dict[str, Any] = {"extra_special_tokens": list(tokens.values())}
    tokenizer.add_special_tokens(others, replace_extra_special_tokens=False)
    return tokenizer
