"""Sparse attention equals dense attention under the pattern's mask, outputs and gradients."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparse_reference import PADDINGS, any_pattern, assert_equal, dense_reference, paddings, states
from vaswani.model import sparse_attention as module
from vaswani.model import sparse_kernel, sparse_native, sparse_operators
from vaswani.model.sparse_attention import shows_everything, sparse_attention
from vaswani.model.sparse_kernel import as_numbers
from vaswani.model.sparse_pattern import SparsePattern


@pytest.fixture(autouse=True)
def only_the_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences, which most tests have, could be left to dense attention."""
    if "dense_calls" not in request.fixturenames:
        monkeypatch.setattr(module, "shows_everything", lambda pattern, length: False)


def assert_equal_to_dense(
    pattern: SparsePattern, length: int, padding: str = "none", tolerance: float = 1e-12
) -> None:
    inputs = states(3, pattern.num_heads, length, 8)
    mask = paddings(length, padding)
    expected, actual = (
        attention(*inputs, pattern, mask) for attention in (dense_reference, sparse_attention)
    )
    assert_equal(actual, expected, inputs, tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 100, 703, 704, 705])
def test_equal_to_dense_at_any_length_and_padding(length: int, padding: str, causal: bool) -> None:
    assert_equal_to_dense(SparsePattern(num_heads=2, block_size=16, causal=causal), length, padding)


@settings(deadline=None, max_examples=60)
@given(
    pattern=any_pattern,
    length=st.integers(1, 90),
    padding=st.sampled_from(PADDINGS),
)
def test_equal_to_dense_for_any_pattern(pattern: SparsePattern, length: int, padding: str) -> None:
    assert_equal_to_dense(pattern, length, padding)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("chunk", "tile"), [(1, 7), (5000, 40), (10**6, 10**9)])
def test_how_much_is_computed_at_a_time_changes_nothing(
    chunk: int, tile: int, padding: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query block or two, tiles that end within a block, tiles whose keys are all padding, and so on."""
    monkeypatch.setattr(sparse_operators, "CHUNK", chunk)
    monkeypatch.setattr(sparse_operators, "TILE", tile)
    sparse_operators._chunks.cache_clear()
    assert_equal_to_dense(SparsePattern(num_heads=2, block_size=16, causal=causal), 150, padding)
    sparse_operators._chunks.cache_clear()


@pytest.fixture(params=["C++", "operators"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which one computes what both can."""
    if request.param == "C++" and sparse_native.library() is None:
        pytest.skip("NO C++ KERNEL: there is no compiler, or the processor is none of ours")
    if request.param == "operators":
        monkeypatch.setattr(sparse_kernel, "can_compute", lambda inputs: False)
    return request.param


@pytest.fixture
def dense_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each call of dense attention or of the kernels."""
    calls: list[str] = []
    for name in ("_dense_attention", "sparse_attention_kernel"):
        function = getattr(module, name)
        spy = lambda *a, name=name, function=function: (calls.append(name), function(*a))[1]  # noqa: E731
        monkeypatch.setattr(module, name, spy)
    return calls


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 15, 33, 48])
def test_all_pairs_are_dense_attention(
    length: int, causal: bool, padding: str, dense_calls: list[str]
) -> None:
    assert_equal_to_dense(SparsePattern(num_heads=2, block_size=16, causal=causal), length, padding)
    assert dense_calls == ["_dense_attention"]


@settings(deadline=None, max_examples=60)
@given(pattern=any_pattern, global_tokens=st.integers(0, 20), length=st.integers(1, 90))
def test_dense_attention_takes_what_shows_all_pairs(
    pattern: SparsePattern, global_tokens: int, length: int
) -> None:
    if global_tokens:
        pattern = replace(pattern, global_blocks=0, global_tokens=global_tokens)
    visible = pattern.to_dense(length)
    expected = visible | torch.ones(length, length).triu(1).bool() if pattern.causal else visible
    assert shows_everything(pattern, length) == expected.all()


def test_the_scaling_moves_dense_attention_and_the_kernels(dense_calls: list[str]) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    for length in (16, 200):
        query, key, value = states(1, 2, length, 8)
        actual = sparse_attention(query, key, value, pattern, scaling=2.0)
        torch.testing.assert_close(actual, sparse_attention(2 * 8**0.5 * query, key, value, pattern))
    assert set(dense_calls) == {"_dense_attention", "sparse_attention_kernel"}


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_64_in_float64(causal: bool) -> None:
    assert_equal_to_dense(SparsePattern(num_heads=1, causal=causal), 4096, "right")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1000, 4097])
def test_blocks_of_64_in_float32(length: int, causal: bool, maker: str, kernel: str) -> None:
    pattern = SparsePattern(num_heads=2, causal=causal)
    inputs = states(1, 2, length, 16, torch.float32)
    upstream = torch.randn_like(inputs[0])
    expected, actual = (attention(*inputs, pattern) for attention in (dense_reference, sparse_attention))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for ours, reference in zip(
        torch.autograd.grad(actual, inputs, upstream),
        torch.autograd.grad(expected, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_dense_attention(dtype: torch.dtype, kernel: str) -> None:
    """Against float64 of the same inputs, outputs and gradients err at most twice as much."""
    pattern = SparsePattern(num_heads=2, block_size=16)
    rounded = [tensor.to(dtype).detach().requires_grad_() for tensor in states(2, 2, 200, 16)]
    upstream = torch.randn_like(rounded[0])

    def with_gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [output, *torch.autograd.grad(output, inputs, upstream.to(output.dtype))]

    exact = [tensor.detach().double().requires_grad_() for tensor in rounded]
    mask = pattern.to_dense(200)[None]
    dense = with_gradients(nn.functional.scaled_dot_product_attention(*rounded, attn_mask=mask), rounded)
    sparse = with_gradients(sparse_attention(*rounded, pattern), rounded)
    truth = with_gradients(dense_reference(*exact, pattern), exact)
    for of_sparse, of_dense, true in zip(sparse, dense, truth, strict=True):
        assert of_sparse.dtype == dtype
        assert (of_sparse - true).abs().max() <= 2 * (of_dense - true).abs().max()


def test_large_scores_overflow_nowhere() -> None:
    pattern = SparsePattern(num_heads=1, block_size=4)
    inputs = [1e4 * tensor.detach() for tensor in states(1, 1, 50, 8, torch.float32)]
    output = sparse_attention(*inputs, pattern, torch.ones(1, 50))
    torch.testing.assert_close(output, dense_reference(*inputs, pattern))


def test_an_empty_row_is_zero_and_moves_nothing() -> None:
    pattern = SparsePattern(num_heads=2, block_size=4)
    inputs = states(2, 2, 30, 8)
    mask = torch.ones(2, 30)
    mask[1] = 0
    output = sparse_attention(*inputs, pattern, mask)
    assert not output[1].any()
    gradients = torch.autograd.grad(output, inputs, torch.randn_like(output))
    assert all(gradient.isfinite().all() and not gradient[1].any() for gradient in gradients)


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_is_well_made(causal: bool) -> None:
    """PyTorch's own checks of a custom operator: schema, fake kernel, autograd, dynamic shapes."""
    pattern = SparsePattern(num_heads=2, block_size=4, causal=causal)
    inputs = states(2, 2, 21, 4)
    arguments = (*inputs, torch.ones(2, 21, dtype=torch.bool), None, as_numbers(pattern), 0.5, 0.0)
    torch.library.opcheck(torch.ops.vaswani.sparse_attention, arguments)
    torch.autograd.gradcheck(lambda *tensors: sparse_attention(*tensors, pattern), inputs)


@pytest.mark.slow
def test_it_compiles_whole() -> None:
    pattern = SparsePattern(num_heads=2, block_size=8)
    inputs = states(1, 2, 100, 8, torch.float32)
    compiled = torch.compile(lambda *tensors: sparse_attention(*tensors, pattern) * 2, fullgraph=True)
    expected, actual = 2 * sparse_attention(*inputs, pattern), compiled(*inputs)
    torch.testing.assert_close(actual, expected)
    for ours, eager in zip(
        torch.autograd.grad(actual.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, eager)


def test_the_number_of_threads_changes_nothing_and_stays() -> None:
    pattern = SparsePattern(num_heads=3, block_size=8)
    inputs = states(2, 3, 100, 8)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            output = sparse_attention(*inputs, pattern, dropout=0.0)
            results.append([output, *torch.autograd.grad(output.sum(), inputs)])
            with ThreadPoolExecutor(1) as pool:  # a thread that begins later
                assert torch.get_num_threads() == pool.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        for actual, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_dropout_is_the_same_in_the_backward_pass_on_other_threads(monkeypatch) -> None:
    """Of chunks with an odd number of weights, for each number that is drawn decides over four."""
    pattern = SparsePattern(num_heads=1, block_size=5, window_blocks=1, global_blocks=0, random_blocks=2)
    monkeypatch.setattr(sparse_operators, "CHUNK", 7 * 5 * 3 * 5)  # seven query blocks for each thread
    sparse_operators._chunks.cache_clear()
    inputs = states(1, 1, 211, 4)
    before = torch.get_num_threads()
    gradients = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(1)
            torch.manual_seed(3)
            output = sparse_attention(*inputs, pattern, dropout=0.3)
            torch.set_num_threads(threads)
            gradients.append(torch.autograd.grad(output.sum(), inputs))
    finally:
        torch.set_num_threads(before)
    sparse_operators._chunks.cache_clear()
    for actual, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def effective_weights(pattern: SparsePattern, query, key, dropout: float) -> torch.Tensor:
    """The weights after dropout [B, H, n, n], read off by attending to unit vectors; n is the head width."""
    length = query.shape[-2]
    units = torch.eye(length, dtype=query.dtype).expand(*query.shape[:2], -1, -1)
    return sparse_attention(query, key, units, pattern, dropout=dropout)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_equals_dense_attention_with_the_same_choice(causal: bool) -> None:
    pattern, p, length = SparsePattern(num_heads=2, block_size=4, causal=causal), 0.3, 45
    query, key, value = states(3, 2, length, length)
    torch.manual_seed(1)
    keep = effective_weights(pattern, query, key, p).detach() != 0
    visible = pattern.to_dense(length).expand_as(keep)
    assert 0.6 < keep[visible].double().mean() < 0.8
    torch.manual_seed(1)
    actual = sparse_attention(query, key, value, pattern, dropout=p)
    scores = (query @ key.mT / length**0.5).masked_fill(~visible, -torch.inf)
    scale = 65536 / (65536 - round(p * 65536))
    expected = (scores.softmax(-1) * keep * scale) @ value
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(actual)
    gradients = [torch.autograd.grad(output, (query, key, value), upstream) for output in (actual, expected)]
    for of_ours, of_reference in zip(*gradients, strict=True):
        torch.testing.assert_close(of_ours, of_reference, rtol=0, atol=1e-12)


def test_dropout_hangs_on_the_global_seed_alone() -> None:
    pattern = SparsePattern(num_heads=2, block_size=8)
    query, key, value = (tensor.detach() for tensor in states(2, 2, 100, 8))
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(sparse_attention(query, key, value, pattern, dropout=0.5))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    state = torch.get_rng_state()
    sparse_attention(query, key, value, pattern)
    assert torch.equal(torch.get_rng_state(), state)  # without dropout nothing is drawn


def test_an_earlier_batch_changes_nothing() -> None:
    pattern = SparsePattern(num_heads=2, block_size=8)
    long, short = (states(1, 2, length, 8) for length in (200, 9))
    expected = sparse_attention(*long, pattern)
    sparse_attention(*short, pattern)
    assert torch.equal(sparse_attention(*long, pattern), expected)


FITTING = {
    "query": torch.zeros(1, 2, 8, 4),
    "key": torch.zeros(1, 2, 8, 4),
    "value": torch.zeros(1, 2, 8, 4),
    "pattern": SparsePattern(num_heads=2),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"key": torch.zeros(1, 2, 9, 4)},
            "must have one shape [B, H, n, D]; got [1, 2, 8, 4], [1, 2, 9, 4], [1, 2, 8, 4]",
        ),
        (dict.fromkeys(("query", "key", "value"), torch.zeros(2, 8, 4)), "[B, H, n, D]; got [2, 8, 4]"),
        (
            {"value": torch.zeros(1, 2, 8, 4, dtype=torch.half)},
            "must have one floating dtype; got torch.float32, torch.float32, torch.float16",
        ),
        (
            dict.fromkeys(("query", "key", "value"), torch.zeros(1, 2, 8, 4, dtype=torch.long)),
            "must have one floating dtype; got torch.int64",
        ),
        ({"pattern": SparsePattern(num_heads=3)}, "the query has 2 heads and the pattern num_heads=3"),
        ({"padding_mask": torch.ones(1, 9)}, "padding_mask must be [1, 8]; got [1, 9]"),
        ({"dropout": -0.1}, "dropout=-0.1 must be at least 0 and less than 1"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
    ],
)
def test_inputs_that_do_not_fit(change: dict, message: str) -> None:
    assert sparse_attention(**FITTING).shape == (1, 2, 8, 4)
    with pytest.raises(ValueError, match=re.escape(message)):
        sparse_attention(**FITTING | change)
