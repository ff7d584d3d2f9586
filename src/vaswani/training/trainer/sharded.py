"""A trainer of models that are shared out among processes, whose checkpoints are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from vaswani.training.trainer.publishing import PublishingTrainer
from vaswani.training.trainer.sharding import (
    is_sharded,
    load_whole_optimizer_state,
    saved_as_given,
    scheduler_state,
    shard,
    whole_optimizer_state,
    whole_state_dict,
)


class ShardedTrainer(PublishingTrainer):
    """A transformers `Trainer` that shards its model as `fsdp_size` and `tensor_parallel_size` say.

    The library trains such models too, but saves no state of their optimizers, and so cannot resume.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        if self.args.fsdp_size * self.args.tensor_parallel_size > 1:
            # Not before: the library's trainer does not begin with a sharded model and checkpoints.
            shard(self.model, self.args.fsdp_size, self.args.tensor_parallel_size, self.args.world_size)
            self.is_distributed_loading_by_transformers = True

    @property
    def num_replicas(self) -> int:
        """Processes, or groups of them, that have batches of their own."""
        return self.args.world_size // self.get_tp_size()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        """As in transformers; of a sharded model, the whole weights, and tied ones once."""
        if not is_sharded(self.model):
            return super()._save(output_dir, state_dict)
        state_dict = self.whole_weights() if state_dict is None else state_dict
        if self.args.should_save:
            with saved_as_given(self.model):
                super()._save(output_dir, state_dict)
        return None

    def whole_weights(self) -> dict[str, torch.Tensor]:
        """What is saved of the model; all processes take part."""
        return whole_state_dict(self.model) if is_sharded(self.model) else self.model.state_dict()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """As in transformers; of a sharded model, the whole state."""
        if not is_sharded(self.model):
            return super()._save_optimizer_and_scheduler(output_dir)
        state = whole_optimizer_state(self.optimizer, self.model, self._optimizer_groups())
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            schedule = scheduler_state(self.lr_scheduler.state_dict(), len(state["param_groups"]))
            torch.save(schedule, Path(output_dir) / SCHEDULER_NAME)
        return None

    def _optimizer_groups(self) -> list[list[str]]:
        """Names of the parameters whose weights decay, and of the others, as the library groups them."""
        decaying = set(self.get_decay_parameter_names(self.model))
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        return [[name for name in names if (name in decaying) == decays] for decays in (True, False)]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in transformers, which cannot give a process its share."""
        if checkpoint is None or not is_sharded(self.model):
            return super()._load_optimizer_and_scheduler(checkpoint)
        states = [
            torch.load(Path(checkpoint) / name, map_location="cpu", weights_only=True)
            for name in (OPTIMIZER_NAME, SCHEDULER_NAME)
        ]
        load_whole_optimizer_state(self.optimizer, self.model, self._optimizer_groups(), states[0])
        self.lr_scheduler.load_state_dict(scheduler_state(states[1], len(self.optimizer.param_groups)))
        return None
