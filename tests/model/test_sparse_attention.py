"""Sparse attention equals dense attention under the pattern's mask, outputs and gradients."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparse_reference import (
    PADDINGS,
    LargestTensor,
    any_pattern,
    assert_equal,
    dense_reference,
    paddings,
    states,
)
from vaswani.kernels.sparse_attention import sparse_attention
from vaswani.model.sparse_attention import (
    attend_by_pattern,
    pattern_numbers,
    sparse_attention_step,
)
from vaswani.model.sparse_pattern import SparsePattern


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend_by_pattern, "kernel", None)


def assert_equal_to_dense(
    pattern: SparsePattern, length: int, padding: str = "none", value_width: int = 8, tolerance: float = 1e-12
) -> None:
    inputs = states(3, pattern.num_heads, length, 8, value_width=value_width)
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
    value_width=st.sampled_from([3, 8, 12]),
)
def test_equal_to_dense_for_any_pattern_and_widths(
    pattern: SparsePattern, length: int, padding: str, value_width: int
) -> None:
    assert_equal_to_dense(pattern, length, padding, value_width)


@settings(deadline=None, max_examples=60)
@given(
    pattern=any_pattern,
    global_tokens=st.integers(1, 20),
    length=st.integers(1, 90),
    padding=st.sampled_from(PADDINGS),
)
def test_equal_to_dense_with_global_tokens(
    pattern: SparsePattern, global_tokens: int, length: int, padding: str
) -> None:
    assert_equal_to_dense(replace(pattern, global_blocks=0, global_tokens=global_tokens), length, padding)


@settings(deadline=None, max_examples=60)
@given(
    pattern=any_pattern,
    global_tokens=st.integers(0, 20),
    past=st.integers(0, 80),
    new=st.integers(1, 80),
    empty=st.integers(0, 9),
    padding=st.sampled_from(PADDINGS),
)
def test_the_last_rows_from_a_cache_are_those_of_the_whole(
    pattern: SparsePattern, global_tokens: int, past: int, new: int, empty: int, padding: str
) -> None:
    pattern = replace(pattern, causal=True)
    if global_tokens:
        pattern = replace(pattern, global_blocks=0, global_tokens=global_tokens)
    query, key, value = states(3, pattern.num_heads, past + new, 8, value_width=5)
    mask = paddings(past + new, padding)
    expected = dense_reference(query, key, value, pattern, mask)[:, :, past:]
    cached = [nn.functional.pad(each, (0, 0, 0, empty), value=9.0) for each in (key, value)]
    for past_length in (past, torch.tensor(past)):
        actual = sparse_attention_step(query[:, :, past:], *cached, pattern, past_length, mask)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_the_scaling_moves_the_result() -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    query, key, value = states(1, 2, 200, 8)
    actual = sparse_attention(query, key, value, pattern, scaling=2.0)
    torch.testing.assert_close(actual, sparse_attention(2 * 8**0.5 * query, key, value, pattern))


@pytest.mark.parametrize("causal", [False, True])
def test_memory_grows_linearly(causal: bool) -> None:
    pattern, largest = SparsePattern(num_heads=1, causal=causal), []
    for length in (4096, 8192, 16384):
        inputs, mask = states(1, 1, length, 16, torch.float32), torch.ones(1, length)
        sparse_attention(*inputs, pattern)  # draws the pattern, which is kept
        with LargestTensor() as made:
            sparse_attention(*inputs, pattern, mask).sum().backward()
        largest.append(made.size)
    assert largest[2] <= 2.1 * largest[1] <= 2.1 * 2.1 * largest[0]
    assert largest[2] < 16384**2 / 20


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_64_equal_dense_attention_in_float64(causal: bool) -> None:
    assert_equal_to_dense(SparsePattern(num_heads=1, causal=causal), 4096, "right")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1000, 4097])
def test_blocks_of_64_equal_dense_attention_in_float32(length: int, causal: bool) -> None:
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
def test_half_precision_is_as_exact_as_dense_attention(dtype: torch.dtype) -> None:
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


def test_large_scores_do_not_overflow() -> None:
    pattern = SparsePattern(num_heads=1, block_size=4)
    inputs = [1e4 * tensor.detach() for tensor in states(1, 1, 50, 8, torch.float32)]
    output = sparse_attention(*inputs, pattern, torch.ones(1, 50))
    torch.testing.assert_close(output, dense_reference(*inputs, pattern))


def test_a_fully_masked_row_is_zero_and_gets_no_gradient() -> None:
    pattern = SparsePattern(num_heads=2, block_size=4)
    inputs = states(2, 2, 30, 8)
    mask = torch.ones(2, 30)
    mask[1] = 0
    output = sparse_attention(*inputs, pattern, mask)
    assert not output[1].any()
    gradients = torch.autograd.grad(output, inputs, torch.randn_like(output))
    assert all(gradient.isfinite().all() and not gradient[1].any() for gradient in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_exact_and_the_operator_passes_opcheck(causal: bool) -> None:
    pattern = SparsePattern(num_heads=2, block_size=4, causal=causal)
    torch.autograd.gradcheck(lambda *tensors: sparse_attention(*tensors, pattern), states(2, 2, 21, 4))
    for own_blocks in (None, torch.tensor([6, 0, 4])):
        arguments = pattern_numbers(pattern), 6, torch.tensor([3, 5]), own_blocks
        torch.library.opcheck(torch.ops.vaswani.visible_blocks, arguments)
    arguments = pattern_numbers(pattern), 22, torch.tensor([6, 0, 4])
    torch.library.opcheck(torch.ops.vaswani.visible_pairs, arguments)


@pytest.mark.slow
def test_the_operator_compiles_without_graph_breaks() -> None:
    pattern = SparsePattern(num_heads=2, block_size=8)
    inputs = states(1, 2, 100, 8, torch.float32)
    compiled = torch.compile(lambda *tensors: sparse_attention(*tensors, pattern) * 2, fullgraph=True)
    expected, actual = 2 * sparse_attention(*inputs, pattern), compiled(*inputs)
    torch.testing.assert_close(actual, expected)
    for ours, eager in zip(
        torch.autograd.grad(actual.sum(), inputs), torch.autograd.grad(expected.sum(), inputs), strict=True
    ):
        torch.testing.assert_close(ours, eager)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
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
    expected = (scores.softmax(-1) * keep / (1 - p)) @ value
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(actual)
    gradients = [torch.autograd.grad(output, (query, key, value), upstream) for output in (actual, expected)]
    for of_ours, of_reference in zip(*gradients, strict=True):
        torch.testing.assert_close(of_ours, of_reference, rtol=0, atol=1e-12)


def test_dropout_depends_only_on_the_global_seed() -> None:
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
            "query and key must have one shape [B, H, n, Dk], and value [B, H, n, Dv]; got [1, 2, 8, 4], "
            "[1, 2, 9, 4], [1, 2, 8, 4].",
        ),
        (dict.fromkeys(("query", "key", "value"), torch.zeros(2, 8, 4)), "[B, H, n, Dv]; got [2, 8, 4]"),
        ({"value": torch.zeros(1, 2, 9, 4)}, "[B, H, n, Dv]; got [1, 2, 8, 4], [1, 2, 8, 4], [1, 2, 9, 4]"),
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
def test_inputs_of_mismatched_shapes_raise_an_error(change: dict, message: str) -> None:
    assert sparse_attention(**FITTING).shape == (1, 2, 8, 4)
    with pytest.raises(ValueError, match=re.escape(message)):
        sparse_attention(**FITTING | change)
