"""A model shared out among processes: FSDP2 and tensor parallelism, by the plans that the model brings.

What is saved is whole, so that a sharded run and one that is not go on for each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from vaswani.errors import UserError


def shard(model: PreTrainedModel, fsdp_size: int, tensor_parallel_size: int, num_processes: int) -> None:
    """Keep in each process its share of the parameters, in place.

    Args:
        model: the same in all processes, on their devices.
        fsdp_size: processes that share out all parameters (ZeRO stage 3, arXiv:1910.02054; FSDP2), each with
            batches of its own.
        tensor_parallel_size: processes that share out heads and inner features (Megatron-LM,
            arXiv:1909.08053, section 3), with the same batches.
        num_processes: in all; divisible by the product of the two, of which there are copies.

    Raises:
        UserError: the processes, or the model's heads and widths, cannot be shared out so.
    """
    check_sizes(fsdp_size, tensor_parallel_size, num_processes)
    if tensor_parallel_size > 1:
        _check_divisible(model, tensor_parallel_size)
    copies = num_processes // (fsdp_size * tensor_parallel_size)
    config = DistributedConfig(fsdp_size=fsdp_size, tp_size=tensor_parallel_size, dp_replicate_size=copies)
    kind = type(model)
    _, _, mesh = kind.prepare_distribute_model(config)
    try:
        kind.maybe_distribute_model(model, config, mesh)
    except ValueError as error:  # a library model without a plan
        raise UserError(f"{kind.__name__} cannot be sharded: {error}") from error
    model.register_load_state_dict_pre_hook(_take_own_share)
    if config.dp_size > 1:
        if model.can_generate():
            register_fsdp_forward_method(model, "generate")
        # FSDP2 gives modules a class of its own, by which the library would name, and copy, what is saved.
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(type(model), name, getattr(kind, name))


def check_sizes(fsdp_size: int, tensor_parallel_size: int, num_processes: int) -> None:
    """Find numbers of processes that do not fit together.

    Raises:
        UserError: they do not.
    """
    if num_processes % (fsdp_size * tensor_parallel_size):
        raise UserError(
            f"fsdp_size={fsdp_size} times tensor_parallel_size={tensor_parallel_size} does not divide the "
            f"{num_processes} processes; start as many, or a multiple (vaswani train --num_processes N)"
        )


def _check_divisible(model: PreTrainedModel, size: int) -> None:
    config = model.config
    names = ("encoder_attention_heads", "decoder_attention_heads", "encoder_ffn_dim", "decoder_ffn_dim")
    for name in names:
        value = getattr(config, name, size)
        if value % size:
            raise UserError(
                f"tensor_parallel_size={size} does not divide {name}={value}; choose one that does"
            )


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` was here."""
    return getattr(model, "is_distributed_loading_by_transformers", False)


def held_parameters(model: nn.Module) -> int:
    """How many parameters lie in this process."""
    held = (value.to_local() if isinstance(value, DTensor) else value for value in model.parameters())
    return sum(value.numel() for value in held)


def share_of(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """This process's share of a whole tensor, placed as a parameter of the same shape is."""
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    whole = value.to(parameter.device)
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _take_own_share(module: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, value in state_dict.items():
        if name in parameters:
            state_dict[name] = share_of(value, parameters[name])


def whole_state_dict(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """All weights on the CPU, tied ones under one name; all processes take part."""
    tied = getattr(model, "all_tied_weights_keys", {})
    return {name: value for name, value in _whole(model.state_dict()).items() if name not in tied}


@contextmanager
def saved_as_given(model: PreTrainedModel) -> Iterator[None]:
    """Let `save_pretrained` take the weights that it is given; it would gather them, and tied ones twice."""
    config: Any = model.config
    distributed, config.distributed_config = config.distributed_config, None
    try:
        yield
    finally:
        config.distributed_config = distributed


def whole_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, groups: list[list[str]]
) -> dict[str, Any]:
    """The state as an optimizer of the whole model has it, on the CPU; all processes take part.

    Args:
        optimizer: of the sharded model. Where only some parameters are sharded, its groups are more.
        model: whose parameters it trains.
        groups: names of the parameters in the groups of an optimizer of the whole model.
    """
    held, options = _by_name(optimizer, model)
    numbers = {name: number for number, name in enumerate(name for names in groups for name in names)}
    state = {number: _whole(held[name]) for name, number in numbers.items() if name in held}
    return {
        "state": state,
        "param_groups": [
            {**options[names[0]], "params": [numbers[name] for name in names]} for names in groups if names
        ],
    }


def load_whole_optimizer_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, groups: list[list[str]], saved: dict[str, Any]
) -> None:
    """Give each process its share of what `whole_optimizer_state` returned, or a whole model's optimizer."""
    names = [name for names in groups for name in names]
    of_name = {names[number]: values for number, values in saved["state"].items()}
    options = {
        names[number]: {key: value for key, value in group.items() if key != "params"}
        for group in saved["param_groups"]
        for number in group["params"]
    }
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    plan = optimizer.state_dict()["param_groups"]
    state = {}
    for group, planned in zip(optimizer.param_groups, plan, strict=True):
        planned |= options[name_of[group["params"][0]]]
        for parameter, number in zip(group["params"], planned["params"], strict=True):
            values = of_name.get(name_of[parameter], {})
            state[number] = {name: share_of(value, parameter) for name, value in values.items()}
    optimizer.load_state_dict({"state": state, "param_groups": plan})


def scheduler_state(state: dict[str, Any], num_groups: int) -> dict[str, Any]:
    """A scheduler's state for another number of groups: their learning rates are all one."""
    per_group = {name: value for name, value in state.items() if isinstance(value, list) and value}
    return state | {name: value[:1] * num_groups for name, value in per_group.items()}


def _by_name(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The state of each parameter that has one, and the options of each, by the parameters' names."""
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    saved = optimizer.state_dict()
    states, options = {}, {}
    for group, written in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        of_group = {name: value for name, value in written.items() if name != "params"}
        for parameter, number in zip(group["params"], written["params"], strict=True):
            options[name_of[parameter]] = of_group
            if number in saved["state"]:
                states[name_of[parameter]] = saved["state"][number]
    return states, options


def _whole(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.full_tensor().cpu() if isinstance(value, DTensor) else value
        for name, value in values.items()
    }
