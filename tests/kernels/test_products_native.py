"""The products by C++ equal those of PyTorch; `test_linear.py` tests the layers that use them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani.kernels import products_native
from vaswani.kernels.products_native import native_product

pytestmark = pytest.mark.skipif(
    products_native.library() is None,
    reason="NO C++ KERNEL: there is no compiler, or the processor is Intel's or none of ours",
)


def matrix(rows: int, columns: int, layout: str) -> torch.Tensor:
    if layout == "transposed":
        return torch.randn(columns, rows).t()
    if layout == "apart":
        return torch.randn(rows, 2 * columns)[:, ::2]
    return torch.randn(rows, columns)


LAYOUTS = st.sampled_from(["rows", "transposed", "apart"])


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.one_of(st.integers(1, 140), st.just(1000)),
    inner=st.sampled_from([1, 2, 17, 64, 511, 512, 513, 1100]),
    threads=st.integers(1, 3),
    left_layout=LAYOUTS,
    right_layout=LAYOUTS,
    addend=st.sampled_from(["nothing", "bias", "what is there"]),
)
def test_products_of_any_shape_and_layout_are_correct(
    rows: int, columns: int, inner: int, threads: int, left_layout: str, right_layout: str, addend: str
) -> None:
    left, right = matrix(rows, inner, left_layout), matrix(inner, columns, right_layout)
    expected = left.double() @ right.double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if addend == "what is there":
            wide = torch.randn(rows, columns + 3)
            place, beside = wide[:, :columns], wide[:, columns:].clone()
            expected += place
            assert native_product(left, right, added_to=place) is place
            found = place
            assert torch.equal(wide[:, columns:], beside)
        else:
            bias = torch.randn(columns) if addend == "bias" else None
            expected += 0 if bias is None else bias
            found = native_product(left, right, bias)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    left, right, before = torch.randn(70, 600), torch.randn(600, 130), torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(native_product(left, right))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
