"""Shard a model over processes with FSDP2 and tensor parallelism, by the model's own plans.

Checkpoints hold the whole model: sharded and unsharded runs resume each other's checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel, __version__
from transformers.distributed import DistributedConfig
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from vaswani.errors import UserError
from vaswani.training.launch.processes import check_sizes

if TYPE_CHECKING:
    from vaswani.training.trainer.base import BaseTrainer

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Sharding:
    """Shards the parameters of a model in place; saves and loads the whole training state.

    Args:
        model: the same model in all processes, on their devices.
        fsdp_size: number of processes over which all parameters are sharded (ZeRO stage 3, arXiv:1910.02054;
            FSDP2), each with its own batches.
        tensor_parallel_size: number of processes over which heads and inner features are split (Megatron-LM,
            arXiv:1909.08053, section 3), with the same batches.
        num_processes: number of all processes, a multiple of the product of both sizes; the factor is the
            number of replicas.

    Raises:
        UserError: the number of processes, or the model's heads and widths, are not divisible by the sizes;
            or the model cannot be sharded.
    """

    def __init__(self, model: PreTrainedModel, fsdp_size: int, tensor_parallel_size: int, num_processes: int):
        check_sizes(fsdp_size, tensor_parallel_size, num_processes)
        self.model, model_class = model, type(model)
        if not hasattr(model_class, "maybe_distribute_model"):
            raise UserError(
                f"fsdp_size and tensor_parallel_size do not work with transformers {__version__}; install a "
                "newer one, or set both to 1"
            )
        if tensor_parallel_size > 1:
            _check_divisible(model, tensor_parallel_size)
        copies = num_processes // (fsdp_size * tensor_parallel_size)
        config = DistributedConfig(
            fsdp_size=fsdp_size, tp_size=tensor_parallel_size, dp_replicate_size=copies
        )
        _, _, mesh = model_class.prepare_distribute_model(config)
        try:
            model_class.maybe_distribute_model(model, config, mesh)
        except ValueError as error:  # a library model without a plan
            raise UserError(f"{model_class.__name__} cannot be sharded: {error}") from error
        model.register_load_state_dict_pre_hook(_take_own_share)
        model.register_state_dict_post_hook(_keep_tied_weights_once)
        if config.dp_size > 1:
            if model.can_generate():
                register_fsdp_forward_method(model, "generate")
            # FSDP2 replaces the class of modules, and the library would save the name of that class.
            for name in ("__name__", "__qualname__", "__module__"):
                setattr(type(model), name, getattr(model_class, name))

    @property
    def local_parameters(self) -> int:
        """The number of parameters that this process holds."""
        held = (
            value.to_local() if isinstance(value, DTensor) else value for value in self.model.parameters()
        )
        return sum(value.numel() for value in held)

    def save_training_state(self, trainer: BaseTrainer, folder: Path) -> None:
        """Write the optimizer's state in the form of an unsharded optimizer, and the scheduler's state."""
        whole: dict[str, Any] = get_optimizer_state_dict(
            trainer.model, trainer.optimizer.optimizer, options=WHOLE
        )
        if not trainer.args.should_save:
            return
        groups = _optimizer_groups(trainer)
        numbers = {name: number for number, name in enumerate(name for names in groups for name in names)}
        options = {name: group for group in whole["param_groups"] for name in group["params"]}
        state = {
            "state": {numbers[name]: values for name, values in whole["state"].items()},
            "param_groups": [
                {**options[names[0]], "params": [numbers[name] for name in names]}
                for names in groups
                if names
            ],
        }
        torch.save(state, folder / OPTIMIZER_NAME)
        schedule = _for_groups(trainer.lr_scheduler.state_dict(), len(state["param_groups"]))
        torch.save(schedule, folder / SCHEDULER_NAME)

    def load_training_state(self, trainer: BaseTrainer, folder: Path) -> None:
        """Load each process's share of the state that `save_training_state` or an unsharded run wrote."""
        saved, schedule = (
            torch.load(folder / name, map_location="cpu", weights_only=True)
            for name in (OPTIMIZER_NAME, SCHEDULER_NAME)
        )
        optimizer = trainer.optimizer.optimizer
        names = [name for names in _optimizer_groups(trainer) for name in names]
        options = {names[number]: group for group in saved["param_groups"] for number in group["params"]}
        name_of = {parameter: name for name, parameter in trainer.model.named_parameters()}
        groups = [[name_of[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
        whole: Any = {
            "state": {names[number]: values for number, values in saved["state"].items()},
            "param_groups": [{**options[group[0]], "params": group} for group in groups],
        }
        if whole["state"]:  # not SGD, which has none
            set_optimizer_state_dict(trainer.model, optimizer, whole, options=WHOLE)
        trainer.lr_scheduler.load_state_dict(_for_groups(schedule, len(groups)))


def _check_divisible(model: PreTrainedModel, size: int) -> None:
    names = ("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
    for name in names:
        value = getattr(model.config, name, size)
        if value % size:
            raise UserError(
                f"tensor_parallel_size={size} does not divide {name}={value}; choose one that does"
            )


def _take_own_share(module: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """Replace whole weights that are about to be loaded by this process's share of them."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, value in state_dict.items():
        own = parameters.get(name)
        if isinstance(own, DTensor) and not isinstance(value, DTensor) and value.shape == own.shape:
            state_dict[name] = distribute_tensor(
                value.to(own.device), own.device_mesh, own.placements, src_data_rank=None
            )


def _keep_tied_weights_once(module: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """Drop the other names of tied weights: gathered, they would be saved twice."""
    for name in getattr(module, "all_tied_weights_keys", {}):
        state_dict.pop(name, None)


def _optimizer_groups(trainer: BaseTrainer) -> list[list[str]]:
    """Names of the parameters in the groups of an unsharded optimizer: weights that decay, and the others."""
    decaying = set(trainer.get_decay_parameter_names(trainer.model))
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    return [[name for name in names if (name in decaying) == decays] for decays in (True, False)]


def _for_groups(schedule: dict[str, Any], num_groups: int) -> dict[str, Any]:
    """A scheduler's state for another number of groups, which all have one learning rate."""
    per_group = {name: value for name, value in schedule.items() if isinstance(value, list) and value}
    return schedule | {name: value[:1] * num_groups for name, value in per_group.items()}
