"""What keeps a training from losing work: whole checkpoints, and no update from NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import EarlyStoppingCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints
from transformers.utils import logging

from vaswani.errors import RunError
from vaswani.files.run_files import HISTORY
from vaswani.hub.hashes import forget_hashes, write_hashes
from vaswani.training.trainer.checkpoints import (
    checkpoint_to_resume,
    discard_unfinished,
    finish_checkpoint,
    given_checkpoint,
    unfinished_checkpoint,
)
from vaswani.training.trainer.resuming import check_resumable, manifest_of
from vaswani.training.trainer.sharded import ShardedTrainer

logger = logging.get_logger(__name__)

NON_FINITE_FOLDER = "non_finite"
MOST_SKIPPED = 10  # updates in a row; then it is not the batches


class DurableTrainer(ShardedTrainer):
    """A transformers `Trainer` whose checkpoints appear whole, and which does not train on NaN.

    Attributes:
        identity: what the rows that it trains on were made from, for the manifest of its checkpoints.
        settings: with which it trains, likewise (see `resuming.manifest_of`); default those of its arguments.
        history: the settings that changed when it was resumed, likewise.
        has_updated: whether it has computed the gradient of an update since it was made.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.identity: dict[str, Any] = {}
        self.settings: dict[str, Any] | None = None
        self.history: list[dict[str, Any]] = []
        self.has_updated = False
        self._micro_batches: list[tuple[dict[str, Any], torch.Tensor]] = []  # of this update, with losses
        self._updates = 0  # of this process, the skipped ones among them
        self._skipped = 0
        self._skipped_in_a_row = 0

    # ------------------------------------------------------------------------------------------ checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; a checkpoint is complete, and was saved with the settings of this trainer.

        Raises:
            UserError: it is not, or was not.
        """
        if resume_from_checkpoint is True:
            found = checkpoint_to_resume(Path(self.args.output_dir or "."), "true")
            resume_from_checkpoint = str(found) if found else None
        if self.settings is None:  # a run has compared its own before it read the corpus
            self.settings = manifest_of(self.args)
            if resume_from_checkpoint:
                checkpoint = given_checkpoint(Path(resume_from_checkpoint))
                self.history = check_resumable(checkpoint, self.args).record
        return super().train(resume_from_checkpoint or None, *args, **kwargs)

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """As in transformers, which would go on with the intervals and the patience of the checkpoint."""
        done = super()._init_training_state(max_steps, *args, **kwargs)
        self.state.compute_steps(self.args, max_steps)
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, EarlyStoppingCallback) and self.args.early_stopping_patience is not None:
                callback.early_stopping_patience = self.args.early_stopping_patience
        return done

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """As in transformers, but aside: what has the name of a checkpoint is one."""
        args, state = self.args, self.state
        run_folder = Path(self._get_output_dir(trial))
        folder = unfinished_checkpoint(run_folder, state.global_step)
        if args.should_save:
            discard_unfinished(run_folder)
        self.accelerator.wait_for_everyone()
        if trial is None:
            self.store_flos()
        self.save_model(str(folder), _internal_call=True)
        if not args.save_only_model:
            self._save_optimizer_and_scheduler(str(folder))
            self._save_scaler(str(folder))
            self._save_rng_state(str(folder))
        self.accelerator.wait_for_everyone()  # then all have written their part
        best = run_folder / f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
        if state.best_global_step == state.global_step or best.exists():
            state.best_model_checkpoint = str(best)
        if args.should_save:
            self._export_callbacks()
            state.save_to_json(str(folder / TRAINER_STATE_NAME))
            checkpoint = finish_checkpoint(folder, self._manifest())
            rotate_checkpoints(
                output_dir=str(run_folder),
                save_total_limit=args.save_total_limit,
                best_model_checkpoint=state.best_model_checkpoint,
                use_mtime=True,
            )
            if args.push_to_hub:
                self._push_from_checkpoint(str(checkpoint))
        self.accelerator.wait_for_everyone()  # then it is there for all of them

    def _export_callbacks(self) -> None:
        """Into the state, as the library does it."""
        exported: Any = self.state.stateful_callbacks  # a dictionary, whatever the library's hints say
        for callback in (*self.callback_handler.callbacks, self.control):
            if isinstance(callback, ExportableState):
                name = type(callback).__name__
                if isinstance(exported[name], list):
                    exported[name].append(callback.state())
                else:
                    exported[name] = callback.state()

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in transformers, with the hashes of what is saved."""
        folder = Path(output_dir or self.args.output_dir or ".")
        if self.args.should_save:
            forget_hashes(folder)
        super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            write_hashes(folder)

    def _manifest(self) -> dict[str, Any]:
        return {
            "update": self.state.global_step,
            **(self.settings or manifest_of(self.args)),
            HISTORY: self.history,
            "data": self.identity,
        }

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Tied weights are saved under one of their names; that the others are missing is right.
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result)

    # ----------------------------------------------------------------------------------------- finite numbers

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> torch.Tensor:
        """As in transformers; remembers the batches of an update until it is made."""
        loss = super().training_step(model, inputs, *args, **kwargs)
        self._micro_batches.append((inputs, loss))
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        # All processes are here, before the update, with the gradient of all: they see the same.
        grad_norm = super()._get_grad_norm(model, grad_norm)
        self.has_updated = True
        batches, self._micro_batches = self._micro_batches, []
        self._updates += 1
        if self._is_finite(grad_norm, [loss for _, loss in batches]):
            self._skipped_in_a_row = 0
            return grad_norm
        self._skipped += 1
        self._skipped_in_a_row += 1
        folder = self._write_aside([inputs for inputs, _ in batches])
        what = f"the loss or its gradient is not finite in update {self.state.global_step + 1:,}"
        if self.args.non_finite_loss == "stop" or self._skipped_in_a_row > MOST_SKIPPED:
            self.save_model(str(folder / "model"), _internal_call=True)
            remedy = self._non_finite_cause([inputs for inputs, _ in batches]) or (
                "Lower the learning_rate in a new run, leave out such rows, or set non_finite_loss=skip to "
                f"pass over {MOST_SKIPPED} such updates in a row"
            )
            raise RunError(f"{what}; its batches, and the model before it, are in {folder}. {remedy}")
        logger.warning("%s: it is skipped. Its batches are in %s.", what, folder)
        model.zero_grad()  # without gradients, the optimizer changes nothing
        return grad_norm

    def _non_finite_cause(self, batches: list[dict[str, Any]]) -> str | None:
        """What is wrong and what to do, where it is not the model that is trained."""
        return None

    def raise_if_nothing_was_learned(self) -> None:
        """Raise `RunError` where a training has ended without an update of the weights."""
        steps = self.state.global_step
        if steps == 0:
            raise RunError("the training made no update; give it more rows, or more num_train_epochs")
        if self._skipped == self._updates == steps:
            folder = Path(self.args.output_dir or ".") / NON_FINITE_FOLDER
            raise RunError(
                f"all {steps:,} updates were skipped, as the loss or its gradient was not finite; their "
                f"batches are in {folder}. Lower the learning_rate, or leave out such rows"
            )

    def _is_finite(self, grad_norm: Any, losses: list[torch.Tensor]) -> bool:
        if isinstance(grad_norm, DTensor):
            grad_norm = grad_norm.full_tensor()
        if self.accelerator.scaler is not None:  # of float16: it finds its scale by gradients that overflow
            return all(math.isfinite(loss) for loss in losses)
        return math.isfinite(grad_norm)

    def _write_aside(self, batches: list[dict[str, Any]]) -> Path:
        """The batches of this process, to be given to a model again: `model(**load_file(path))`."""
        folder = (
            Path(self.args.output_dir or ".") / NON_FINITE_FOLDER / f"update-{self.state.global_step + 1}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        for number, inputs in enumerate(batches):
            tensors = {
                name: value.contiguous().cpu() for name, value in inputs.items() if torch.is_tensor(value)
            }
            save_file(tensors, folder / f"process-{self.args.process_index}-batch-{number}.safetensors")
        return folder
