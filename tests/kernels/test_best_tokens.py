"""The best tokens of rows are those that log-softmax and `topk` find."""

from unittest.mock import patch

import pytest
import torch

from vaswani.kernels import best_tokens as module
from vaswani.kernels.best_tokens import best_tokens
from vaswani.kernels.native_library import why_not_compiled

needs_compiler = pytest.mark.skipif(
    why_not_compiled(module.SOURCE) is not None, reason="nothing can be compiled here"
)
SIZES = [(61, 8), (64, 1), (8000, 8), (8003, 130), (300, 300), (5, 4), (1, 1), (129, 16)]


@needs_compiler
@pytest.mark.parametrize(("size", "count"), SIZES)
def test_best_tokens_equal_topk(size: int, count: int) -> None:
    scores = 3 * torch.randn(7, size)
    with patch.object(module, "library", wraps=module.library) as asked:
        values, tokens = best_tokens(scores, count, normalize=False)
    assert asked.called
    expected, places = scores.topk(count)
    assert torch.equal(values, expected)
    assert torch.equal(tokens, places)
    values, tokens = best_tokens(scores, count, normalize=True)
    torch.testing.assert_close(values, scores.log_softmax(-1).topk(count).values, rtol=1e-6, atol=1e-6)
    assert torch.equal(tokens, places)


@needs_compiler
def test_a_view_and_several_threads_give_the_same_tokens() -> None:
    scores = torch.randn(40, 3, 500)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        values, tokens = best_tokens(scores[:, -1], 9, normalize=False)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(values, scores[:, -1].topk(9).values)
    assert torch.equal(tokens, scores[:, -1].topk(9).indices)


@needs_compiler
def test_of_equal_scores_the_first_tokens_are_best() -> None:
    scores = torch.zeros(2, 200)
    scores[1, 150:] = 1.0
    _, tokens = best_tokens(scores, 8, normalize=False)
    assert tokens.tolist() == [list(range(8)), list(range(150, 158))]


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_compiler), False])
def test_excluded_and_non_finite_scores_are_handled(compiled: bool) -> None:
    with patch.object(module, "library", module.library if compiled else lambda: None):
        excluded = torch.full((2, 200), -torch.inf)
        excluded[0, :5] = 0.0
        values, _ = best_tokens(excluded, 8, normalize=False)
        assert values[0].tolist() == [0.0] * 5 + [-torch.inf] * 3
        assert best_tokens(excluded[:1], 5, normalize=True)[0][0].tolist() == pytest.approx([-1.609438] * 5)
        broken = torch.zeros(3, 200)
        broken[0, 150] = torch.nan
        broken[1, 199] = torch.inf
        broken[2] = -torch.inf
        values, tokens = best_tokens(broken, 8, normalize=True)
    assert bool(values.isnan().all())  # as log_softmax says
    assert bool(broken.log_softmax(-1).isnan().all())
    assert tokens.min() >= 0
    assert tokens.max() < 200


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_computed_by_pytorch(dtype: torch.dtype) -> None:
    scores = torch.randn(4, 70, dtype=dtype)
    values, tokens = best_tokens(scores, 6, normalize=True)
    expected = scores.log_softmax(-1).topk(6)
    assert torch.equal(values, expected.values)
    assert torch.equal(tokens, expected.indices)
