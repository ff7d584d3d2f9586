"""A launcher and its training processes, as copies of a server in which the imports are done.

All else is as in `vaswani train --num_processes 2`: the processes are children of the launcher, which starts,
signals and waits for them by its own code. Only Python's start and the imports, of all three, are left out.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from rank_processes import CONTEXT, begin_copy, updates_in

POLL_SECONDS = 0.005


class LaunchedCopies:
    """`vaswani` with these arguments, which ask for several processes.

    Args:
        printed: what all processes print is in the files with this name and `.stdout` or `.stderr`.

    Attributes:
        pid: of the launcher.
    """

    def __init__(self, arguments: list[str], num_processes: int, printed: Path):
        self._printed = [Path(f"{printed}.{stream}") for stream in ("stdout", "stderr")]
        for path in self._printed:
            path.touch()
        self._process = CONTEXT.Process(target=_launch, args=(arguments, num_processes, *self._printed))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def errors(self) -> str:
        """What all processes have written to standard error until now."""
        return self._printed[1].read_text()

    def wait_for_update(self, update: int) -> None:
        while updates_in(self._printed[0]) < update:
            assert self.returncode is None, f"the process ended by itself: {self.errors()}"
            time.sleep(POLL_SECONDS)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float) -> str:
        """Wait until the launcher has ended; return what was written to standard error."""
        self._process.join(timeout)
        assert self.returncode is not None, self.errors()
        return self.errors()


def _launch(arguments: list[str], num_processes: int, stdout: Path, stderr: Path) -> None:
    from vaswani.cli import main
    from vaswani.training.launch import launcher

    begin_copy(stdout, stderr)
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
        _run_received_command(reads)
    os.close(reads)
    return pid, writes


def _run_received_command(pipe: int) -> NoReturn:
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
