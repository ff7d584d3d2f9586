"""The mean of a training's last checkpoints as its final model, for `average_checkpoints`."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.files.atomic_files import write_json
from vaswani.files.json_files import read_object
from vaswani.files.run_files import AVERAGED_FILE, checkpoints

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

logger = logging.get_logger(__name__)


class FinalAverage:
    """Makes the mean of the last checkpoints the model of a trainer at the end, for `average_checkpoints`.

    Only checkpoints that the save strategy asks for count, and that of the last update: one that SIGTERM
    caused, or the end of a run that became longer, would change the mean. So a resumed run ends with the same
    bits.
    """

    def __init__(self, trainer: BaseTrainer):
        self.trainer = trainer
        self.averaged: list[str] = []  # names of the checkpoints, once they are averaged

    def check(self, max_steps: int, num_epochs: int, done: int, epochs_done: float) -> None:
        """Raise a UserError, before training, if there will be too few checkpoints, or those of an adapter.

        Args:
            max_steps: updates at the end.
            num_epochs: likewise.
            done: updates at which a resumed run begins, else 0.
            epochs_done: likewise.
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
        from vaswani.hub.weights import check_places
        from vaswani.interop.averaging import mean_weights

        trainer, count = self.trainer, self.trainer.args.average_checkpoints
        if count is None:
            return
        chosen = self._due(trainer.state.global_step, self._end)[-count:]
        if len(chosen) < count:  # it stopped early
            logger.warning(f"{len(chosen)} checkpoints are averaged and not {count}: there are no more.")
        report = trainer.model.load_state_dict(mean_weights(chosen), strict=False)
        check_places(trainer.output_dir, report.missing_keys, report.unexpected_keys)
        self.averaged = [path.name for path in chosen]

    def record(self, folder: Path) -> None:
        """Write into the folder of a saved model which checkpoints it is the mean of, if it is one."""
        if self.averaged:
            write_json(folder / AVERAGED_FILE, {"checkpoints": self.averaged})
        else:
            (folder / AVERAGED_FILE).unlink(missing_ok=True)  # of an earlier end of this run

    def discard_others(self, newest: Path) -> None:
        """Delete older checkpoints that do not count, so that as many of the others are kept."""
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
        """The update that has a checkpoint whatever the rhythm is."""
        state = self.trainer.state
        by_epochs = self.trainer.args.save_strategy == SaveStrategy.EPOCH
        return state.global_step if by_epochs else state.max_steps

    def _due(self, last: int, end: int) -> list[Path]:
        """Return the checkpoints up to an update that count in a run that ends at another, oldest first."""
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
        epoch = read_object(checkpoint / TRAINER_STATE_NAME).get("epoch")
    except UserError:  # it is damaged: the average says so
        return True
    return epoch is not None and float(epoch).is_integer()


def no_mean_of_adapters(count: int) -> UserError:
    """Return the error of `average_checkpoints` for an adapter."""
    return UserError(
        f"average_checkpoints={count} cannot be combined with an adapter (lora_rank): the mean of adapters "
        "is not that of the adapted models; leave one out"
    )
