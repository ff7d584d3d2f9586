"""Processes that train together find each other within `ddp_timeout`, or say which of them are missing."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist

from vaswani.errors import RunError

POLL_SECONDS = 0.1


def join_processes(timeout: int, use_cpu: bool) -> dist.Store | None:
    """Wait for all processes of a training; on CPUs, start their group, to which accelerate gives no limit.

    Args:
        timeout: seconds to wait at the start, and later for each answer.
        use_cpu: whether they train on CPUs.

    Returns:
        Where the processes have met; to be kept until the process group has been started. None where they
        are not waited for: there is one, or a launcher has done so.

    Raises:
        RunError: a process is missing.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    by_environment = all(name in os.environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"))
    if world_size == 1 or not by_environment or dist.is_initialized():
        return None
    is_launchers = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = None if is_launchers else _roll_call(int(os.environ["RANK"]), world_size, timeout)
    if use_cpu:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    return store


def _roll_call(rank: int, world_size: int, timeout: int) -> dist.Store:
    """Meet at the first process and wait until all others have come too."""
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
        wait_for_workers=False,  # it would count them, without telling which are missing
        multi_tenant=True,  # the process group then uses the same
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
    except dist.DistError as error:  # the first has stopped waiting
        raise _missing(missing or [0], world_size, timeout) from error
    return store


def _wait_for_first(address: str, port: int, world_size: int, timeout: int) -> None:
    """A plain connection: that of the store fails with a screen full of text."""
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
        f"{which} did not start{where} within ddp_timeout={timeout} seconds (they count from 0); see what "
        "went wrong there, or raise ddp_timeout"
    )
