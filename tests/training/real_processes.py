"""Commands in processes that import everything themselves, and signals to them."""

import os
import signal
import subprocess
import sys
from pathlib import Path


def start(arguments: list[str], cache: Path) -> subprocess.Popen:
    """Start Python with one thread; each line that it prints comes at once.

    Args:
        arguments: of Python.
        cache: folder of the corpora that it reads.
    """
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    environment |= {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_after(process: subprocess.Popen, updates: int, how: signal.Signals) -> None:
    """Send a signal as soon as so many updates were made."""
    for line in process.stdout:
        updates -= "'grad_norm'" in line
        if updates <= 0:
            process.send_signal(how)
            return
    raise AssertionError(f"the process ended by itself: {process.stderr.read()}")
