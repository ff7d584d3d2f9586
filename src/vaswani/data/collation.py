"""Pad rows of token ids to a batch.

B rows of a batch · S tokens of its longest source · T tokens of its longest target, both with the
end-of-sequence token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Example = Mapping[str, Any]  # one tokenized row: input_ids, labels and other columns
IGNORED_LABEL = -100  # cross-entropy skips these


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pad rows on the right to a batch.

    Also makes the decoder's input, because label smoothing removes the labels before the model is called.

    Args:
        pad_token_id: pads `input_ids` and `decoder_input_ids`; labels are padded with -100.
        decoder_start_token_id: first token of every decoder input; the labels follow, shifted by one.
        pad_to_multiple_of: round S and T up to a multiple of this, for kernels that prefer it.

    Returns:
        From rows with `input_ids` and `labels` (other columns are ignored), int64 tensors: `input_ids` and
        `attention_mask` [B, S] and, if rows have `labels`, `labels` and `decoder_input_ids` [B, T].
    """

    pad_token_id: int
    decoder_start_token_id: int
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of={self.pad_to_multiple_of} must be at least 1")

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Pad a batch."""
        multiple = self.pad_to_multiple_of or 1
        input_ids, attention_mask = pad([row["input_ids"] for row in examples], self.pad_token_id, multiple)
        arrays = {"input_ids": input_ids, "attention_mask": attention_mask}
        if "labels" in examples[0]:
            labels, _ = pad([row["labels"] for row in examples], IGNORED_LABEL, multiple)
            decoder_input_ids = np.full_like(labels, self.decoder_start_token_id)
            decoder_input_ids[:, 1:] = np.where(labels == IGNORED_LABEL, self.pad_token_id, labels)[:, :-1]
            arrays |= {"labels": labels, "decoder_input_ids": decoder_input_ids}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pad_rows(rows: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return padded `input_ids`, `attention_mask` and, if rows have them, `token_type_ids` [B, S]."""
    input_ids, attention_mask = pad([row["input_ids"] for row in rows], pad_token_id)
    padded = {"input_ids": input_ids, "attention_mask": attention_mask}
    if "token_type_ids" in rows[0]:
        padded["token_type_ids"], _ = pad([row["token_type_ids"] for row in rows], 0)
    return padded


def pad(
    sequences: Sequence[Any], filler: int, pad_to_multiple_of: int = 1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return sequences padded on the right, [B, S], and their mask."""
    longest = max(len(sequence) for sequence in sequences)
    shape = (len(sequences), -(-longest // pad_to_multiple_of) * pad_to_multiple_of)
    padded, mask = np.full(shape, filler, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return padded, mask


def source_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the attention mask of a batch, int64 [B, S]; all ones if it has none, as models assume."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"]) if mask is None else mask
