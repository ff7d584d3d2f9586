"""oneDNN's caches stay small."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vaswani.kernels import onednn

VARIED_SHAPES = """
import os, resource, sys, threading, torch
from vaswani.kernels import onednn
from vaswani.kernels.registry import hook_in_kernels
from vaswani.model.operators import Linear

hook_in_kernels()
onednn.MIN_MULTIPLICATIONS = 0
before, layer, memory = dict(os.environ), Linear(64, 64), []

def compute():
    for extra in torch.randperm(800).tolist():
        layer(torch.randn(onednn.MIN_ROWS + extra, 64, requires_grad=True)).square().sum().backward()
        memory.append(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())

if sys.argv[1] == "thread":
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
else:
    compute()
assert dict(os.environ) == before
print(int(onednn.is_available()), max(memory[200:]) - memory[199])
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process")
@pytest.mark.parametrize("place", ["main", "thread"])
def test_new_shapes_do_not_increase_memory(place: str) -> None:
    """Of a new process, whose caches are empty."""
    environment = {name: value for name, value in os.environ.items() if name not in onednn.CACHE_LIMITS}
    command = [sys.executable, "-c", VARIED_SHAPES, place]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    has_onednn, growth = map(int, printed.split())
    assert bool(has_onednn) == onednn.is_available()
    assert growth < 60e6  # with as many shapes in the caches as there are by default it is over 300 MB


def test_a_cache_limit_set_by_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in onednn.CACHE_LIMITS:
        monkeypatch.setenv(name, "7")
    onednn._bound_caches()
    assert [os.environ[name] for name in onednn.CACHE_LIMITS] == ["7", "7"]
