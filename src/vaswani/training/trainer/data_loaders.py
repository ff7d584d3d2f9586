"""The batches of a trainer: of `max_tokens_per_batch` tokens at most, different ones for each process.

N rows
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from datasets import Dataset
from torch.utils.data import DataLoader

from vaswani.data.batching import TokenBudgetBatchSampler, TokenBudgetStream, number_of
from vaswani.data.bpe_dropout import BpeDropoutDataset
from vaswani.data.columns import Integers, integer_column

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer


class DataLoaders:
    """Makes the data loaders of a trainer.

    Attributes:
        recorded_passes: the batches of each pass over a stream, in the checkpoint from which a run resumes.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self.recorded_passes: list[int] = []
        self._stream: TokenBudgetStream | None = None  # of the training rows, if they are streamed

    @property
    def finished_passes(self) -> list[int]:
        """The batches of each finished pass over the stream of training rows, if there is one."""
        return [] if self._stream is None else self._stream.finished_passes

    def for_stream(self) -> DataLoader:
        """Batches of the streamed training rows."""
        trainer, args = self.trainer, self.trainer.args
        self._stream = TokenBudgetStream(
            trainer.train_dataset,
            args.max_tokens_per_batch,
            seed=self._seed,
            num_replicas=trainer.num_replicas,
            rank=args.process_index // trainer.get_tp_size(),
            report=trainer.stream_report,
            on_pass=getattr(trainer.train_data_collator, "set_epoch", None),
            splitter=trainer.splitter,
            finished=self._skipped_passes(),
        )
        if args.dataloader_num_workers:
            self._stream.share_with_worker()
        collator = partial(_collate_unless_empty, trainer.train_data_collator)
        # Not prepared by accelerate, which would distribute the batches over the processes a second time.
        return DataLoader(self._stream, batch_size=None, collate_fn=collator, **self._options())

    def _skipped_passes(self) -> list[int]:
        """The batches of each pass over a stream that is wholly among those that a resumed run skips."""
        trainer, args = self.trainer, self.trainer.args
        if trainer.resumed is None or args.ignore_data_skip:
            return []
        skipped = trainer.resumed.global_step * args.gradient_accumulation_steps * trainer.num_replicas
        ends = accumulate(self.recorded_passes)
        return [count for count, end in zip(self.recorded_passes, ends, strict=True) if end <= skipped]

    def for_rows(self, dataset: Any, collator: Callable, shuffle: bool = False) -> DataLoader:
        """Batches of rows of similar length; `shuffle` for training."""
        trainer, args = self.trainer, self.trainer.args
        if shuffle and trainer.splitter is not None:
            dataset = BpeDropoutDataset(dataset, trainer.splitter, self._seed)
            lengths_of_epoch = dataset.lengths_of_epoch
            lengths, target_lengths = lengths_of_epoch(0)
        else:
            lengths_of_epoch = None
            lengths, target_lengths = trainer.row_lengths(dataset)
        sampler = TokenBudgetBatchSampler(
            lengths,
            target_lengths,
            args.max_tokens_per_batch,
            seed=self._seed,
            shuffle=shuffle,
            num_replicas=trainer.num_replicas,
            batches_per_update=args.gradient_accumulation_steps if shuffle else 1,
            lengths_of_epoch=lengths_of_epoch,
        )
        # Workers that persist would keep the rows of their first epoch.
        keeps_rows = lengths_of_epoch is None
        loader: DataLoader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            persistent_workers=keeps_rows
            and args.dataloader_persistent_workers
            and args.dataloader_num_workers > 0,
            prefetch_factor=args.dataloader_prefetch_factor,
            **self._options(),
        )
        return prepare_data_loader(
            loader,
            device=args.device,
            num_processes=trainer.num_replicas,
            process_index=args.process_index // trainer.get_tp_size(),  # a group has the same batches
            put_on_device=True,
            rng_types=trainer.accelerator.rng_types,
            dispatch_batches=False,
            even_batches=False,  # all processes have equally many
            non_blocking=trainer.accelerator.non_blocking,
        )

    def _options(self) -> dict[str, Any]:
        args = self.trainer.args
        return {
            "num_workers": args.dataloader_num_workers,
            "worker_init_fn": _ignore_ctrl_c,
            "pin_memory": args.dataloader_pin_memory and torch.accelerator.is_available(),
        }

    @property
    def _seed(self) -> int:
        args = self.trainer.args
        return args.seed if args.data_seed is None else args.data_seed


def _ignore_ctrl_c(_worker: int) -> None:
    """Let a worker live until its training ends: a terminal sends Ctrl-C to it too (see `StopOnSignal`)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _collate_unless_empty(collator: Callable, batch: Sequence[Any]) -> Any:
    return collator(batch) if batch else {}


def lengths_of(dataset: Any, tokens: str, length: str) -> Integers:
    """Tokens of each row [N], from a column of lengths if there is one, else by counting the tokens.

    Raises `UserError` if a row has no such tokens.
    """
    if isinstance(dataset, Dataset) and length in dataset.column_names:
        return integer_column(dataset, length)
    return np.array([number_of(tokens, row) for row in dataset])
