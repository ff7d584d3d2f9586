"""Whether a training runs on as many processes, and in the way, as was asked for."""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType

from vaswani.errors import UserError


def choose_device() -> None:
    """Let several processes train on CPUs where there is nothing else, as one process does.

    transformers and accelerate would otherwise train as many times alone.
    """
    if _started_processes() > 1 and not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"


def trains_on_cpu(use_cpu: bool) -> bool:
    """Whether the processes train on CPUs, by the option or because there is nothing else."""
    return use_cpu or os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"


def requested_fsdp_size() -> int | None:
    """How many processes accelerate's launcher wants to share out the model, if it was told so.

    We then do it by the model's own plan, on every device; accelerate would copy the model on CPUs without a
    word.

    Raises:
        UserError: for what that plan does not do.
    """
    if not _asked_for("FSDP"):
        return None
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("fsdp_version 1 is not supported; set fsdp_version: 2 in accelerate's configuration")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        raise UserError("fsdp_offload_params is not supported; set it to false in accelerate's configuration")
    os.environ["ACCELERATE_USE_FSDP"] = "false"  # done here
    return _started_processes()


def check_processes() -> None:
    """Find what launchers do without a word: train in one process where several were asked for.

    Raises:
        UserError: there is one process, or each trains for itself.
    """
    state = PartialState()
    # accelerate's launcher tells of several processes by MASTER_ADDR; those that it starts know WORLD_SIZE.
    was_launched = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if was_launched and _started_processes() == 1:
        raise UserError(
            "accelerate was asked for several processes and started one, as it does for MULTI_CPU and --cpu; "
            "use the configuration accelerate/cpu_ddp (vaswani configs), or vaswani train --num_processes N"
        )
    if _started_processes() != state.num_processes:
        raise UserError(
            f"{_started_processes()} processes were started, and each would train alone; "
            "see that PyTorch knows the devices, or set use_cpu=true"
        )
    if _asked_for("DEEPSPEED") and state.distributed_type == DistributedType.NO:
        raise UserError("DeepSpeed was asked for, and there is one process without it; start several")


def _started_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _asked_for(plugin: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{plugin}", "false").lower() == "true"
