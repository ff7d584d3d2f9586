"""Batches for causal language models: packed documents that do not attend to each other, or single documents.

A packed row is a sequence of documents, each `<s> ... </s>`. Its positions restart at 0 with every document.
A model that gets such positions and no attention mask keeps attention within each document (as transformers
does for `DataCollatorWithFlattening`). Only the last row of a corpus is padded.

B rows of a batch · S tokens of its longest row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaswani.data.collation import IGNORED_LABEL, Example, pad


@dataclass(frozen=True)
class PackingCollator:
    """Make batches of packed documents.

    All tokens are labels except the first of each row and document, which has no context.

    Args:
        pad_token_id: pads shorter rows.
        bos_token_id: begins every document and occurs nowhere else.
    """

    pad_token_id: int
    bos_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Return int64 `input_ids`, `position_ids` and `labels` [B, S] from rows with `input_ids`."""
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
    """Make batches, with an attention mask, from rows of one document, or a part of one, each.

    Args:
        pad_token_id: pads shorter rows.
    """

    pad_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Return int64 `input_ids`, `attention_mask` and `labels` [B, S] from rows with `input_ids`.

        The first `context` tokens of a row, or else its first, are no labels, as in packed rows.
        """
        input_ids, mask = pad([row["input_ids"] for row in examples], self.pad_token_id)
        context = np.array([row.get("context", 1) for row in examples])
        is_label = (mask == 1) & (np.arange(input_ids.shape[1]) >= context[:, None])
        labels = np.where(is_label, input_ids, IGNORED_LABEL)
        arrays = {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}
