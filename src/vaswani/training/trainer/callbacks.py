"""Callbacks of every training: stop at a signal, log at checkpoints, resume with the settings of the run."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import (
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import IntervalStrategy

from vaswani.errors import StoppedError
from vaswani.training.launch.sigterm import DeferredSignal, name_of_signal
from vaswani.training.trainer.checkpoints import checkpoint_of

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and stops after the update in which a signal arrived, in all processes at once.

    Schedulers, and machines that shut down, send SIGTERM some time before SIGKILL. In a run, Ctrl-C does the
    same as SIGTERM, and a second Ctrl-C ends it at once. A signal reaches processes at different moments, so
    in every update each process tells the others, and reads one update later what they agreed on: no process
    waits.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self.number = 0  # of the signal that arrived
        self.has_stopped = False
        self._agreement: tuple[torch.Tensor, Any] | None = None
        self._before: dict[int, Any] = {}  # the handlers of signals that were replaced

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Listen for signals if this is the main thread; no other thread can."""
        self.number, self.has_stopped = 0, False
        self._agreement = None
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            before = self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._note)
            if isinstance(before, DeferredSignal):  # in a run; other programs keep their Ctrl-C
                self.number = before.number  # it may have arrived before the first update
                ctrl_c = signal.getsignal(signal.SIGINT)
                if ctrl_c is signal.default_int_handler:  # a background job ignores it
                    self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._note)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Wait for messages, and stop listening."""
        if self._agreement is not None:
            self._agreement[1].wait()
            self._agreement = None
        self.restore()

    def restore(self) -> None:
        """Restore the old handlers, and pass on a signal that arrived after the last update."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
            if isinstance(handler, DeferredSignal):
                handler.number = 0 if self.has_stopped else self.number
        self._before = {}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask for a checkpoint, then for the end."""
        if self._agreed(args):
            self.has_stopped = control.should_save = control.should_training_stop = True

    def on_prediction_step(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Stop in an evaluation during training, which may take longer than a scheduler waits.

        The trainer calls `save` once the random state of the training is restored.
        """
        if self._before and self._agreed(args):
            raise StoppedError(self.message, self.number)

    def save(self) -> None:
        """Save a checkpoint of the training that ended in an evaluation."""
        self.trainer._save_checkpoint(self.trainer.model, trial=None)
        self.on_train_end()  # the library does not call it here

    def raise_if_stopped(self) -> None:
        """Raise `StoppedError` if the signal ended the training."""
        if self.has_stopped:
            raise StoppedError(self.message, self.number)

    @property
    def message(self) -> str:
        """The message for the user: where the run stopped, and how to continue."""
        done = self.trainer.state.global_step
        return (
            f"stopped by {name_of_signal(self.number)} after update {done:,}; it is saved in "
            f"{self.trainer.args.output_dir}: continue with --resume_from_checkpoint true"
        )

    def _note(self, number: int, *_: Any) -> None:
        self.number = number
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if self.trainer.is_world_process_zero():
                with suppress(OSError):  # standard error may be closed
                    os.write(2, b"\nstopping after this update; Ctrl-C again stops at once\n")

    def _agreed(self, args: TrainingArguments) -> bool:
        """Return True if any process had received the signal at the last exchange."""
        if args.world_size == 1:
            return self.number > 0
        agreed = 0
        if self._agreement is not None:
            told, handle = self._agreement
            handle.wait()
            agreed = int(told.item())
        told = torch.tensor(self.number, device=args.device)
        self._agreement = told, dist.all_reduce(told, dist.ReduceOp.MAX, async_op=True)
        self.number = max(self.number, agreed)
        return agreed > 0


class LogAtCheckpoints(TrainerCallback):
    """Logs at every update after which the run may be saved, because a resumed run starts to count there.

    Checkpoints do not contain the sums of tokens and losses since the last log. A run may also be saved in an
    evaluation, if it is stopped.
    """

    def on_step_end(self, args: TrainingArguments, state: Any, control: TrainerControl, **_: Any) -> None:
        """Ask for a log."""
        if args.logging_strategy != IntervalStrategy.NO and (control.should_save or control.should_evaluate):
            control.should_log = True

    on_epoch_end = on_step_end


class ResumedRun(TrainerCallback):
    """Keeps the order of the data, the intervals and the patience of the arguments when a run is resumed."""

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Replace intervals, patience and paths, which the library has restored from the checkpoint."""
        state.compute_steps(args, state.max_steps)
        state.num_train_epochs = self.trainer.num_epochs
        best = checkpoint_of(self.trainer.output_dir, state.best_global_step or 0)
        if best.is_dir():  # its path is another one if the run was moved, and the library ignores it
            state.best_model_checkpoint = str(best)
        for callback in self.trainer.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and args.early_stopping_patience is not None:
                callback.early_stopping_patience = args.early_stopping_patience

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any
    ) -> None:
        """Tell the collator and the batch sampler which epoch begins.

        The library does so too, but in a resumed run of several processes its wrappers hide the sampler.
        """
        epoch = int(state.epoch or 0)
        if hasattr(self.trainer.train_data_collator, "set_epoch"):
            self.trainer.train_data_collator.set_epoch(epoch)
        sampler = train_dataloader.batch_sampler
        while sampler is not None and not hasattr(sampler, "set_epoch"):
            sampler = getattr(sampler, "batch_sampler", None)
        if sampler is not None:
            sampler.set_epoch(epoch)
