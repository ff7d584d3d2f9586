"""Cross-entropy by C++ and by PyTorch's operators: the losses and gradients of float64."""

import math

import pytest
import torch
from either_way import either_way

from vaswani.kernels import cross_entropy_native
from vaswani.kernels.cross_entropy_native import cross_entropy_and_gradient, log_probs_of

TOLERANCES = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (1e-2, 1e-4), torch.float64: (1e-10, 1e-12)}


by = either_way(cross_entropy_native)


def exactly(
    logits: torch.Tensor, targets: torch.Tensor, share: float, share_of_each: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    exact = logits.double().requires_grad_()
    of_targets = share * exact.gather(1, targets[:, None])[:, 0]
    loss = (exact.logsumexp(-1) - of_targets - share_of_each * exact.sum(-1)).sum()
    return loss.detach(), torch.autograd.grad(loss, exact)[0]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [1, 3, 16, 17, 67, 1003])
@pytest.mark.parametrize(("share", "share_of_each"), [(1.0, 0.0), (0.9, 0.0), (0.0, 0.0), (0.7, 0.3)])
def test_loss_and_gradient_equal_those_of_float64(
    by: str, size: int, share: float, share_of_each: float, dtype: torch.dtype
) -> None:
    shares = {"share": share, "share_of_each": share_of_each / size}
    logits, targets = (20 * torch.randn(37, size)).to(dtype), torch.randint(size, (37,))
    expected_loss, expected_gradient = exactly(logits, targets, **shares)
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        loss, gradient = cross_entropy_and_gradient(logits.clone(), targets, **shares, wants_gradient=True)
        assert gradient.dtype == dtype
        assert loss.dtype == torch.promote_types(dtype, torch.float32)
        torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-5, atol=1e-4)
        rtol, atol = TOLERANCES[dtype]
        torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rtol, atol=atol)
    torch.set_num_threads(before)
    assert torch.equal(
        cross_entropy_and_gradient(logits.clone(), targets, **shares, wants_gradient=False)[0], loss
    )


def test_no_rows_give_zero_loss(by: str) -> None:
    loss, gradient = cross_entropy_and_gradient(
        torch.empty(0, 9), torch.empty(0, dtype=torch.long), share=1.0, wants_gradient=True
    )
    assert loss == 0
    assert gradient.shape == (0, 9)


def test_non_contiguous_rows_are_supported(by: str) -> None:
    logits, targets = torch.randn(20, 11).t(), torch.randint(20, (11,))
    expected, of_gradient = exactly(logits, targets, 0.9)
    loss, gradient = cross_entropy_and_gradient(logits, targets, share=0.9, wants_gradient=True)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), of_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_and_infinitely_negative_logits_give_finite_results(by: str, dtype: torch.dtype) -> None:
    logits = torch.tensor([[3e4, 3e4, -3e4, -math.inf, 0.0] * 5], dtype=dtype)
    loss, gradient = cross_entropy_and_gradient(logits, torch.tensor([1]), share=1.0, wants_gradient=True)
    assert loss == pytest.approx(math.log(10), rel=1e-3)
    assert gradient[0, 0].item() == pytest.approx(0.1, rel=1e-2)
    assert gradient[0, 1].item() == pytest.approx(-0.9, rel=1e-2)
    assert not gradient[0, 2:5].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 18])
def test_non_finite_numbers_are_propagated(by: str, number: float, place: int, dtype: torch.dtype) -> None:
    logits = torch.randn(3, 19).to(dtype)
    logits[1, place] = number
    loss, gradient = cross_entropy_and_gradient(
        logits, torch.tensor([2, 3, 4]), share=1.0, wants_gradient=True
    )
    assert not loss.isfinite()
    assert gradient[1].isnan().any()
    assert gradient[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("shape", [(37, 1), (5, 7, 67), (1, 3, 1003), (0, 9)])
def test_log_probs_are_those_of_log_softmax(by: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits, targets = (20 * torch.randn(shape)).to(dtype), torch.randint(shape[-1], shape[:-1])
    before = logits.clone()
    expected = logits.double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    found = log_probs_of(logits, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(logits, before)
    of_transposed = log_probs_of(logits.movedim(-1, 0).contiguous().movedim(0, -1), targets)
    torch.testing.assert_close(of_transposed, found)


def test_log_probs_of_banned_tokens_and_of_no_number(by: str) -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0], [0.0, math.nan, 0.0], [0.0, 0.0, -math.inf]])
    found = log_probs_of(logits, torch.tensor([1, 0, 0]))
    assert found[0] == -math.inf
    assert found[1].isnan()
    assert found[2].item() == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("target", [-1, 3])
def test_log_probs_of_tokens_outside_of_the_vocabulary_are_an_error(by: str, target: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        log_probs_of(torch.randn(2, 3), torch.tensor([0, target]))
