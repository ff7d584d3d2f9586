"""The base of all trainers: token-budget batches, the paper's schedule, exact evaluation, whole checkpoints.

Everything else (mixed precision, accumulation, compilation, several devices, logging) is transformers'.
Separate tasks are separate objects that the trainer holds: `DataLoaders`, `Objective`, `Meter`, `LossMeans`,
`FiniteUpdates`, `FinalAverage`, `StopOnSignal`, `Sharding`, `Publisher`. Section numbers refer to Vaswani et
al. (2017), arXiv:1706.03762.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader
from transformers import EarlyStoppingCallback, EvalPrediction, Trainer, TrainerState
from transformers.trainer_utils import (
    EvalLoopOutput,
    SchedulerType,
    has_length,
    rotate_checkpoints,
)

from vaswani.data.bpe_dropout import PairSplitter
from vaswani.data.columns import Integers
from vaswani.data.sources.row_report import RowReport
from vaswani.errors import StoppedError, UserError
from vaswani.files.run_files import HISTORY, LOG_FILE, PASSES
from vaswani.hub.hashes import forget_hashes, write_hashes
from vaswani.training.config.options import FIELDS_WITHOUT_EFFECT, library_defaults
from vaswani.training.config.schedule import check_finite, check_warmup, inverse_sqrt_schedule
from vaswani.training.config.training_arguments import BaseTrainingArguments
from vaswani.training.trainer.adapted import describe_adapted
from vaswani.training.trainer.callbacks import LogAtCheckpoints, ResumedRun, StopOnSignal
from vaswani.training.trainer.checkpoints import (
    checkpoint_of,
    checkpoint_to_resume,
    discard_unfinished,
    finish_checkpoint,
    given_checkpoint,
    read_manifest,
    unfinished_checkpoint,
)
from vaswani.training.trainer.data_loaders import DataLoaders, lengths_of
from vaswani.training.trainer.evaluated_rows import EvaluatedRows
from vaswani.training.trainer.final_average import FinalAverage
from vaswani.training.trainer.finite_updates import FiniteUpdates
from vaswani.training.trainer.loss_means import LOSS, LossMeans
from vaswani.training.trainer.meter import Meter
from vaswani.training.trainer.objective import Count, Objective
from vaswani.training.trainer.resuming import check_resumable, manifest_of

if TYPE_CHECKING:
    from vaswani.training.trainer.publishing import Publisher
    from vaswani.training.trainer.sharding import Sharding

logger = logging.getLogger(__name__)


class BaseTrainer(Trainer):
    """A transformers `Trainer` with batches of `args.max_tokens_per_batch` tokens at most, padding included.

    Rows of a data set hold `input_ids` (a list of token ids) and the other columns that the collator needs. A
    subclass may override `prediction_step` (the outputs to keep of an evaluated batch), `row_lengths` (the
    tokens that a row costs), `compute_loss` and `save_tokenizers`, and set `extra_modules`. Predictions come
    back in the order of the data set, each row once, whatever the batches and the number of processes.
    Checkpoints are written atomically, with the hash of each file; a resumed run gives bit-identical results.

    Args:
        train_data_collator: collates training batches in place of `data_collator`. If it has a method
            `set_epoch`, that gets the number of each epoch, and of each pass over a stream, as it begins.
        splitter: splits the words of the training rows again in each epoch, before the rows are batched.
        model: as for transformers' `Trainer`.
        args: the arguments, of vaswani's class.
        kwargs: as for transformers' `Trainer`.

    Raises:
        UserError: `args` are missing, or those of transformers.

    Attributes:
        identity: the origin of the training rows, for the manifest of checkpoints.
        settings: the settings of the training, for the manifest (see `resuming.manifest_of`); default: those
            of `args`.
        history: the settings that changed when the training was resumed, for the manifest.
        extra_modules: modules, by name, that are trained with the model and saved in separate files of
            checkpoints.
        forward_options: options of the model's forward pass.
        objective: the objective whose loss is trained (see `set_objective`).
        resumed: the state of the checkpoint from which the training resumes.
    """

    arguments_class: ClassVar[type[BaseTrainingArguments]] = BaseTrainingArguments
    args: BaseTrainingArguments
    model: Any
    optimizer: Any
    lr_scheduler: Any
    processing_class: Any
    train_dataset: Any
    eval_dataset: Any
    hub_model_id: Any
    push_in_progress: Any

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        train_data_collator: Callable | None = None,
        splitter: PairSplitter | None = None,
        **kwargs: Any,
    ):
        check_arguments(args, self.arguments_class)
        super().__init__(model=model, args=args, **kwargs)
        self._warn_of_unused_arguments()
        self.train_data_collator = train_data_collator or self.data_collator
        self.splitter = splitter
        self.args.resolve_learning_rate(self.model.config.hidden_size)
        self.sharding = self._shard()
        self.meter = Meter(
            self.accelerator,
            self.model.config,
            copies=self.get_tp_size(),
            predicts_tokens=self.model.get_output_embeddings() is not None,
        )
        self.data_loaders = DataLoaders(self)
        self.loss_means = LossMeans(self)
        self.finite_updates = FiniteUpdates(self)
        self.final_average = FinalAverage(self)
        self.stop_on_signal = StopOnSignal(self)
        for callback in (ResumedRun(self), self.meter, self.stop_on_signal, LogAtCheckpoints()):
            self.add_callback(callback)
        self.identity: dict[str, Any] = {}
        self.settings: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []
        self.stream_report: RowReport | None = None
        self.extra_modules: dict[str, torch.nn.Module] = {}
        self.forward_options: dict[str, Any] = {}
        self.objective: Objective = Objective()
        self.resumed: TrainerState | None = None
        self.num_epochs = 0
        self._unfinished: Path | None = None  # folder in which a checkpoint is being written
        self._schedule: Any = None  # the paper's schedule, if the trainer made it

    def _warn_of_unused_arguments(self) -> None:
        """Warn about arguments of transformers that are set, but that our trainers do not use."""
        given = vars(self.args).keys() - library_defaults(self.args).keys()
        for name, reason in FIELDS_WITHOUT_EFFECT.items():
            if name in given and self.is_world_process_zero():
                logger.warning(f"{name}={getattr(self.args, name)} has no effect: {reason}")

    def _shard(self) -> Sharding | None:
        args = self.args
        if not args.shards_model:
            return None
        from vaswani.training.trainer.sharding import Sharding

        # Not before `super().__init__`: the library refuses a sharded model whose run saves checkpoints.
        sharding = Sharding(self.model, args.fsdp_size, args.tensor_parallel_size, args.world_size)
        self.is_distributed_loading_by_transformers = True
        return sharding

    @property
    def num_replicas(self) -> int:
        """The number of processes, or groups of processes, that have their own batches."""
        return self.args.world_size // self.get_tp_size()

    def count_everywhere(self, count: torch.Tensor) -> torch.Tensor:
        """Sum a number of tokens or rows, by which losses are divided, over all processes."""
        count = count.to(self.args.device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count).sum() / self.get_tp_size()
        return count

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.args.output_dir or ".")

    # ---------------------------------------------------------------------------------------------- training

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; a checkpoint must be complete and saved with the settings of this trainer.

        Raises:
            UserError: the checkpoint is incomplete, or a setting changed that cannot.
        """
        if resume_from_checkpoint is True:
            checkpoint = checkpoint_to_resume(self.output_dir, "true")
        else:
            checkpoint = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.settings is None:  # a run has compared them already, before reading the corpus
            self.settings = manifest_of(self.args)
            if checkpoint:
                self.history = check_resumable(given_checkpoint(checkpoint), self.args).record
        self.resumed = None
        if checkpoint:
            self.resumed = TrainerState.load_from_json(str(checkpoint / LOG_FILE))
            self.data_loaders.recorded_passes = read_manifest(checkpoint).get(PASSES, [])
        hook = self.model.register_load_state_dict_post_hook(self._ignore_keys_saved_elsewhere)
        try:
            with self.objective.training():
                if checkpoint:
                    for name, module in self.extra_modules.items():
                        module.load_state_dict(load_file(checkpoint / f"{name}.safetensors"))
                output = super().train(str(checkpoint) if checkpoint else None, *args, **kwargs)
            if not self.stop_on_signal.has_stopped:
                self.final_average.take()
            return output
        finally:
            hook.remove()
            self.stop_on_signal.restore()  # a training that fails has no `on_train_end`

    def _ignore_keys_saved_elsewhere(self, model: torch.nn.Module, incompatible: Any) -> None:
        """Allow tied weights, which are saved once, and `extra_modules`, saved elsewhere, to be missing."""
        tied = getattr(model, "all_tied_weights_keys", {})
        incompatible.missing_keys[:] = [
            name
            for name in incompatible.missing_keys
            if name not in tied and name.partition(".")[0] not in self.extra_modules
        ]

    def set_initial_training_values(self, args: Any, dataloader: DataLoader) -> Any:
        """As in transformers, but a run that resumes after its last update has no epoch left."""
        self.num_epochs, *others, max_steps = super().set_initial_training_values(args, dataloader)
        if self._is_finished(max_steps):
            return 0, *others, max_steps
        resumed = self.resumed or TrainerState()
        self.final_average.check(max_steps, self.num_epochs, resumed.global_step, resumed.epoch or 0)
        return self.num_epochs, *others, max_steps

    def _is_finished(self, max_steps: int) -> bool:
        """Return True if the resumed checkpoint was the last; the library would make one more update."""
        if self.resumed is None or self.resumed.global_step >= max_steps:
            return self.resumed is not None
        callbacks: Any = self.resumed.stateful_callbacks
        stopping = callbacks.get("EarlyStoppingCallback")
        stops_early = any(isinstance(each, EarlyStoppingCallback) for each in self.callback_handler.callbacks)
        is_restored = isinstance(stopping, dict) and self.args.restore_callback_states_from_checkpoint
        if not (stops_early and is_restored):
            return False
        patience = self.args.early_stopping_patience or stopping["args"]["early_stopping_patience"]
        return stopping["attributes"]["early_stopping_patience_counter"] >= patience

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """The paper's schedule for `inverse_sqrt`, transformers' for the others."""
        is_given = self.lr_scheduler is not None and self.lr_scheduler is not self._schedule
        if not is_given and self.args.lr_scheduler_type == SchedulerType.INVERSE_SQRT:
            warmup_steps = self.args.get_warmup_steps(num_training_steps)
            self._schedule = inverse_sqrt_schedule(optimizer or self.optimizer, warmup_steps)
            self.lr_scheduler = self._schedule
        scheduler = super().create_scheduler(num_training_steps, optimizer)
        check_finite(scheduler, num_training_steps)
        warning = check_warmup(scheduler, self.args.get_warmup_steps(num_training_steps), num_training_steps)
        if warning and self.is_world_process_zero():
            logger.warning(warning)
        return scheduler

    def set_objective(self, objective: Objective) -> None:
        """Train with the loss of an objective in place of the trainer's own."""
        self.objective, self.compute_loss_func = objective, objective.loss

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, Count]:
        """As in transformers; also counts the divisors of losses other than the labels."""
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if batches:
            self.count_batches(batches)
        return batches, num_items

    def count_batches(self, batches: list[dict[str, Any]]) -> None:
        """Count the divisors of losses, other than the labels, in the batches of one update."""
        self.objective.counts(batches)

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with `forward_options`, in the context that the objective needs."""
        with self.objective.batch_context(inputs):
            return super().compute_loss(model, {**inputs, **self.forward_options}, *args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any) -> torch.Tensor:
        """As in transformers; counts the batch, and remembers it until its update is made."""
        self.meter.count(inputs)
        loss = super().training_step(model, inputs, *args)
        self.loss_means.add(LOSS, loss)
        self.finite_updates.remember(inputs, loss)
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        # All processes get here before the update with the gradient of all, so they all decide alike.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        self.finite_updates.check(model, grad_norm)
        return grad_norm

    def non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """Return what is wrong and the remedy if the trained model is not the cause; otherwise None."""
        return self.objective.non_finite_cause(batches)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in transformers, with the parts of the loss, and speeds that do not count rows (see `Meter`)."""
        for name in list(logs):
            if name.endswith("_steps_per_second") or name == "train_samples_per_second":
                del logs[name]
        if "loss" in logs:
            means, some_skipped = self.loss_means.report()
            if not some_skipped:
                means[LOSS] = logs["loss"]
            elif not means:
                del logs["loss"]  # the library counts skipped updates too, with substituted losses
            logs |= means | self.meter.report()
        if "train_loss" in logs and self.finite_updates.skipped:
            logs["train_loss"] = self.loss_means.overall_mean()
        super().log(logs, start_time)

    # ------------------------------------------------------------------------------------------- checkpoints

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, with hashes of the saved files, and without a token in `training_args.bin`."""
        folder = Path(output_dir or self.output_dir)
        if self.args.should_save:
            forget_hashes(folder)
        token, self.args.hub_token = self.args.hub_token, None
        try:
            with self._without_extra_modules():
                super().save_model(output_dir, _internal_call=True)
        finally:
            self.args.hub_token = token
        if self.args.should_save:
            self.save_tokenizers(folder)
            describe_adapted(self.model, folder)
            write_hashes(folder)
            self.final_average.record(folder)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")

    def save_tokenizers(self, folder: Path) -> None:
        """Write further tokenizers of the model; transformers saves `processing_class`."""

    @contextmanager
    def _without_extra_modules(self) -> Iterator[None]:
        """Take `extra_modules` out of the model while it is saved."""
        extra = {name: module for name, module in self.model.named_children() if name in self.extra_modules}
        for name in extra:
            delattr(self.model, name)
        try:
            yield
        finally:
            for name, module in extra.items():
                self.model.add_module(name, module)

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._unfinished or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """As in transformers, but written under another name until the checkpoint is complete."""
        args, state, run_folder = self.args, self.state, Path(self._get_output_dir(trial))
        folder = unfinished_checkpoint(run_folder, state.global_step)
        with self.meter.paused():
            if args.should_save:
                discard_unfinished(run_folder)
            self.accelerator.wait_for_everyone()
            self._unfinished = folder.parent
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._unfinished = None
            self.accelerator.wait_for_everyone()  # now all have written their part
            if state.best_global_step == state.global_step:
                state.best_model_checkpoint = str(checkpoint_of(run_folder, state.global_step))
            if args.should_save:
                for name, module in self.extra_modules.items():
                    save_file(module.state_dict(), folder / f"{name}.safetensors")
                state.save_to_json(str(folder / LOG_FILE))  # with the best checkpoint's final name
                checkpoint = finish_checkpoint(folder, self._manifest())
                self.final_average.discard_others(checkpoint)
                rotate_checkpoints(
                    output_dir=str(run_folder),
                    save_total_limit=args.save_total_limit,
                    best_model_checkpoint=state.best_model_checkpoint,
                    use_mtime=False,  # a copied run has other modification times
                )
                if args.push_to_hub:
                    self.publisher.push_checkpoint(checkpoint)
            self.accelerator.wait_for_everyone()  # now all processes see the checkpoint

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: the library calls this before the checkpoint is complete."""

    def _manifest(self) -> dict[str, Any]:
        return {
            "update": self.state.global_step,
            **(self.settings or manifest_of(self.args)),
            HISTORY: self.history,
            PASSES: self.data_loaders.finished_passes,
            "data": self.identity,
        }

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.sharding is None:
            return super()._save_optimizer_and_scheduler(output_dir)
        return self.sharding.save_training_state(self, Path(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.sharding is None or checkpoint is None:
            return super()._load_optimizer_and_scheduler(checkpoint)
        return self.sharding.load_training_state(self, Path(checkpoint))

    # --------------------------------------------------------------------------------------------------- Hub

    @cached_property
    def publisher(self) -> Publisher:
        """Writes the card and pushes the model."""
        from vaswani.training.trainer.publishing import Publisher  # lazy: most trainings push nothing

        return Publisher(self)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """As in transformers; raises `UserError` before training if a push cannot work."""
        self.publisher.open_repository(token, private)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write `README.md` in `output_dir` (see `Publisher.write_card`)."""
        if self.is_world_process_zero():
            self.publisher.write_card(*args, **kwargs)

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, in one commit with the model's code, tokenizers and card.

        Returns:
            The repository's address in the main process, or a `Future` of it; None in the others.

        Raises:
            UserError, RunError: it could not be pushed; the model is saved.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        self.save_model(_internal_call=True)
        if not self.is_world_process_zero():
            return None
        given = {"token": token, "revision": revision, "message": commit_message}
        return self.publisher.push(blocking, kwargs, {name: value for name, value in given.items() if value})

    # -------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in transformers; its time does not count as training time."""
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
        rows when processes hold different numbers of them. An evaluation does not change the random numbers
        of the training, so the times of evaluations do not change what the model learns.
        """
        try:
            with torch.random.fork_rng(devices=_gpus(self.args.device)):
                return self._evaluate_batches(
                    dataloader, prediction_loss_only, ignore_keys, metric_key_prefix
                )
        except StoppedError:
            self.stop_on_signal.save()
            raise

    def _evaluate_batches(
        self,
        dataloader: Any,
        prediction_loss_only: bool | None,
        ignore_keys: list[str] | None,
        metric_key_prefix: str,
    ) -> EvalLoopOutput:
        loss_only = self.args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        self.model.eval()
        self.callback_handler.eval_dataloader = dataloader
        evaluated = EvaluatedRows()
        for row_numbers, inputs in zip(dataloader.batch_sampler, dataloader, strict=True):
            loss, predictions, labels = self.prediction_step(self.model, inputs, loss_only, ignore_keys)
            evaluated.add(row_numbers, predictions, labels)
            if loss is not None:
                evaluated.add_loss(row_numbers, loss, inputs["labels"])
            self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
        evaluated.gather()
        return self._evaluation_output(dataloader.dataset, evaluated, metric_key_prefix)

    def _evaluation_output(self, dataset: Any, evaluated: EvaluatedRows, prefix: str) -> EvalLoopOutput:
        predictions, labels, loss = evaluated.predictions(), evaluated.labels(), evaluated.loss()
        metrics = {} if loss is None else {"loss": loss}
        metrics |= self.scores(dataset, predictions, labels)
        metrics = {f"{prefix}_{name}": value for name, value in metrics.items()}
        return EvalLoopOutput(predictions, labels, metrics, num_samples=len(evaluated))  # type: ignore[arg-type]

    def scores(
        self, dataset: Any, predictions: np.ndarray | None, labels: np.ndarray | None
    ) -> dict[str, float]:
        """The result of `compute_metrics`; empty if predictions or labels of a data set are missing."""
        if self.compute_metrics is None or predictions is None or labels is None:
            return {}
        return self.compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels))

    # ----------------------------------------------------------------------------------------------- batches

    def row_lengths(self, dataset: Any) -> tuple[Integers, Integers | None]:
        """Tokens of each row [N], and of its target [N] if the target is a separate sequence."""
        return lengths_of(dataset, "input_ids", "length"), None

    def get_train_dataloader(self) -> DataLoader:
        """Token-budget batches in an order that is a pure function of the seed and the epoch."""
        if self.train_dataset is None:
            raise UserError("there is nothing to train on: give a train_dataset")
        if has_length(self.train_dataset):
            return self.data_loaders.for_rows(self.train_dataset, self.train_data_collator, shuffle=True)
        return self.data_loaders.for_stream()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        """Token-budget batches of rows of similar length, in a fixed order."""
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if rows is None:
            raise UserError("there is nothing to evaluate on: give an eval_dataset")
        return self.data_loaders.for_rows(rows, self.data_collator)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        """As `get_eval_dataloader`."""
        return self.get_eval_dataloader(test_dataset)


def check_arguments(args: Any, expected: type) -> None:
    """Raise `UserError` unless the arguments of a trainer are of this class or a subclass."""
    if isinstance(args, expected):
        return
    package = type(args).__module__.partition(".")[0]
    found = "args are missing" if args is None else f"args are {package}.{type(args).__name__}"
    raise UserError(
        f"{found}; give vaswani's {expected.__name__}, which also has max_tokens_per_batch and the other "
        "options of this trainer"
    )


def without_cache(model: torch.nn.Module) -> dict[str, Any]:
    """Options of a forward pass that keeps no keys and values, which only decoding needs."""
    return {"use_cache": False} if "use_cache" in signature(model.forward).parameters else {}


def _gpus(device: torch.device) -> list[torch.device]:
    """Return the device if it has its own random generator, besides the CPU's; otherwise an empty list."""
    return [device] if device.type == "cuda" else []
