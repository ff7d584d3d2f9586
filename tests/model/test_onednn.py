"""PyTorch's products are lent to oneDNN only where they stay what they are, and only for a while."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from vaswani.model import onednn
from vaswani.model.onednn import batched_products_by_onednn, batches_by_onednn


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
