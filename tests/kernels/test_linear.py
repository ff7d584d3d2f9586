"""Linear layers and the projected loss equal those of PyTorch, with each library of matrix products."""

from types import ModuleType
from typing import NamedTuple

import pytest
import torch
from torch import nn

from vaswani.kernels import onednn, products_native
from vaswani.kernels.onednn import packed_weights
from vaswani.kernels.projected_loss import linear_cross_entropy
from vaswani.model.operators import Linear

MIN_ROWS = max(onednn.MIN_ROWS, products_native.MIN_ROWS)


class Library(NamedTuple):
    module: ModuleType
    function: str  # of the module, which multiplies
    has_weight_gradients: bool = True  # on Intel processors, MKL computes those faster than oneDNN


LIBRARIES = {
    "oneDNN on Intel": Library(onednn, "onednn_product", has_weight_gradients=False),
    "oneDNN": Library(onednn, "onednn_product"),
    "C++": Library(products_native, "native_product"),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Computes products of any size."""
    chosen = LIBRARIES[request.param]
    if chosen.module is onednn and not onednn.is_available():
        pytest.skip("this PyTorch has no oneDNN, or no MKL")
    if chosen.module is products_native and products_native.library() is None:
        pytest.skip("NO C++ KERNEL: there is no compiler, or the processor is Intel's or none of ours")
    monkeypatch.setattr(onednn, "IS_INTEL_CPU", request.param == "oneDNN on Intel")
    monkeypatch.setattr(chosen.module, "MIN_MULTIPLICATIONS", 0)
    return chosen


@pytest.fixture
def products(library: Library, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of each product by the library: how many numbers it has, and how many terms each is the sum of."""
    sizes: list[tuple[int, int]] = []
    multiply = getattr(library.module, library.function)

    def record(left: torch.Tensor, *arguments, **options) -> torch.Tensor:
        product = multiply(left, *arguments, **options)
        sizes.append((product.numel(), left.shape[-1]))
        return product

    monkeypatch.setattr(library.module, library.function, record)
    return sizes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["2D", "3D", "strided", "expanded gradient"])
@pytest.mark.parametrize("width", [16, 40])
def test_outputs_and_gradients_equal_those_of_pytorch(
    bias: bool, layout: str, width: int, library: Library, products: list
) -> None:
    ours, theirs = Linear(24, width, bias), nn.Linear(24, width, bias)
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
    sizes = [(MIN_ROWS * width, 24), (MIN_ROWS * 24, width), (width * 24, MIN_ROWS)]
    assert products == sizes[: 3 if library.has_weight_gradients else 2]


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_frozen_tensors_get_no_gradient(frozen: str, library: Library, products: list) -> None:
    layer, states = Linear(8, 8), torch.randn(MIN_ROWS, 8, requires_grad=frozen != "states")
    layer.weight.requires_grad_(frozen != "weight")
    layer(states).sum().backward()
    assert (states.grad is None) == (frozen == "states")
    assert (layer.weight.grad is None) == (frozen == "weight")
    assert len(products) == (1 if frozen == "states" and not library.has_weight_gradients else 2)


@pytest.mark.parametrize(
    "case", ["few rows", "small product", "float64", "bfloat16", "autocast", "switched off"]
)
def test_other_cases_fall_back_to_pytorch(
    case: str, library: Library, products: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "small product":
        monkeypatch.setattr(library.module, "MIN_MULTIPLICATIONS", MIN_ROWS * 8 * 8 + 1)
    if case == "switched off":
        monkeypatch.setattr(products_native, "library", lambda: None)
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(case, torch.float32)
    layer = Linear(8, 8).to(dtype)
    num_rows = library.module.MIN_ROWS - (case == "few rows")
    states = torch.randn(num_rows, 8, dtype=dtype)
    with (
        torch.backends.mkldnn.flags(enabled=case != "switched off"),
        torch.autocast("cpu", torch.bfloat16, enabled=case == "autocast"),
    ):
        expected = nn.functional.linear(states, layer.weight, layer.bias)
        torch.testing.assert_close(layer(states), expected, rtol=0, atol=0)
    assert not products


@pytest.mark.parametrize("library", ["C++"], indirect=True)
def test_packed_weights_are_left_to_onednn(products: list) -> None:
    layer, states = Linear(512, 512), torch.randn(MIN_ROWS, 512)
    with torch.no_grad(), packed_weights([layer], len(states)):
        expected = nn.functional.linear(states, layer.weight, layer.bias)
        torch.testing.assert_close(layer(states), expected, rtol=1e-4, atol=1e-4)
    assert not products


@pytest.mark.parametrize("library", ["oneDNN"], indirect=True)
def test_a_traced_layer_holds_no_private_operator(library: Library) -> None:
    layer, states = Linear(8, 8), torch.randn(MIN_ROWS, 8)
    with torch.no_grad():
        expected = layer(states)
        traced = torch.jit.trace(layer, states)
        exported = torch.export.export(layer, (states,))
    assert "mkldnn" not in str(traced.inlined_graph)
    assert "mkldnn" not in str(exported.graph)
    for other in (traced, exported.module()):
        torch.testing.assert_close(other(states), expected)


@pytest.mark.parametrize(("width", "smoothing"), [(24, 0.1), (64, 0.0)])
def test_the_projected_loss_equals_that_of_pytorch(
    width: int, smoothing: float, library: Library, products: list
) -> None:
    states = torch.randn(MIN_ROWS, width, requires_grad=True)
    weight = torch.randn(50, width, requires_grad=True)
    labels = torch.arange(MIN_ROWS) % 50
    ours = linear_cross_entropy(states, weight, labels, smoothing)
    theirs = nn.functional.cross_entropy(
        states @ weight.t(), labels, reduction="sum", label_smoothing=smoothing
    )
    found, expected = (torch.autograd.grad(loss, (states, weight)) for loss in (ours, theirs))
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-4)
    has_few_rows = library.module is products_native and width < products_native.MIN_ROWS
    sizes = [(MIN_ROWS * 50, width), (MIN_ROWS * width, 50), (50 * width, MIN_ROWS)]
    assert products == sizes[: 3 if library.has_weight_gradients and not has_few_rows else 2]
