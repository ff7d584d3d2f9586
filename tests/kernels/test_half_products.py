"""Linear layers under autocast to bfloat16: what PyTorch computes, with few different shapes."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vaswani.kernels import half_products, products_native
from vaswani.kernels.registry import hook_in_kernels
from vaswani.model.operators import Linear


class Products(TorchDispatchMode):
    """Notes the shapes that are multiplied."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple] = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.shapes.add(tuple(tuple(each.shape) for each in arguments[-2:]))
        return function(*arguments, **(options or {}))


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    hook_in_kernels()
    with torch.autocast("cpu", torch.bfloat16):
        yield


def results(layer: nn.Module, states: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of the states and of all weights."""
    output = layer(states)
    upstream = torch.linspace(-1, 1, output.numel()).view(output.shape)
    return [output, *torch.autograd.grad((output.float() * upstream).sum(), [states, *layer.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 13), (64,), (4, 64), (2, 3, 50)])
def test_outputs_and_gradients_are_those_of_autocast(shape: tuple, bias: bool, dtype: torch.dtype) -> None:
    layer = Linear(24, 40, bias=bias)
    states = torch.randn(*shape, 24).to(dtype).requires_grad_()
    plain = nn.Linear(24, 40, bias=bias)
    plain.load_state_dict(layer.state_dict())
    ours, expected = results(layer, states), results(plain, states)
    assert [each.dtype for each in ours] == [each.dtype for each in expected]
    for actual, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(actual, reference, rtol=0.02, atol=0.02)


def test_batches_of_many_lengths_use_few_product_shapes() -> None:
    layer = Linear(16, 32)
    with Products() as products:
        for length in range(130, 190):
            results(layer, torch.randn(1, length, 16, requires_grad=True))
    assert len(products.shapes) == 3  # of the output, the states and the weight, all with 192 rows


def test_loss_products_use_few_shapes_and_accumulate_in_float32() -> None:
    weight, total = torch.randn(100, 16).bfloat16(), torch.zeros(16, 100)
    expected = torch.zeros(16, 100)
    with Products() as products:
        for length in range(130, 190):
            rows, gradient = torch.randn(length, 16).bfloat16(), torch.randn(length, 100).bfloat16()
            torch.testing.assert_close(products_native.product(rows, weight), rows @ weight.t())
            products_native.add_product_over_rows(total, rows, gradient)
            expected += rows.float().t() @ gradient.float()
    assert len({shape for shape in products.shapes if 192 in shape[0]}) == 2
    torch.testing.assert_close(total, expected, rtol=0.01, atol=0.5)


@pytest.mark.parametrize("case", ["no autocast", "float16", "few rows", "no parameter"])
def test_other_cases_fall_back(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(half_products._HalfLinear, "apply", lambda *given: pytest.fail("it computes"))
    layer = Linear(16, 8)
    states = torch.randn(3 if case == "few rows" else 80, 16)
    if case == "no parameter":
        weight = layer.weight.detach()
        del layer.weight
        layer.weight = weight
    dtype = torch.float16 if case == "float16" else torch.bfloat16
    with torch.autocast("cpu", dtype, enabled=case != "no autocast"):
        assert layer(states).dtype == (torch.float32 if case == "no autocast" else dtype)
