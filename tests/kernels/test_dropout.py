"""Dropout drops the given share, keeps the mean, and passes gradients only through kept values."""

import pytest
import torch
from either_way import either_way

from vaswani.kernels import dropout as kernel
from vaswani.kernels.dropout import dropout

by = either_way(kernel)


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_and_mean(by: str, p: float) -> None:
    dropped = dropout(torch.ones(1001, 999), p)
    standard_error = (p * (1 - p) / dropped.numel()) ** 0.5
    assert abs((dropped == 0).double().mean() - p) < 5 * standard_error + 2**-17
    assert abs(dropped.double().mean() - 1) < 5 * standard_error / (1 - p)
    assert dropped.unique().numel() == 2


def test_elements_are_dropped_independently(by: str) -> None:
    """Four neighbours share a random number; none of its parts may tell of another."""
    kept = (dropout(torch.ones(400_000, 4), 0.5) != 0).double()
    correlation = torch.corrcoef(torch.cat([kept[:-1], kept[1:]], dim=1).T) - torch.eye(8)
    assert correlation.abs().max() < 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5, 7), (0, 4)])
def test_gradients_pass_only_through_kept_values(by: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    states = torch.ones(shape, dtype=dtype, requires_grad=True)
    output = dropout(states, 0.4)
    output.backward(torch.ones_like(output))
    assert output.dtype == dtype
    assert torch.equal(states.grad, output)


def test_half_precision_rounds_once(by: str) -> None:
    """A scale rounded to bfloat16 would shrink all that is kept."""
    states = torch.randn(1000, dtype=torch.bfloat16, requires_grad=True)
    output = dropout(states, 0.1)
    kept = output != 0
    scale = 65536 / (65536 - round(0.1 * 65536))
    assert torch.equal(output[kept], (states.float() * scale).bfloat16()[kept])
    (gradient,) = torch.autograd.grad(output, states, states)
    assert torch.equal(gradient, output)


def test_columns_of_a_transposed_tensor_stay_in_place(by: str) -> None:
    states = torch.arange(1.0, 13.0).view(3, 4).T
    output = dropout(states, 0.5)
    kept = output != 0
    torch.testing.assert_close(output[kept], 2 * states[kept])


def test_probabilities_0_and_1_are_exact(by: str) -> None:
    states = torch.randn(50)
    assert dropout(states, 0.0) is states
    assert not dropout(states, 1.0).any()


def test_the_seed_decides(by: str) -> None:
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(dropout(torch.ones(100), 0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (1023,), (8, 1025), (0, 4), (300, 257)])
@pytest.mark.parametrize("p", [1e-5, 0.1, 0.5, 0.99999])
def test_native_and_plain_dropout_are_bit_identical(
    shape: tuple[int, ...], dtype: torch.dtype, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run resumed without a compiler continues identically."""
    states = torch.randn(shape, dtype=dtype)
    if states.numel() > 10:
        states.flatten()[:4] = torch.tensor([float("inf"), float("nan"), -0.0, 1e-40])

    def results() -> list[torch.Tensor]:
        torch.manual_seed(3)
        given = states.clone().requires_grad_()
        output = dropout(given, p)
        return [output.detach(), *torch.autograd.grad(output, given, 3 * torch.ones_like(output))]

    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(results())
    torch.set_num_threads(before)
    monkeypatch.setattr(kernel, "library", lambda: None)
    for one, other, plain in zip(*found, results(), strict=True):
        for each in (one, other):
            torch.testing.assert_close(each, plain, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(each.signbit(), plain.signbit()) or plain.isnan().any()
