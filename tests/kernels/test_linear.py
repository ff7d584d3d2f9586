"""The linear layer computes what PyTorch's does, by whatever library."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from vaswani.kernels import onednn
from vaswani.kernels.onednn import MIN_ROWS, is_available
from vaswani.kernels.projected_loss import linear_cross_entropy
from vaswani.model.operators import Linear


@pytest.fixture(autouse=True)
def without_minimum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "MIN_MULTIPLICATIONS", 0)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the products that went to oneDNN."""
    shapes: list[tuple[int, ...]] = []
    product = onednn.onednn_product

    def record(states: torch.Tensor, *arguments) -> torch.Tensor:
        shapes.append(tuple(states.shape))
        return product(states, *arguments)

    monkeypatch.setattr(onednn, "onednn_product", record)
    return shapes


@pytest.mark.skipif(not is_available(), reason="this PyTorch has no oneDNN, or no MKL")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["2D", "3D", "strided", "expanded gradient"])
@pytest.mark.parametrize("width", [16, 40])
def test_outputs_and_gradients_equal_those_of_pytorch(
    bias: bool, layout: str, width: int, maker: str, products: list
) -> None:
    ours = Linear(24, width, bias)
    theirs = nn.Linear(24, width, bias)
    theirs.load_state_dict(ours.state_dict())
    states = torch.randn(MIN_ROWS, 24) if layout == "2D" else torch.randn(4, MIN_ROWS // 4, 24)
    if layout == "strided":
        states = torch.randn(MIN_ROWS, 24, 2)[..., 0]
    states.requires_grad_()
    results = []
    for layer in (ours, theirs):
        output = layer(states)
        if layout == "expanded gradient":
            grads = torch.autograd.grad(output.sum(), [states, *layer.parameters()])
        else:
            weights = torch.arange(output.numel()).sin().view_as(output)
            grads = torch.autograd.grad(output, [states, *layer.parameters()], weights)
        results.append((output, *grads))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    expected = 2 if maker == "Intel" else 3  # forward, for the states' gradient, and for the weights'
    assert len(products) == expected


@pytest.mark.skipif(not is_available(), reason="this PyTorch has no oneDNN, or no MKL")
@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_frozen_tensors_get_no_gradient(frozen: str, maker: str, products: list) -> None:
    layer, states = Linear(8, 8), torch.randn(MIN_ROWS, 8, requires_grad=frozen != "states")
    layer.weight.requires_grad_(frozen != "weight")
    layer(states).sum().backward()
    assert (states.grad is None) == (frozen == "states")
    assert (layer.weight.grad is None) == (frozen == "weight")
    if frozen == "states":
        assert len(products) == (1 if maker == "Intel" else 2)
    else:
        assert len(products) == 2


@pytest.mark.parametrize(
    "case", ["few rows", "small product", "float64", "bfloat16", "autocast", "switched off"]
)
def test_other_cases_fall_back_to_pytorch(case: str, products: list, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "small product":
        monkeypatch.setattr(onednn, "MIN_MULTIPLICATIONS", MIN_ROWS * 8 * 8 + 1)
    dtype = {"float64": torch.float64, "bfloat16": torch.bfloat16}.get(case, torch.float32)
    layer = Linear(8, 8).to(dtype)
    states = torch.randn(MIN_ROWS - 1 if case == "few rows" else MIN_ROWS, 8, dtype=dtype)
    switched_off = torch.backends.mkldnn.flags(enabled=False) if case == "switched off" else nullcontext()
    autocast = torch.autocast("cpu", torch.bfloat16) if case == "autocast" else nullcontext()
    with switched_off, autocast:
        expected = nn.functional.linear(states, layer.weight, layer.bias)
        torch.testing.assert_close(layer(states), expected, rtol=0, atol=0)
    assert not products


def test_a_traced_layer_holds_no_private_operator() -> None:
    layer, states = Linear(8, 8), torch.randn(MIN_ROWS, 8)
    with torch.no_grad():
        expected = layer(states)
        traced = torch.jit.trace(layer, states)
        exported = torch.export.export(layer, (states,))
    assert "mkldnn" not in str(traced.inlined_graph)
    assert "mkldnn" not in str(exported.graph)
    for other in (traced, exported.module()):
        torch.testing.assert_close(other(states), expected)


def test_the_projected_loss_equals_that_of_pytorch(maker: str, products: list) -> None:
    states, weight = torch.randn(MIN_ROWS, 24, requires_grad=True), torch.randn(50, 24, requires_grad=True)
    labels = torch.arange(MIN_ROWS) % 50
    found = torch.autograd.grad(linear_cross_entropy(states, weight, labels), (states, weight))
    loss = nn.functional.cross_entropy(states @ weight.t(), labels, reduction="sum")
    for actual, expected in zip(found, torch.autograd.grad(loss, (states, weight)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    if is_available():
        assert len(products) == (2 if maker == "Intel" else 3)
