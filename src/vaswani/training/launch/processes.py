"""Processes that train together: wait for each other at the start, and check their number."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType

from vaswani.errors import RunError, UserError

POLL_SECONDS = 0.1
PATIENCE = timedelta(days=7)  # while one process reads and tokenizes the corpus


def choose_device() -> None:
    """Let several processes train together on CPUs if there is no other device.

    Without this, transformers and accelerate would let each process train alone.
    """
    if _started_processes() > 1 and not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"


@contextmanager
def without_gpu_context() -> Iterator[None]:
    """Create no GPU context, which takes memory, while resolving the configuration for other processes."""
    name = "ACCELERATE_USE_CPU"
    changes = torch.cuda.is_available() and name not in os.environ
    if changes:
        os.environ[name] = "true"
    try:
        yield
    finally:
        if changes:
            del os.environ[name]


def trains_on_cpu(use_cpu: bool) -> bool:
    """Return True if the processes train on CPUs: by the option, or because there is no other device."""
    return use_cpu or os.environ.get("ACCELERATE_USE_CPU", "false").lower() == "true"


def requested_fsdp_size() -> int | None:
    """Return the number of processes over which accelerate's launcher was told to shard; None without FSDP.

    The model is then sharded by its own plan, on any device. On CPUs, accelerate would silently replicate it.

    Raises:
        UserError: for an FSDP option that is not supported.
    """
    if not _is_requested("FSDP"):
        return None
    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise UserError("fsdp_version 1 is not supported; set fsdp_version: 2 in accelerate's configuration")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        raise UserError("fsdp_offload_params is not supported; set it to false in accelerate's configuration")
    os.environ["ACCELERATE_USE_FSDP"] = "false"  # this project shards the model itself
    return _started_processes()


def check_processes() -> None:
    """Raise `UserError` if several processes were requested, but only one runs or each would train alone."""
    state = PartialState()
    # accelerate's launcher sets MASTER_ADDR for several processes, and the processes get WORLD_SIZE.
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
    if _is_requested("DEEPSPEED") and state.distributed_type == DistributedType.NO:
        raise UserError("DeepSpeed was asked for, and there is one process without it; start several")


def check_sizes(fsdp_size: int, tensor_parallel_size: int, num_processes: int) -> None:
    """Raise `UserError` unless the two sizes divide the number of processes."""
    if num_processes % (fsdp_size * tensor_parallel_size):
        raise UserError(
            f"fsdp_size={fsdp_size} times tensor_parallel_size={tensor_parallel_size} does not divide the "
            f"{num_processes} processes; start as many, or a multiple (vaswani train --num_processes N)"
        )


def _started_processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _is_requested(plugin: str) -> bool:
    return os.environ.get(f"ACCELERATE_USE_{plugin}", "false").lower() == "true"


class LongWaits:
    """Waits for all processes that do not end after `ddp_timeout`, while one of them prepares a large corpus.

    All processes must create it together; a missing process is reported after `ddp_timeout`.
    """

    def __init__(self) -> None:
        PartialState().wait_for_everyone()
        several = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE) if several else None

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self._group is not None:
            dist.barrier(self._group)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let the main process of each machine go first."""
        goes_first = PartialState().is_local_main_process
        if not goes_first:
            self.wait()
        yield
        if goes_first:
            self.wait()


# -------------------------------------------------------------------------------------------- the start


def join_processes(timeout: int, use_cpu: bool) -> dist.Store | None:
    """Wait for all processes of a training; on CPUs, also start the process group.

    Accelerate would start the group on CPUs without the timeout.

    Args:
        timeout: seconds to wait at the start, and later for each answer.
        use_cpu: whether they train on CPUs.

    Returns:
        The store through which the processes found each other; keep it until the process group has started.
        None for a single process, or if a launcher has already waited for them.

    Raises:
        RunError: a process is missing.
    """
    world_size = _started_processes()
    by_environment = all(name in os.environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    if world_size == 1 or not by_environment or dist.is_initialized():
        return None
    is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = None if is_launchers else _wait_for_all(int(os.environ["RANK"]), world_size, timeout)
    if use_cpu:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    return store


def _wait_for_all(rank: int, world_size: int, timeout: int) -> dist.Store:
    """Wait at a store of the first process until all others have come."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    deadline = time.monotonic() + timeout
    if rank > 0:
        _wait_for_first(address, port, world_size, timeout)
    store = dist.TCPStore(
        address,
        port,
        world_size,
        is_master=rank == 0,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,  # its error would not name the missing processes
        multi_tenant=True,  # the process group uses the same store
    )
    names = [f"vaswani/process {number}" for number in range(world_size)]
    missing: list[int] = []
    try:
        store.set(names[rank], "")
        while not store.check(names):
            missing = [number for number, name in enumerate(names) if not store.check([name])]
            if time.monotonic() > deadline:
                raise _missing(missing, world_size, timeout)
            time.sleep(POLL_SECONDS)
    except dist.DistError as error:  # process 0 has stopped waiting
        raise _missing(missing or [0], world_size, timeout) from error
    return store


def _wait_for_first(address: str, port: int, world_size: int, timeout: int) -> None:
    """Wait until the store can be reached: a torch store that cannot connect prints a long message."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1, timeout)).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise _missing([0], world_size, timeout, f" at {address}:{port}") from error
        time.sleep(POLL_SECONDS)


def _missing(ranks: list[int], world_size: int, timeout: int, where: str = "") -> RunError:
    which = f"process{'es' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} of {world_size}"
    return RunError(
        f"{which} did not start{where} within ddp_timeout={timeout} seconds (counted from 0); see what "
        "went wrong there, or raise ddp_timeout"
    )
