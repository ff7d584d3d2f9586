"""Run a function in a fork of this process with limits on memory and time."""

import os
import pickle
import resource
import signal
from collections.abc import Callable
from typing import Any

import torch

GIB = 1 << 30


def run_limited(function: Callable[[], Any], *, memory: int = 2 * GIB, seconds: int = 300) -> Any:
    """What a function returns that may take so many bytes more than this process has, and so many seconds.

    The copy fails, and with it the test, if the function raises, is out of memory or time, or dies of a
    signal.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)  # more would wait for threads that a copy has not
            limit = _address_space() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            signal.alarm(seconds)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(function(), pipe)
            status = 0
        except BaseException as error:  # told by the parent
            print(f"{type(error).__name__}: {error}", flush=True)
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the copy ended with {os.waitstatus_to_exitcode(status)}"
    return pickle.loads(result)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
