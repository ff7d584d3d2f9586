"""A training in several processes on this machine: start all, forward signals, and end all when one fails.

This module does not use torchrun. When a signal stops a training, torchrun's API raises `SignalException` and
returns no exit statuses, so the launcher would not know whether the processes saved and reported it. After a
failure, torchrun gives the other processes half a minute, in which each reports the loss of its peer as its
own failure. Users can still start a training with torchrun or accelerate (see `processes`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch

from vaswani.bootstrap import LAUNCHER_VARIABLE, command_code
from vaswani.errors import RunError, StoppedError, UserError

SECONDS_TO_SAVE = 600  # from the stop signal until a process that still runs is killed
POLL_SECONDS = 0.05
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SAVED_AT_CTRL_C = 128 + signal.SIGINT  # exit status of a training


def launch(
    arguments: Sequence[str], num_processes: int, describe_saved: Callable[[], str], use_cpu: bool = False
) -> int:
    """Run `vaswani` with these arguments in several processes that train together.

    Each process reports its own failure on standard error. SIGTERM and Ctrl-C are forwarded to all.

    Args:
        arguments: arguments of the command, without the number of processes.
        num_processes: number of processes on this machine, one for each device; on CPUs they share the cores.
        describe_saved: returns what was saved, the end of the message of a failure.
        use_cpu: whether to train on CPUs even if there are other devices.

    Returns:
        The exit status: 0, or that of the process that failed first.

    Raises:
        UserError: there are fewer devices than processes.
        RunError: a process was killed.
        StoppedError: a signal arrived before there was anything to save, or the processes saved at Ctrl-C.
    """
    _check_devices(num_processes, use_cpu)
    environment = _environment(num_processes)
    command = [sys.executable, "-c", command_code(), *arguments]
    processes: list[subprocess.Popen] = []
    try:
        with _StopSignals(processes) as stop:
            for rank in range(num_processes):
                of_its_own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                # A new session: Ctrl-C reaches only this process, which forwards it.
                processes.append(
                    subprocess.Popen(command, env=environment | of_its_own, start_new_session=True)
                )
            failed = _wait(processes, stop)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if failed is None:
        return 0
    status = processes[failed].returncode
    if status == SAVED_AT_CTRL_C:  # typer takes it for its own
        raise StoppedError("", signal.SIGINT)  # process 0 has reported it
    if stop.number == -status:
        raise StoppedError(f"stopped before training began; {describe_saved()}")
    if status < 0:
        raise RunError(
            f"process {failed} of {num_processes} was killed ({signal.Signals(-status).name}), so the others "
            f"were ended; {describe_saved()}"
        )
    return status


def _check_devices(num_processes: int, use_cpu: bool) -> None:
    """Raise `UserError` unless there is a device for each process, or none at all."""
    devices = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if 0 < devices < num_processes and not use_cpu:
        raise UserError(
            f"num_processes={num_processes}, but there are {devices} devices; ask for as many, or add "
            "--use_cpu true"
        )


def _environment(num_processes: int) -> dict[str, str]:
    """Return the variables that `torch.distributed` reads; CPU threads are divided unless they are set."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threads = max(1, (os.cpu_count() or 1) // num_processes)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        LAUNCHER_VARIABLE: str(os.getpid()),
    }


class _StopSignals:
    """Forwards SIGTERM and Ctrl-C to the processes, as a context manager."""

    def __init__(self, processes: Sequence[subprocess.Popen]):
        self.processes = processes
        self.number: int | None = None  # number of the first signal that arrived
        self.since = 0.0

    def __enter__(self) -> _StopSignals:
        self._before = {number: signal.signal(number, self._forward) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _forward(self, number: int, _frame: object) -> None:
        if self.number is None:
            self.number, self.since = number, time.monotonic()
        for process in self.processes:
            process.send_signal(number)


def _wait(processes: Sequence[subprocess.Popen], stop: _StopSignals) -> int | None:
    """Wait until all processes have ended or one has failed; return the rank of the first that failed.

    After a stop signal, wait for all, and kill those that do not end in `SECONDS_TO_SAVE`.
    """
    while True:
        statuses = [process.poll() for process in processes]
        failed = first_failed(statuses)
        if None not in statuses or (failed is not None and stop.number is None):
            return failed
        if stop.number is not None and time.monotonic() - stop.since > SECONDS_TO_SAVE:
            processes[statuses.index(None)].kill()
        time.sleep(POLL_SECONDS)


def first_failed(statuses: Sequence[int | None]) -> int | None:
    """Return the rank of the process that most likely failed first; None if none has failed.

    A process that loses its peer fails soon after it, often before the next poll. So a process that was
    killed by a signal counts as earlier than processes that exited with an error.
    """
    ended = [rank for rank, status in enumerate(statuses) if status]
    return min(ended, key=lambda rank: (statuses[rank] or 0) > 0, default=None)
