"""A launcher and its training processes, as copies of a server in which the imports are done.

All else is as in `vaswani train --num_processes 2`: the processes are children of the launcher, which starts,
signals and waits for them by its own code. Only Python's start and the imports, of all three, are left out.
"""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import datasets
import torch

from rank_processes import CONTEXT
from tiny_runs import leave_out_curves

POLL_SECONDS = 0.005


class LaunchedCopies:
    """`vaswani` with these arguments, which ask for several processes.

    Attributes:
        pid: of the launcher.
    """

    def __init__(self, arguments: list[str], num_processes: int, output: Path, cache: Path):
        self._output = output
        output.mkdir()
        given = (arguments, num_processes, str(output), str(cache))
        self._process = CONTEXT.Process(target=_launch, args=given)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def printed(self, stream: str) -> str:
        """What all processes have written to `stdout` or `stderr` until now."""
        path = self._output / stream
        return path.read_text() if path.exists() else ""

    def wait_for_update(self, update: int) -> None:
        while self.printed("stdout").count("'grad_norm'") < update:
            assert self.returncode is None, f"the process ended by itself: {self.printed('stderr')}"
            time.sleep(POLL_SECONDS)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> str:
        """Wait until the launcher has ended; return what was written to standard error."""
        self._process.join(timeout)
        assert self.returncode is not None, self.printed("stderr")
        return self.printed("stderr")


def _launch(arguments: list[str], num_processes: int, output: str, cache: str) -> None:
    from vaswani.cli import main
    from vaswani.training.launch import launcher

    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{output}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        getattr(sys, name).reconfigure(line_buffering=True)
    gc.freeze()
    torch.set_num_threads(1)
    datasets.config.HF_DATASETS_CACHE = Path(cache)
    leave_out_curves()
    _Copy.waiting = [_waiting_copy() for _ in range(num_processes)]
    launcher.subprocess.Popen = _Copy
    sys.argv = ["vaswani", *arguments, "--num_processes", str(num_processes)]
    main()


def _waiting_copy() -> tuple[int, int]:
    """Fork a process that waits for its command.

    Returns:
        Its process id, and the pipe to which the command is written.
    """
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writes)
        _run_what_comes(reads)
    os.close(reads)
    return pid, writes


def _run_what_comes(pipe: int) -> NoReturn:
    from vaswani.cli import main

    with open(pipe) as commands:
        command = commands.readline()  # nothing, if the launcher ends before
    status = 1
    try:
        if command:
            os.setsid()
            given = json.loads(command)
            os.environ.clear()
            os.environ.update(given["environment"])
            sys.argv = ["vaswani", *given["arguments"]]
            main()
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.stdout.flush()
        os._exit(status)


class _Copy:
    """In place of `subprocess.Popen`: one of the processes that wait runs the command."""

    waiting: list[tuple[int, int]]

    def __init__(self, command: list[str], env: dict[str, str], start_new_session: bool):
        assert command[:2] == [sys.executable, "-c"]
        assert start_new_session
        self.pid, pipe = self.waiting.pop(0)
        self.returncode: int | None = None
        with open(pipe, "w") as commands:
            commands.write(json.dumps({"arguments": command[3:], "environment": env}) + "\n")

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int | None:
        return self._wait(0)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
