"""Word-level distillation from disk: the k likeliest tokens of each of the teacher's distributions.

For each target position, the k largest probabilities of softmax(z / τ) (Hinton et al., 2015,
arXiv:1503.02531, section 2) are stored with their token ids and with the tail, the summed probability of all
other tokens. They are logarithms relative to the largest, in float16, which is most precise for the likeliest
tokens. With k = V the tail is empty and only rounding is lost.

A shard is two arrays in NumPy's format: the start of each row's positions, and the positions of all rows,
which are memory-mapped.

τ temperature · B batch · T target length · V vocabulary · P positions of several rows · k tokens of each
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset

from vaswani.data.batching import TokenBudgetBatchSampler
from vaswani.data.collation import IGNORED_LABEL, Example
from vaswani.data.columns import Integers
from vaswani.data.pair_tokens import token_lengths
from vaswani.distillation.output_cache import HEADER_SIZE, OutputCache
from vaswani.errors import UserError

Batch = dict[str, torch.Tensor]
Positions = npt.NDArray[np.void]  # [P] records of `tokens` [k] and `log_probs` [k + 1], the tail last


def store_logits(
    cache: OutputCache,
    teacher_logits: Callable[[Batch], torch.Tensor],
    dataset: Dataset,
    collator: Callable[[Sequence[Example]], Batch],
    *,
    top_k: int,
    temperature: float,
    max_tokens_per_batch: int,
    progress: Callable[[int], object] | None = None,
) -> None:
    """Compute and store the distributions of the rows of the missing shards.

    Batches do not cross shards, so they do not depend on where a run resumes.

    Args:
        cache: of `len(dataset)` rows. Its identity should include the teacher, the columns `input_ids` and
            `labels`, `top_k`, `temperature` and, because padding changes the last bits,
            `max_tokens_per_batch`.
        teacher_logits: returns logits [B, T, V] for a batch of the collator, in any floating dtype, on any
            device; called in inference mode.
        dataset: rows from `tokenize_corpus`.
        collator: pads rows to a batch; positions with the label -100 are not stored.
        top_k: k, at most V.
        temperature: τ, above 0.
        max_tokens_per_batch: the budget of a batch, rows · (longest source + longest target).
        progress: called after each batch with its number of rows.

    Raises:
        UserError: a row exceeds the budget (nothing is computed then), k exceeds V, or logits are not finite.
        RunError: a shard cannot be written.
    """
    TokenBudgetBatchSampler(*token_lengths(dataset), max_tokens_per_batch)  # checks all rows first
    for shard in cache.missing_shards():
        rows = dataset.select(cache.rows_of(shard))
        found: dict[int, Positions] = {}
        for batch in TokenBudgetBatchSampler(*token_lengths(rows), max_tokens_per_batch, shuffle=False):
            inputs = collator([rows[row] for row in batch])
            with torch.inference_mode():
                logits = teacher_logits(inputs)
                kept = inputs["labels"] != IGNORED_LABEL  # [B, T]
                positions = _compress(logits[kept.to(logits.device)], top_k, temperature)
            ends = kept.sum(1).cumsum(0).numpy()
            found.update(zip(batch, np.split(positions, ends[:-1]), strict=True))
            if progress:
                progress(len(batch))
        cache.write(shard, _to_bytes([found[row] for row in range(len(rows))]))


def _compress(logits: torch.Tensor, top_k: int, temperature: float) -> Positions:
    """Logits [P, V] -> the records [P] to store."""
    vocab_size = logits.shape[-1]
    if top_k > vocab_size:
        raise UserError(
            f"teacher_top_k={top_k} is more than the teacher's {vocab_size} tokens; give at most that many"
        )
    relative = logits.float() / temperature
    relative -= relative.max(dim=-1, keepdim=True).values
    if relative.isnan().any():
        raise UserError("the teacher's logits are infinite or not numbers; try teacher_dtype=float32")
    likeliest = relative.topk(top_k)
    tail = relative.scatter(-1, likeliest.indices, -torch.inf).logsumexp(-1, keepdim=True)
    positions = np.empty(len(logits), _record(top_k, vocab_size))
    positions["tokens"] = likeliest.indices.cpu().numpy()
    positions["log_probs"] = torch.cat([likeliest.values, tail], dim=-1).half().cpu().numpy()
    return positions


def _record(top_k: int, vocab_size: int) -> np.dtype[np.void]:
    token = "<u2" if vocab_size <= 1 << 16 else "<i4"
    return np.dtype([("tokens", token, (top_k,)), ("log_probs", "<f2", (top_k + 1,))])


def _to_bytes(rows: Sequence[Positions]) -> bytes:
    starts = np.cumsum([0, *map(len, rows)])
    content = io.BytesIO()
    for array in (starts, np.concatenate(rows)):
        np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
    return content.getvalue()


@dataclass(frozen=True)
class _Shard:
    """The index of a shard's file: where the positions of each row are."""

    path: Path
    starts: Integers  # [rows + 1], in positions
    record: np.dtype[np.void]
    offset: int  # offset of the first position, in bytes

    @classmethod
    def from_content(cls, path: Path, content: bytes) -> _Shard:
        stream = io.BytesIO(content)
        starts = np.lib.format.read_array(stream, allow_pickle=False)
        np.lib.format.read_magic(stream)
        _, _, record = np.lib.format.read_array_header_1_0(stream)
        return cls(path, starts, record, HEADER_SIZE + stream.tell())

    def __getitem__(self, row: int) -> Positions:
        # Mapped for each row: a large corpus may have more shards than a process may have open files.
        positions = np.memmap(self.path, self.record, "r", self.offset, int(self.starts[-1]))
        return positions[self.starts[row] : self.starts[row + 1]]


class TeacherLogits:
    """The stored distributions of each row; only the starts of the rows are in memory.

    Args:
        cache: a complete cache; each shard is read once and checked.

    Raises:
        UserError: shards are missing or damaged.
    """

    def __init__(self, cache: OutputCache) -> None:
        self._rows_per_shard = cache.rows_per_shard
        self._shards = [
            _Shard.from_content(cache.path(shard), content) for shard, content in enumerate(cache.read_all())
        ]

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The distributions of a row's target positions.

        Returns:
            Log-probabilities, float32 [T, k + 1], of k tokens, likeliest first, and of the tail (-inf if it
            is empty); their exponentials add up to 1. The token ids, int64 [T, k].
        """
        shard, row_of_shard = divmod(row, self._rows_per_shard)
        positions = self._shards[shard][row_of_shard]
        relative = torch.from_numpy(positions["log_probs"].astype(np.float32))
        return relative.log_softmax(-1), torch.from_numpy(positions["tokens"].astype(np.int64))

    @property
    def bytes_per_token(self) -> float:
        """Bytes on disk per target token."""
        return sum(shard.path.stat().st_size for shard in self._shards) / self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Target tokens of all rows."""
        return sum(int(shard.starts[-1]) for shard in self._shards)

    @property
    def top_k(self) -> int:
        """The number k of tokens that are stored for each position."""
        return self._shards[0].record["tokens"].shape[0]


class TeacherLogitsCollator:
    """Adds the teacher's distributions to the batches of another collator.

    Args:
        collator: returns batches with the `labels` [B, T] that the teacher saw.
        teacher_logits: the distributions of all rows.

    Returns:
        For examples with an integer `row`: the batch with `teacher_log_probs`, float32 [B, T, k + 1], and
        `teacher_tokens`, int64 [B, T, k] (see `TeacherLogits`). Where the label is -100, the tokens are 0 and
        the log-probabilities are equal.
    """

    def __init__(self, collator: Callable[[Sequence[Example]], Batch], teacher_logits: TeacherLogits) -> None:
        self.collator = collator
        self.teacher_logits = teacher_logits

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> Batch:
        """Pad a batch."""
        batch = self.collator(examples)
        kept = batch["labels"] != IGNORED_LABEL  # [B, T]
        log_probs, tokens = zip(*(self.teacher_logits[example["row"]] for example in examples), strict=True)
        k = self.teacher_logits.top_k
        batch["teacher_log_probs"] = torch.full((*kept.shape, k + 1), -math.log(k + 1))
        batch["teacher_log_probs"][kept] = torch.cat(log_probs)
        batch["teacher_tokens"] = torch.zeros((*kept.shape, k), dtype=torch.int64)
        batch["teacher_tokens"][kept] = torch.cat(tokens)
        return batch
