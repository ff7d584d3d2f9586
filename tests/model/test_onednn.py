"""PyTorch's products are lent to oneDNN only where they stay what they are, and only for a while."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from vaswani.model import onednn
from vaswani.model.onednn import batched_products_by_onednn, batches_by_onednn, is_available


def precision() -> str:
    """What PyTorch's products may be rounded to on oneDNN."""
    return torch.backends.mkldnn.matmul.fp32_precision


@pytest.fixture
def lends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is not Intel's, and is exact."""
    monkeypatch.setattr(onednn, "batches_by_onednn", lambda: True)


def test_products_keep_the_precision_of_float32(maker: str) -> None:
    left, right = torch.randn(8, 64, 64), torch.randn(8, 64, 512)
    with batched_products_by_onednn():
        lent = precision() == "bf16"
        products = [torch.bmm(left, right), torch.mm(left[0], right[0]), right[0].T @ left[0]]
    assert lent == batches_by_onednn()
    assert maker == "another" or not lent
    left, right = left.double(), right.double()
    exact = [torch.bmm(left, right), torch.mm(left[0], right[0]), right[0].T @ left[0]]
    for actual, expected in zip(products, exact, strict=True):
        assert (actual - expected).abs().max() < 1e-4  # bfloat16 is a hundred times further off


def test_a_processor_that_rounds_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bmm = torch.bmm
    rounded = lambda a, b: bmm(a.bfloat16().float(), b.bfloat16().float())  # noqa: E731
    monkeypatch.setattr(torch, "bmm", rounded)
    assert not onednn._keeps_float32.__wrapped__()


def test_the_setting_is_given_back(lends: None) -> None:
    before = precision()

    def fail() -> None:
        with batched_products_by_onednn(), batched_products_by_onednn():
            assert precision() == "bf16"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert precision() == before


def test_the_last_of_several_threads_gives_it_back(lends: None) -> None:
    before, together = precision(), Barrier(4)

    def hold(_: int) -> str:
        with batched_products_by_onednn():
            together.wait(60)  # all hold it
            return precision()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(hold, range(4))) <= {"bf16"}
    assert precision() == before


VARIED_SHAPES = """
import resource, sys, torch
from vaswani.model import onednn
from vaswani.model.linear import Linear

onednn.MIN_MULTIPLICATIONS = 0
layer, memory = Linear(64, 64), []
for extra in torch.randperm(800).tolist():
    layer(torch.randn(onednn.MIN_ROWS + extra, 64, requires_grad=True)).square().sum().backward()
    memory.append(int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize())
print(int(onednn.is_available()), max(memory[200:]) - memory[199])
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process")
def test_ever_new_shapes_take_no_more_memory() -> None:
    """Of a new process, whose caches are empty."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    command = [sys.executable, "-c", VARIED_SHAPES]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    has_onednn, growth = map(int, printed.split())
    assert bool(has_onednn) == is_available()
    assert growth < 60e6  # with as many shapes in the caches as there are by default it is over 300 MB
