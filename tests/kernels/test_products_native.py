"""The products by C++ equal PyTorch's, and so do the outputs and gradients of layers and losses."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vaswani.kernels import products_native
from vaswani.kernels.onednn import packed_weights
from vaswani.kernels.products_native import MIN_ROWS, native_product
from vaswani.kernels.projected_loss import linear_cross_entropy
from vaswani.model.operators import Linear

pytestmark = pytest.mark.skipif(
    products_native.library() is None,
    reason="NO C++ KERNEL: there is no compiler, or the processor is Intel's or none of ours",
)


@pytest.fixture(autouse=True)
def without_minimum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products_native, "MIN_MULTIPLICATIONS", 0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the products that the library computed: M, N, K."""
    shapes: list[tuple[int, ...]] = []

    def record(left: torch.Tensor, right: torch.Tensor, *arguments, **options) -> torch.Tensor:
        shapes.append((left.shape[0], right.shape[1], left.shape[1]))
        return native_product(left, right, *arguments, **options)

    monkeypatch.setattr(products_native, "native_product", record)
    return shapes


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["2D", "3D", "strided", "expanded gradient"])
def test_outputs_and_gradients_equal_those_of_pytorch(bias: bool, layout: str, products: list) -> None:
    ours, theirs = Linear(24, 40, bias), nn.Linear(24, 40, bias)
    theirs.load_state_dict(ours.state_dict())
    states = torch.randn(MIN_ROWS, 24) if layout == "2D" else torch.randn(4, MIN_ROWS // 4, 24)
    if layout == "strided":
        states = torch.randn(MIN_ROWS, 24, 2)[..., 0]
    states.requires_grad_()
    results = []
    for layer in (ours, theirs):
        output = layer(states)
        weights = torch.ones(()).expand_as(output)
        if layout != "expanded gradient":
            weights = torch.arange(output.numel()).sin().view_as(output)
        results.append((output, *torch.autograd.grad(output, [states, *layer.parameters()], weights)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert products == [(MIN_ROWS, 40, 24), (MIN_ROWS, 24, 40), (40, 24, MIN_ROWS)]


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_frozen_tensors_get_no_gradient(frozen: str, products: list) -> None:
    layer, states = Linear(8, 8), torch.randn(MIN_ROWS, 8, requires_grad=frozen != "states")
    layer.weight.requires_grad_(frozen != "weight")
    layer(states).sum().backward()
    assert (states.grad is None) == (frozen == "states")
    assert (layer.weight.grad is None) == (frozen == "weight")
    assert len(products) == 2


@pytest.mark.parametrize("case", ["few rows", "small", "float64", "autocast", "no library", "packed weights"])
def test_other_cases_fall_back(case: str, products: list, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "small":
        monkeypatch.setattr(products_native, "MIN_MULTIPLICATIONS", MIN_ROWS * 512 * 512 + 1)
    if case == "no library":
        monkeypatch.setattr(products_native, "library", lambda: None)
    dtype = torch.float64 if case == "float64" else torch.float32
    layer = Linear(512, 512).to(dtype)
    states = torch.randn(MIN_ROWS - 1 if case == "few rows" else MIN_ROWS, 512, dtype=dtype)
    packed = packed_weights([layer], len(states)) if case == "packed weights" else nullcontext()
    autocast = torch.autocast("cpu", torch.bfloat16) if case == "autocast" else nullcontext()
    with torch.no_grad(), packed, autocast:
        expected = nn.functional.linear(states, layer.weight, layer.bias)
        torch.testing.assert_close(layer(states), expected, rtol=1e-4, atol=1e-4)
    assert not products


def test_the_projected_loss_equals_that_of_pytorch(products: list) -> None:
    states, weight = torch.randn(MIN_ROWS, 24, requires_grad=True), torch.randn(50, 24, requires_grad=True)
    labels = torch.arange(MIN_ROWS) % 50
    found = torch.autograd.grad(linear_cross_entropy(states, weight, labels, 0.1), (states, weight))
    loss = nn.functional.cross_entropy(states @ weight.t(), labels, reduction="sum", label_smoothing=0.1)
    for actual, expected in zip(found, torch.autograd.grad(loss, (states, weight)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert products == [(MIN_ROWS, 50, 24), (MIN_ROWS, 24, 50)]  # few rows are summed over by others
