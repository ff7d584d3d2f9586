"""Documents packed into blocks for a causal language model, none of which sees another.

A block is a row of tokens in which documents follow one another, each beginning with `<s>` and ending with
`</s>`. Its positions begin again at 0 with every document; a model that is given such positions and no
attention mask keeps attention within each (as transformers does for `DataCollatorWithFlattening`). Only the
last block of all is padded.

B rows of a batch · S its longest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaswani.data.batching import IGNORED_LABEL, Example, pad


@dataclass(frozen=True)
class PackingCollator:
    """Rows of packed documents as a batch.

    The first token of a row, and of a document, is there to be seen: nothing that it could be told from comes
    before it. All others are labels.

    Args:
        pad_token_id: fills rows that are shorter than the longest.
        bos_token_id: begins every document, and stands nowhere else.
    """

    pad_token_id: int
    bos_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """From rows with `input_ids`, int64 tensors [B, S]: `input_ids`, `position_ids` and `labels`."""
        input_ids, is_real = pad([row["input_ids"] for row in examples], self.pad_token_id)
        is_padding = is_real == 0
        starts = (input_ids == self.bos_token_id) | (np.diff(is_padding, prepend=False) & is_padding)
        starts[:, 0] = True
        places = np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)
        positions = places - np.maximum.accumulate(np.where(starts, places, 0), axis=1)
        labels = np.where(starts | is_padding, IGNORED_LABEL, input_ids)
        arrays = {"input_ids": input_ids, "position_ids": positions, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class DocumentCollator:
    """Rows that hold a document each, or a part of one, as a batch with an attention mask.

    Args:
        pad_token_id: fills rows that are shorter than the longest.
    """

    pad_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """From rows with `input_ids`, int64 tensors [B, S]: `input_ids`, `attention_mask` and `labels`."""
        input_ids, mask = pad([row["input_ids"] for row in examples], self.pad_token_id)
        labels = np.where(mask == 1, input_ids, IGNORED_LABEL)
        labels[:, 0] = IGNORED_LABEL  # as in packed rows
        arrays = {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
