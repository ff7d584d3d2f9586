"""A `Seq2SeqTrainer` with token-budget batches, the paper's schedule and exact evaluation.

Everything else (mixed precision, accumulation, compilation, several devices, logging, checkpoints) is
transformers'. Section numbers refer to Vaswani et al. (2017), arXiv:1706.03762.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import gather_object
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from transformers.trainer_utils import EvalLoopOutput, SchedulerType, has_length

from vaswani.data.batching import IGNORED_LABEL, TokenBudgetBatchSampler, TokenBudgetStream
from vaswani.data.tokenization import save_tokenizers
from vaswani.model.decoding import EXTRA_LENGTH, GNMTLengthPenalty, LengthLimits, position_limit
from vaswani.training.arguments import TrainingArguments
from vaswani.training.durable import DurableTrainer
from vaswani.training.losses import label_smoothed_loss
from vaswani.training.meter import Meter
from vaswani.training.schedule import inverse_sqrt_schedule
from vaswani.training.stopping import StopOnSignal


class Trainer(DurableTrainer):
    """Trains an encoder-decoder model on a tokenized parallel corpus.

    Data sets hold `input_ids` and `labels` (lists of token ids); a batch holds `args.max_tokens_per_batch` of
    them at most, padding included. Predictions come back in the order of the data set, each row once,
    whatever the batches and the number of processes.

    Args:
        target_processing_class: the target tokenizer, where it is not the source's; saved with checkpoints.
        train_data_collator: collates training batches in place of `data_collator`.
        kwargs: as for `Seq2SeqTrainer`.
    """

    args: TrainingArguments
    model: Any
    optimizer: Any
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any

    def __init__(
        self,
        *,
        target_processing_class: PreTrainedTokenizerBase | None = None,
        train_data_collator: Callable | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.target_processing_class = target_processing_class or self.processing_class
        self.train_data_collator = train_data_collator or self.data_collator
        self._model_smooths = (
            self.compute_loss_func is None and "label_smoothing" in signature(self.model.forward).parameters
        )
        self.label_smoother = None
        if self.compute_loss_func is None and not self._model_smooths:
            self.compute_loss_func = self._smoothed_loss
        self.args.resolve_learning_rate(self.model.config.d_model)
        # Saved with the model for plain calls of `generate`, which reads α as its own length penalty.
        generation = self.model.generation_config
        generation.num_beams = self.args.generation_num_beams
        generation.length_penalty = self.args.generation_length_penalty if self._searches else None
        generation._from_model_config = False
        self.add_callback(_EpochOrder())
        self.meter = Meter(self.accelerator, self.model.config, copies=self.get_tp_size())
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
        return super().create_scheduler(num_training_steps, optimizer)

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in `Seq2SeqTrainer`, without caching the keys and values that only decoding needs.

        Our models smooth labels themselves, in one pass with the output projection; others leave it to us.
        """
        options: dict[str, Any] = {"use_cache": False}
        if self._model_smooths:
            options["label_smoothing"] = self.args.label_smoothing_factor
        return super().compute_loss(model, {**inputs, **options}, *args, **kwargs)

    def _smoothed_loss(
        self, outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None
    ) -> torch.Tensor:
        smoothing = self.args.label_smoothing_factor
        return label_smoothed_loss(outputs.logits, labels, smoothing=smoothing, num_tokens=num_items_in_batch)

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

    # -------------------------------------------------------------------------------------------- evaluation

    def prediction_step(  # type: ignore[override]  # the loss is a tensor, whatever the library's hints say
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
        """Loss per token, generated token ids [rows, length] and labels of one batch.

        Decodes as in section 6.1: beam search with GNMT's length penalty and, unless a length was asked for,
        with at most 50 tokens more than each source has.
        """
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.accelerator.autocast():
            loss = self.compute_loss(model, inputs).detach() if "labels" in inputs else None
            if prediction_loss_only or not self.args.predict_with_generate:
                return loss, None, None
            options: dict[str, Any] = {**self._gen_kwargs, **gen_kwargs}
            if self._searches:
                options.setdefault("length_penalty", GNMTLengthPenalty(self.args.generation_length_penalty))
            if not {"max_length", "max_new_tokens"} & options.keys():
                limits = inputs["attention_mask"].sum(1) + EXTRA_LENGTH
                if (positions := position_limit(self.model)) is not None:
                    limits = limits.clamp(max=positions)
                options["max_length"] = 1 + int(limits.max())  # the decoder's start token counts
                options["stopping_criteria"] = [LengthLimits(limits)]
            source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            generated = self.model.generate(**source, **options)
        return loss, generated, inputs.get("labels")

    @property
    def _searches(self) -> bool:
        """Whether evaluation keeps several beams, between which a length penalty decides."""
        return (self.args.generation_num_beams or 1) > 1

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in `Seq2SeqTrainer`; its time is not that of training."""
        with self.meter.paused():
            return super().evaluate(*args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """As in `Seq2SeqTrainer`; the batch is counted."""
        self.meter.count(inputs)
        return super().training_step(model, inputs, *args)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with self.meter.paused():
            super()._save_checkpoint(model, trial)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Loss per token of the whole data set, and predictions padded with −100, in its order.

        Replaces the library's loop, which gives batches of any size the same weight in the loss, and repeats
        rows when processes hold different numbers of them.
        """
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        rows: list[tuple[int, Any, Any]] = []  # row number, prediction, labels
        losses: list[tuple[float, int]] = []  # summed loss, tokens
        for row_numbers, inputs in zip(dataloader.batch_sampler, dataloader, strict=True):
            loss, predictions, labels = self.prediction_step(self.model, inputs, loss_only, ignore_keys)
            if loss is not None:
                num_tokens = int(inputs["labels"].ne(IGNORED_LABEL).sum())
                losses.append((loss.item() * num_tokens, num_tokens))
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
            metrics["loss"] = sum(loss for loss, _ in losses) / max(sum(tokens for _, tokens in losses), 1)
        predictions, labels = (
            _pad(column) for column in ([row[1] for row in rows], [row[2] for row in rows])
        )
        if self.compute_metrics is not None and predictions is not None and labels is not None:
            metrics |= self.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))
        metrics = {f"{prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions, labels, metrics, num_samples=len(rows))  # type: ignore[arg-type]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `Seq2SeqTrainer`, with other speeds than those of a fixed number of rows (see `Meter`)."""
        for name in list(logs):
            if name.endswith("_steps_per_second") or name == "train_samples_per_second":
                del logs[name]
        if "loss" in logs:
            logs |= self.meter.report()
        super().log(logs, start_time)

    # --------------------------------------------------------------------------------------------- batches

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
        sampler = TokenBudgetBatchSampler(
            _lengths(dataset, "input_ids", "source_length"),
            _lengths(dataset, "labels", "target_length"),
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

    # ------------------------------------------------------------------------------------------ checkpoints

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        directory = output_dir or self.args.output_dir
        if self.args.should_save and self.processing_class is not None and directory:
            save_tokenizers(self.processing_class, self.target_processing_class, directory)


class _MeterClock(TrainerCallback):
    """Starts the meter with the training."""

    def __init__(self, meter: Meter):
        self.meter = meter

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.meter.begin()


class _EpochOrder(TrainerCallback):
    """Tells the batch sampler which epoch begins.

    The library does so too, but after a resume in several processes its wrappers hide the sampler from it.
    """

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        sampler = train_dataloader.batch_sampler
        while sampler is not None and not hasattr(sampler, "set_epoch"):
            sampler = getattr(sampler, "batch_sampler", None)
        if sampler is not None:
            sampler.set_epoch(int(state.epoch or 0))


def _lengths(dataset: Any, tokens: str, length: str) -> Sequence[int]:
    """Tokens of each row, from their own column where there is one."""
    if length in getattr(dataset, "column_names", ()):
        return dataset[length][:]  # at once, for a column by itself is read row by row
    return [len(row[tokens]) for row in dataset]


def _rows(batch: torch.Tensor | None, num_rows: int) -> list[Any]:
    return [None] * num_rows if batch is None else list(batch.cpu().numpy())


def _pad(column: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Token ids of different lengths as one array [rows, longest]; −100 fills it."""
    sequences = [sequence for sequence in column if sequence is not None]
    if not sequences:
        return None
    padded = np.full((len(sequences), max(map(len, sequences))), IGNORED_LABEL, dtype=np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded
