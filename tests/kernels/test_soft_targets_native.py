"""Divergences from a teacher by C++ and by PyTorch's operators: the values and gradients of float64."""

import math

import pytest
import torch
from either_way import either_way

from vaswani.distillation.losses import forward_kl, soft_target_loss
from vaswani.kernels import soft_targets_native

TOLERANCES = {torch.float32: (1e-4, 1e-6), torch.bfloat16: (1e-2, 1e-4)}
COUNTS = [None, 1, 3, "all"]  # of tokens whose probabilities are stored


by = either_way(soft_targets_native)


def targets(rows: int, size: int, count: int | str | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A teacher's log-probabilities: of the vocabulary, or of some tokens and the rest; and these tokens."""
    log_probs = (3 * torch.randn(rows, size)).log_softmax(-1)
    if count is None:
        return log_probs, None
    best = log_probs.topk(size if count == "all" else min(int(count), size))
    rest = log_probs.scatter(-1, best.indices, -math.inf).logsumexp(-1, keepdim=True)
    return torch.cat([best.values, rest], -1), best.indices


def exactly(
    logits: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor | None, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition in float64: classes of probability 0 add nothing."""
    exact = logits.double().requires_grad_()
    student = (exact / temperature).log_softmax(-1)
    if tokens is not None:
        others = torch.ones_like(student, dtype=torch.bool).scatter(-1, tokens, False)
        rest = student.masked_fill(~others, -math.inf).logsumexp(-1, keepdim=True)
        student = torch.cat([student.gather(-1, tokens), rest], -1)
    q, counts = teacher.double(), teacher > -math.inf
    loss = (q.exp() * (q - student))[counts].sum()
    return loss.detach(), torch.autograd.grad(loss, exact)[0]


def found(
    logits: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor | None, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The summed divergence and its gradient, as a distillation computes them."""
    logits = logits.detach().requires_grad_()
    options = {"temperature": temperature, "divergence": forward_kl, "teacher_tokens": tokens}
    loss = soft_target_loss(logits, teacher, num_tokens=1, **options) / temperature**2
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


def check(
    logits: torch.Tensor, teacher: torch.Tensor, tokens: torch.Tensor | None, temperature: float = 1.0
) -> None:
    """Both are those of the definition."""
    expected_loss, expected_gradient = exactly(logits, teacher, tokens, temperature)
    loss, gradient = found(logits, teacher, tokens, temperature)
    assert loss.dtype == torch.float32
    assert gradient.dtype == logits.dtype
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-5, atol=1e-5)
    rtol, atol = TOLERANCES[logits.dtype]
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("size", [5, 16, 67, 1003])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_divergence_and_gradient_equal_those_of_float64(
    by: str, size: int, count: int | str | None, temperature: float, dtype: torch.dtype
) -> None:
    logits = (10 * torch.randn(37, size)).to(dtype)
    teacher, tokens = targets(37, size, count)
    assert soft_targets_native.can_compute(logits, teacher, tokens) == (by == "C++")
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        check(logits, teacher, tokens, temperature)
    torch.set_num_threads(before)
    with torch.no_grad():
        options = {"temperature": temperature, "divergence": forward_kl, "teacher_tokens": tokens}
        alone = soft_target_loss(logits, teacher, num_tokens=1, **options) / temperature**2
    assert torch.equal(alone, found(logits, teacher, tokens, temperature)[0])


def test_mismatched_shapes_and_tokens_raise_an_error(by: str) -> None:
    logits = torch.randn(4, 9)
    teacher, tokens = targets(4, 9, 3)
    assert tokens is not None
    for unknown in (tokens + 8, tokens - 9):
        with pytest.raises((RuntimeError, IndexError)):
            found(logits, teacher, unknown)
    for other in ((teacher[:, :2], tokens), (teacher[:3], tokens), (teacher, tokens[:3]), (teacher, None)):
        with pytest.raises(ValueError, match="has the shape"):
            found(logits, *other)


@pytest.mark.parametrize("count", COUNTS)
def test_no_rows_give_zero_divergence(by: str, count: int | str | None) -> None:
    teacher, tokens = targets(2, 9, count)
    tokens = None if tokens is None else tokens[:0]
    loss, gradient = found(torch.empty(0, 9), teacher[:0], tokens)
    assert loss == 0
    assert gradient.shape == (0, 9)


def test_non_contiguous_rows_are_supported(by: str) -> None:
    logits = torch.randn(20, 11).t()
    teacher, tokens = targets(11, 20, 3)
    assert tokens is not None
    teacher, tokens = teacher.t().contiguous().t(), tokens.t().contiguous().t()
    check(logits, teacher, tokens)


@pytest.mark.parametrize("count", COUNTS)
def test_a_student_confident_in_other_tokens_gets_a_finite_gradient(by: str, count: int | str | None) -> None:
    """What the teacher expects has, for the student, a probability that float32 cannot hold."""
    teacher, tokens = targets(4, 19, count)
    logits = torch.zeros(4, 19)
    unlikely = teacher.argmin(-1) if tokens is None else tokens[:, 0]
    logits.scatter_(-1, unlikely[:, None], 300.0)
    check(logits, teacher, tokens)


@pytest.mark.parametrize("count", COUNTS)
def test_logits_of_minus_infinity_where_the_teacher_has_none_add_nothing(
    by: str, count: int | str | None
) -> None:
    teacher, tokens = targets(3, 18, count)
    logits, nothing = torch.randn(3, 18), torch.full((3, 5), -math.inf)
    expected, of_gradient = exactly(logits, teacher, tokens, 1.0)
    wider = torch.cat([logits, nothing], -1)
    if tokens is None:
        teacher = torch.cat([teacher, nothing], -1)
    loss, gradient = found(wider, teacher, tokens)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient[:, :18].double(), of_gradient, rtol=1e-4, atol=1e-6)
    assert not gradient[:, 18:].any()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 18])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_non_finite_student_logits_are_propagated(
    by: str, number: float, place: int, count: int | str | None, dtype: torch.dtype
) -> None:
    teacher, tokens = targets(2, 19, count)
    logits = torch.randn(2, 19).to(dtype)
    logits[1, place] = number
    loss, gradient = found(logits, teacher, tokens)
    assert not loss.isfinite()
    assert not gradient.isfinite().all()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("place", [0, -1])
def test_nan_of_the_teacher_is_propagated(by: str, place: int, count: int | str | None) -> None:
    teacher, tokens = targets(2, 19, count)
    teacher[1, place] = math.nan
    loss, _ = found(torch.randn(2, 19), teacher, tokens)
    assert loss.isnan()
