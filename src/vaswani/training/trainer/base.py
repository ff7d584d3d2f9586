"""What every training shares: token-budget batches, the paper's schedule, exact evaluation, measured speed.

Everything else (mixed precision, accumulation, compilation, several devices, logging, checkpoints) is
transformers'. Section numbers refer to Vaswani et al. (2017), arXiv:1706.03762.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, EvalPrediction, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput, SchedulerType, has_length

from vaswani.data.batching import IGNORED_LABEL, TokenBudgetBatchSampler, TokenBudgetStream
from vaswani.errors import UserError
from vaswani.training.config.arguments import BaseTrainingArguments
from vaswani.training.config.schedule import inverse_sqrt_schedule
from vaswani.training.trainer.durable import DurableTrainer
from vaswani.training.trainer.meter import Meter
from vaswani.training.trainer.stopping import StopOnSignal


class BaseTrainer(DurableTrainer):
    """A transformers `Trainer` with batches of `args.max_tokens_per_batch` tokens at most, padding included.

    Rows of a data set hold `input_ids` (a list of token ids) and whatever the collator makes a batch of. A
    trainer of another kind may replace `prediction_step` (what is kept of an evaluated batch), `row_lengths`
    (what a row costs) and `compute_loss`. Predictions come back in the order of the data set, each row once,
    whatever the batches and the number of processes.

    Args:
        train_data_collator: collates training batches in place of `data_collator`; where it has a method
            `set_epoch`, it is told the number of each epoch, and of each pass over a stream, as it begins.
        kwargs: as for transformers' `Trainer`.
    """

    args: BaseTrainingArguments
    model: Any
    optimizer: Any
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(self, *, train_data_collator: Callable | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.train_data_collator = train_data_collator or self.data_collator
        self.args.resolve_learning_rate(self.model.config.hidden_size)
        self.add_callback(_EpochOrder(self))
        self.meter = Meter(
            self.accelerator,
            self.model.config,
            copies=self.get_tp_size(),
            predicts_tokens=self.model.get_output_embeddings() is not None,
        )
        self.add_callback(_MeterClock(self.meter))
        self.stop_on_signal = StopOnSignal(self)
        self.add_callback(self.stop_on_signal)

    # ---------------------------------------------------------------------------------------------- training

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The paper's schedule for `inverse_sqrt`, transformers' for the others."""
        if self.lr_scheduler is None and self.args.lr_scheduler_type == SchedulerType.INVERSE_SQRT:
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self.lr_scheduler = inverse_sqrt_schedule(optimizer or self.optimizer, warmup_steps)
            self._created_lr_scheduler = True
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        _check_schedule(scheduler, num_training_steps)
        return scheduler

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """As in transformers; the batch is counted."""
        self.meter.count(inputs)
        return super().training_step(model, inputs, *args)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # A run that was killed after its last step is complete; the library would take one step more.
        if not self._is_finished():
            super()._run_epoch(*args, **kwargs)

    def _is_finished(self) -> bool:
        stopped_early = any(
            isinstance(callback, EarlyStoppingCallback)
            and callback.early_stopping_patience_counter >= callback.early_stopping_patience
            for callback in self.callback_handler.callbacks
        )
        return stopped_early or self.state.global_step >= self.state.max_steps

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with self.meter.paused():
            super()._save_checkpoint(model, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in transformers, with other speeds than those of a fixed number of rows (see `Meter`)."""
        for name in list(logs):
            if name.endswith("_steps_per_second") or name == "train_samples_per_second":
                del logs[name]
        if "loss" in logs:
            logs |= self.meter.report()
        super().log(logs, start_time)

    # -------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in transformers; its time is not that of training."""
        with self.meter.paused():
            return super().evaluate(*args, **kwargs)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Loss per label of the whole data set, and predictions padded with −100, in its order.

        Replaces the library's loop, which gives batches of any size the same weight in the loss, and repeats
        rows when processes hold different numbers of them.
        """
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        rows: list[tuple[int, Any, Any]] = []  # row number, prediction, labels
        losses: list[tuple[float, int]] = []  # summed loss, labels
        for row_numbers, inputs in zip(dataloader.batch_sampler, dataloader, strict=True):
            loss, predictions, labels = self.prediction_step(self.model, inputs, loss_only, ignore_keys)
            if loss is not None:
                num_labels = int(inputs["labels"].ne(IGNORED_LABEL).sum())
                losses.append((loss.item() * num_labels, num_labels))
            columns = (_rows(batch, len(row_numbers)) for batch in (predictions, labels))
            rows += zip(row_numbers, *columns, strict=True)
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        gathered = {row[0]: row for row in gather_object(rows)}  # once, where processes had the same batches
        rows = [gathered[number] for number in sorted(gathered)]
        return self._evaluation_output(rows, gather_object(losses), metric_key_prefix)

    def _evaluation_output(
        self, rows: list[tuple[int, Any, Any]], losses: list[tuple[float, int]], prefix: str
    ) -> EvalLoopOutput:
        metrics = {}
        if losses:
            metrics["loss"] = sum(loss for loss, _ in losses) / max(sum(count for _, count in losses), 1)
        predictions, labels = (
            _pad(column) for column in ([row[1] for row in rows], [row[2] for row in rows])
        )
        metrics |= self.scores(predictions, labels)
        metrics = {f"{prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions, labels, metrics, num_samples=len(rows))  # type: ignore[arg-type]

    def scores(self, predictions: np.ndarray | None, labels: np.ndarray | None) -> dict[str, float]:
        """What `compute_metrics` makes of an evaluation; nothing where predictions or labels are missing."""
        if self.compute_metrics is None or predictions is None or labels is None:
            return {}
        return self.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))

    # --------------------------------------------------------------------------------------------- batches

    def row_lengths(self, dataset: Any) -> tuple[Sequence[int], Sequence[int] | None]:
        """Tokens of each row [N], and those of its target [N] where that is a sequence of its own."""
        return lengths_of(dataset, "input_ids", "length"), None

    def get_train_dataloader(self) -> DataLoader:
        """Token-budget batches in an order that is a pure function of the seed and the epoch."""
        if has_length(self.train_dataset):
            return self._dataloader(self.train_dataset, self.train_data_collator, shuffle=True)
        stream = TokenBudgetStream(
            self.train_dataset,
            self.args.max_tokens_per_batch,
            seed=self._data_seed,
            num_replicas=self.num_replicas,
            rank=self.args.process_index // self.get_tp_size(),
            on_pass=getattr(self.train_data_collator, "set_epoch", None),
        )
        # Not prepared by accelerate, which would share out the batches among the processes a second time.
        return DataLoader(
            stream,
            batch_size=None,
            collate_fn=self.train_data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.accelerator.is_available(),
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Token-budget batches of rows of similar length, in a fixed order."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        return self._dataloader(
            self.eval_dataset if eval_dataset is None else eval_dataset, self.data_collator
        )

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """As `get_eval_dataloader`."""
        return self.get_eval_dataloader(test_dataset)

    def _dataloader(self, dataset: Any, collator: Callable, shuffle: bool = False) -> DataLoader:
        lengths, target_lengths = self.row_lengths(dataset)
        sampler = TokenBudgetBatchSampler(
            lengths,
            target_lengths,
            self.args.max_tokens_per_batch,
            seed=self._data_seed,
            shuffle=shuffle,
            num_replicas=self.num_replicas,
            batches_per_update=self.args.gradient_accumulation_steps if shuffle else 1,
        )
        workers = self.args.dataloader_num_workers
        loader: DataLoader = DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=collator,
            num_workers=workers,
            pin_memory=self.args.dataloader_pin_memory and torch.accelerator.is_available(),
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        return prepare_data_loader(
            loader,
            device=self.args.device,
            num_processes=self.num_replicas,
            process_index=self.args.process_index // self.get_tp_size(),  # those of a group have one batch
            put_on_device=True,
            rng_types=self.accelerator.rng_types,
            dispatch_batches=False,
            even_batches=False,  # there are as many for each
            non_blocking=self.accelerator.non_blocking,
        )

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed


def _check_schedule(scheduler: Any, num_updates: int) -> None:
    """Compute some learning rates, for what a schedule cannot use may be found in its middle alone.

    Raises:
        UserError: one is not finite.
    """
    for factor in getattr(scheduler, "lr_lambdas", ()):
        for update in range(0, num_updates + 1, max(1, num_updates // 16)):
            if not math.isfinite(factor(update)):
                raise UserError(
                    f"the learning rate of update {update + 1:,} is {factor(update)} times its peak; change "
                    "lr_scheduler_type or lr_scheduler_kwargs"
                )


class _MeterClock(TrainerCallback):
    """Starts the meter with the training."""

    def __init__(self, meter: Meter):
        self.meter = meter

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin()


class _EpochOrder(TrainerCallback):
    """Tells the batch sampler, and the collator, which epoch begins.

    The library does so too, but after a resume in several processes its wrappers hide the sampler from it.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        epoch = int(state.epoch or 0)
        if hasattr(self.trainer.train_data_collator, "set_epoch"):
            self.trainer.train_data_collator.set_epoch(epoch)
        sampler = train_dataloader.batch_sampler
        while sampler is not None and not hasattr(sampler, "set_epoch"):
            sampler = getattr(sampler, "batch_sampler", None)
        if sampler is not None:
            sampler.set_epoch(epoch)


def lengths_of(dataset: Any, tokens: str, length: str) -> Sequence[int]:
    """Tokens of each row [N], from a column of lengths where there is one, else by counting the tokens."""
    if length in getattr(dataset, "column_names", ()):
        return dataset[length][:]  # at once, for a column by itself is read row by row
    return [len(row[tokens]) for row in dataset]


def _rows(batch: torch.Tensor | None, num_rows: int) -> list[Any]:
    if batch is None:
        return [None] * num_rows
    return list((batch.float() if batch.dtype == torch.bfloat16 else batch).cpu().numpy())


def _pad(column: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """One array [rows, ...] of arrays that may differ in their first length; −100 fills it."""
    arrays = [array for array in column if array is not None]
    if not arrays:
        return None
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    longest = max(map(len, arrays))
    padded = np.full((len(arrays), longest, *arrays[0].shape[1:]), IGNORED_LABEL, dtype=arrays[0].dtype)
    for row, array in zip(padded, arrays, strict=True):
        row[: len(array)] = array
    return padded
