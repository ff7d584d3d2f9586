"""The mean of a training's last checkpoints as its final model, for `average_checkpoints`."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.files.atomic_files import write_json
from vaswani.files.json_files import read_object
from vaswani.files.run_files import AVERAGED_FILE, LOG_FILE, checkpoints

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

logger = logging.get_logger(__name__)


class FinalAverage:
    """Replaces a trainer's model at the end by the mean of the last checkpoints, for `average_checkpoints`.

    Only the checkpoints of the save strategy and of the last update count. A checkpoint that was caused by
    SIGTERM, or by the end of a run that was later extended, would change the mean. So a resumed run gives
    bit-identical results.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self.averaged: list[str] = []  # names of the checkpoints, once they are averaged

    def check(self, max_steps: int, num_epochs: int, done: int, epochs_done: float) -> None:
        """Raise a UserError, before training, if there will be too few checkpoints, or for an adapter.

        Args:
            max_steps: number of updates at the end.
            num_epochs: number of epochs at the end.
            done: number of updates after which a resumed run starts, else 0.
            epochs_done: number of epochs after which a resumed run starts, else 0.
        """
        args = self.trainer.args
        if args.average_checkpoints is None:
            return
        if hasattr(self.trainer.model, "peft_config"):
            raise no_mean_of_adapters(args.average_checkpoints)
        kept = len(self._due(done, max_steps)) if done else 0
        if args.save_strategy == SaveStrategy.EPOCH:
            coming, rhythm = num_epochs - int(epochs_done), "save_strategy=epoch"
        else:
            every = self._save_steps(max_steps)
            coming, rhythm = math.ceil(max_steps / every) - done // every, f"save_steps={every}"
        if kept + coming < args.average_checkpoints:
            raise UserError(
                f"average_checkpoints={args.average_checkpoints} is more than the {kept + coming} "
                f"checkpoints that there will be at the end ({rhythm}, {max_steps:,} updates, {kept} there "
                "now); lower it, or save more often"
            )

    def take(self) -> None:
        """Replace the weights of the model by the mean.

        Raises:
            UserError: a checkpoint is damaged, or there is none.
        """
        # Imported here, because most trainings average nothing.
        from vaswani.hub.weights import check_tensor_names
        from vaswani.interop.averaging import mean_weights

        trainer, count = self.trainer, self.trainer.args.average_checkpoints
        if count is None:
            return
        chosen = self._due(trainer.state.global_step, self._end)[-count:]
        if len(chosen) < count:  # it stopped early
            logger.warning(f"{len(chosen)} checkpoints are averaged and not {count}: there are no more.")
        report = trainer.model.load_state_dict(mean_weights(chosen), strict=False)
        check_tensor_names(trainer.output_dir, report.missing_keys, report.unexpected_keys)
        self.averaged = [path.name for path in chosen]

    def record(self, folder: Path) -> None:
        """Write the names of the averaged checkpoints into the folder of a saved model, if it is a mean."""
        if self.averaged:
            write_json(folder / AVERAGED_FILE, {"checkpoints": self.averaged})
        else:
            (folder / AVERAGED_FILE).unlink(missing_ok=True)  # from before the run was resumed

    def discard_others(self, newest: Path) -> None:
        """Delete older checkpoints that do not count, so that enough checkpoints that count are kept."""
        if self.trainer.args.average_checkpoints is None:
            return
        state = self.trainer.state
        keep = {*self._due(state.global_step, self._end), Path(state.best_model_checkpoint or newest)}
        names = {path.name for path in keep}
        for path in checkpoints(newest.parent):
            if path.name not in names and _step(path) < state.global_step:
                shutil.rmtree(path, ignore_errors=True)

    @property
    def _end(self) -> int:
        """The update whose checkpoint always counts."""
        state = self.trainer.state
        by_epochs = self.trainer.args.save_strategy == SaveStrategy.EPOCH
        return state.global_step if by_epochs else state.max_steps

    def _due(self, last: int, end: int) -> list[Path]:
        """Return the checkpoints up to `last` that count in a run that ends at `end`, oldest first."""
        found = [path for path in checkpoints(self.trainer.output_dir)[::-1] if _step(path) <= last]
        if self.trainer.args.save_strategy == SaveStrategy.EPOCH:
            return [path for path in found if _step(path) == end or _ends_an_epoch(path)]
        every = self._save_steps(end)
        return [path for path in found if _step(path) == end or _step(path) % every == 0]

    def _save_steps(self, max_steps: int) -> int:
        every = self.trainer.args.save_steps  # below 1: a share of all updates
        return int(every if every >= 1 else math.ceil(max_steps * every))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _ends_an_epoch(checkpoint: Path) -> bool:
    try:
        epoch = read_object(checkpoint / LOG_FILE).get("epoch")
    except UserError:  # damaged: averaging reports it
        return True
    return epoch is not None and float(epoch).is_integer()


def no_mean_of_adapters(count: int) -> UserError:
    """Return the error of `average_checkpoints` for an adapter."""
    return UserError(
        f"average_checkpoints={count} cannot be combined with an adapter (lora_rank): the mean of adapters "
        "is not that of the adapted models; leave one out"
    )
