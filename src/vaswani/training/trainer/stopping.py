"""SIGTERM, by which schedulers and machines that shut down ask for an end: save, then stop."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from vaswani.errors import StoppedError
from vaswani.training.launch.sigterm import HeldBack

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer


class StopOnSignal(TrainerCallback):
    """Saves a checkpoint and stops after the update in which SIGTERM came, in all processes at once.

    Processes learn of the signal at different moments. Each tells the others with every update, and what they
    agreed on is read one update later, so that nobody waits.

    Args:
        trainer: saves during an evaluation, which is broken off.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self.signalled = self._has_stopped = False
        self._agreement: tuple[torch.Tensor, Any] | None = None
        self._before: Any = None

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Listen, from the main thread, which alone can."""
        self.signalled = self._has_stopped = False
        self._agreement = None
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
            # It may have come before the first update.
            self.signalled = isinstance(self._before, HeldBack) and self._before.came

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Leave the signal to whoever had it, also one that came after the last update; wait for messages."""
        if self._agreement is not None:
            self._agreement[1].wait()
            self._agreement = None
        if self._before is None:
            return
        signal.signal(signal.SIGTERM, self._before)
        if isinstance(self._before, HeldBack):
            self._before.came = self.signalled and not self._has_stopped
        self._before = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask for a checkpoint, then for the end."""
        if self._agreed(args):
            self._has_stopped = control.should_save = control.should_training_stop = True

    def on_prediction_step(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """An evaluation in training takes longer than a scheduler waits."""
        if self._before is not None and self._agreed(args):
            self.trainer._save_checkpoint(self.trainer.model, trial=None)
            self.on_train_end()  # which will not be told
            raise StoppedError(self.message)

    def raise_if_stopped(self) -> None:
        """End a run that is not finished.

        Raises:
            StoppedError: training ended because of the signal.
        """
        if self._has_stopped:
            raise StoppedError(self.message)

    @property
    def message(self) -> str:
        """What happened, and how to go on."""
        folder = self.trainer.args.output_dir
        return (
            f"stopped by SIGTERM after update {self.trainer.state.global_step:,}; it is saved in {folder}: "
            "continue with --resume_from_checkpoint true"
        )

    def _note(self, *_: Any) -> None:
        self.signalled = True

    def _agreed(self, args: TrainingArguments) -> bool:
        """Whether any process had the signal when all last told each other."""
        if args.world_size == 1:
            return self.signalled
        agreed = False
        if self._agreement is not None:
            told, handle = self._agreement
            handle.wait()
            agreed = bool(told.item())
        told = torch.tensor(int(self.signalled), device=args.device)
        self._agreement = told, dist.all_reduce(told, dist.ReduceOp.MAX, async_op=True)
        self.signalled |= agreed
        return agreed
