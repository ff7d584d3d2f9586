"""The C++ kernel equals dense attention, outputs and gradients."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_reference import PADDINGS, any_pattern, dense_reference, paddings, states
from vaswani.errors import RunError
from vaswani.kernels import sparse_native
from vaswani.kernels.sparse_attention import sparse_attention
from vaswani.model.sparse_attention import attend_by_pattern, pattern_numbers
from vaswani.model.sparse_pattern import SparsePattern

SIZE = 16  # a multiple of every processor's vectors, of blocks and of heads

pytestmark = pytest.mark.skipif(
    sparse_native.library() is None,
    reason="NO C++ KERNEL: there is no compiler, or the processor is none of ours",
)


@pytest.fixture(autouse=True)
def only_the_native_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> torch.Tensor:
        raise AssertionError("The plain path was called.")

    monkeypatch.setattr(attend_by_pattern, "kernel", partial(sparse_native.attend_natively, never))


Attention = Callable[..., torch.Tensor]


def with_gradients(attention: Attention, inputs, *arguments, upstream=None) -> list[torch.Tensor]:
    """The output and the gradients of queries, keys and values."""
    output = attention(*inputs, *arguments)
    upstream = torch.linspace(-1, 1, output.numel()).view_as(output) if upstream is None else upstream
    return [output, *torch.autograd.grad(output, inputs, upstream.to(output.dtype))]


def assert_equal_to_dense(
    pattern: SparsePattern,
    length: int,
    padding: str = "none",
    width: int = SIZE,
    value_width: int | None = None,
    tolerance: float = 1e-5,
) -> None:
    """Against float64 of the same inputs, in units of the largest."""
    inputs = states(3, pattern.num_heads, length, width, torch.float32, value_width)
    mask = paddings(length, padding)
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = with_gradients(dense_reference, exact, pattern, mask)
    for ours, reference in zip(
        with_gradients(sparse_attention, inputs, pattern, mask), expected, strict=True
    ):
        assert (ours - reference).abs().max() <= tolerance * max(1.0, reference.abs().max())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 100, 703, 704, 705])
def test_equal_to_dense_at_any_length_and_padding(length: int, padding: str, causal: bool) -> None:
    assert_equal_to_dense(SparsePattern(2, SIZE, causal=causal), length, padding)


@settings(deadline=None, max_examples=60)
@given(
    pattern=any_pattern,
    blocks_of=st.sampled_from([SIZE, 2 * SIZE, 5 * SIZE]),
    width=st.sampled_from([SIZE, 3 * SIZE, 4 * SIZE]),
    value_width=st.sampled_from([None, SIZE, 3 * SIZE]),
    length=st.integers(1, 400),
    padding=st.sampled_from(PADDINGS),
)
def test_equal_to_dense_for_any_pattern_and_widths(
    pattern: SparsePattern, blocks_of: int, width: int, value_width: int | None, length: int, padding: str
) -> None:
    assert_equal_to_dense(replace(pattern, block_size=blocks_of), length, padding, width, value_width)


@pytest.mark.exhaustive(after=2)
@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "size"), [(4096, 64), (4097, 64), (4096, 128)])
def test_long_sequences_with_blocks_of_the_usual_size_equal_dense_attention(
    length: int, size: int, causal: bool
) -> None:
    assert_equal_to_dense(SparsePattern(1, size, causal=causal), length, "right", 64)


def test_global_tokens_that_fill_no_block_equal_dense_attention() -> None:
    assert_equal_to_dense(SparsePattern(2, SIZE, global_blocks=0, global_tokens=5), 300, "holes")


@pytest.mark.parametrize("widths", [(5, SIZE), (SIZE, 5), (SIZE + 4, SIZE + 4)])
def test_heads_that_fill_no_whole_vectors_are_padded(widths: tuple[int, int]) -> None:
    assert_equal_to_dense(SparsePattern(2, SIZE), 100, "right", *widths)


def test_contiguous_states_give_bit_identical_results() -> None:
    """The same numbers as from states whose heads lie behind the tokens, bit by bit."""
    pattern = SparsePattern(2, SIZE)
    apart = states(2, 2, 10 * SIZE, SIZE, torch.float32)
    in_one_piece = [each.detach().contiguous().requires_grad_() for each in apart]
    results = [with_gradients(sparse_attention, inputs, pattern) for inputs in (apart, in_one_piece)]
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_the_layout_of_states_and_gradients_does_not_change_results() -> None:
    """Numbers that do not lie next to each other, and a gradient that is one number, expanded."""
    pattern, inputs = SparsePattern(2, SIZE), states(1, 2, 70, SIZE, torch.float32)
    strided = [each.detach().mT.contiguous().mT.requires_grad_() for each in inputs]
    expected = with_gradients(sparse_attention, inputs, pattern, upstream=torch.ones(1, 2, 70, SIZE))
    output = sparse_attention(*strided, pattern)
    actual = [output, *torch.autograd.grad(output.sum(), strided)]
    for ours, reference in zip(actual, expected, strict=True):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_nothing(default: torch.dtype) -> None:
    """Of the kernel's own memory, above all: threads that divide heads have most of it."""
    pattern, inputs = SparsePattern(2, SIZE), states(1, 2, 205, SIZE, torch.float32)
    upstream, threads = torch.randn(1, 2, 205, SIZE), torch.get_num_threads()
    torch.set_num_threads(5)
    try:
        expected = with_gradients(sparse_attention, inputs, pattern, upstream=upstream)
        torch.set_default_dtype(default)
        actual = with_gradients(sparse_attention, inputs, pattern, upstream=upstream)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(threads)
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [10 * SIZE, 10 * SIZE - 3])
def test_half_precision_is_float32_rounded(dtype: torch.dtype, length: int) -> None:
    pattern = SparsePattern(2, SIZE)
    inputs = [each.detach().to(dtype).requires_grad_() for each in states(2, 2, length, SIZE)]
    exact = [each.detach().float().requires_grad_() for each in inputs]
    ours, reference = (with_gradients(sparse_attention, each, pattern) for each in (inputs, exact))
    assert torch.equal(ours[0], reference[0].to(dtype))
    # The backward pass reads the output and its gradient as they were rounded.
    upstream = torch.linspace(-1, 1, ours[0].numel()).view_as(ours[0]).to(dtype)
    rounded = with_gradients(sparse_attention, exact, pattern, upstream=upstream)
    for actual, expected in zip(ours[1:], rounded[1:], strict=True):
        assert actual.dtype == dtype
        error = 2 * torch.finfo(dtype).eps * expected.abs().max().clamp(min=1)
        assert (actual.float() - expected).abs().max() <= error


def test_bfloat16_rounds_to_the_nearest_even_as_pytorch_does() -> None:
    """One token sees itself alone, so that the output is the value."""
    value = torch.randn(1, 1, 1, SIZE, dtype=torch.bfloat16) * 1e3
    assert torch.equal(sparse_attention(value, value, value, SparsePattern(1, SIZE)), value)
    two = torch.tensor([[1.0], [1 + 2**-7], [1 + 2**-6]], dtype=torch.bfloat16)  # halves of neighbours
    for pair in (two[:2], two[1:]):
        value = pair.expand(2, SIZE)[None, None]
        query = torch.zeros_like(value)
        output = sparse_attention(query, query, value, SparsePattern(1, SIZE))
        assert torch.equal(output[0, 0, 0], pair.float().mean().to(torch.bfloat16).expand(SIZE))


@pytest.mark.parametrize("score", [-1e4, 1e4])
def test_large_scores_do_not_overflow(score: float) -> None:
    pattern, inputs = SparsePattern(1, SIZE), states(1, 1, 100, SIZE, torch.float32)
    query, key, value = inputs[0].detach() * abs(score) ** 0.5, inputs[1].detach() * score, inputs[2].detach()
    output = sparse_attention(query, key, value, pattern)
    torch.testing.assert_close(output, dense_reference(query, key, value, pattern), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_keys_reach_only_the_rows_that_see_them(bad: float) -> None:
    """NaN reaches all rows that see the key, and no other."""
    pattern = SparsePattern(1, SIZE, global_blocks=0, random_blocks=0)
    query, key, value = (each.detach() for each in states(1, 1, 10 * SIZE, SIZE, torch.float32))
    key[0, 0, 5 * SIZE] = bad
    output = sparse_attention(query, key, value, pattern)
    rows = output.isnan().any(dim=-1)[0, 0].view(10, SIZE)
    assert rows[4:7].all() if math.isnan(bad) else rows[4:7].any()
    assert not rows[:4].any()
    assert not rows[7:].any()


def test_fully_masked_rows_are_zero_and_get_no_gradient() -> None:
    inputs, mask = states(2, 2, 100, SIZE, torch.float32), torch.ones(2, 100)
    mask[1] = 0
    output, *gradients = with_gradients(sparse_attention, inputs, SparsePattern(2, SIZE), mask)
    assert output[0].any()
    assert not output[1].any()
    assert all(each.isfinite().all() and each[0].any() and not each[1].any() for each in gradients)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_more_threads_than_heads_change_only_rounding(causal: bool, dtype: torch.dtype) -> None:
    """They divide a head's queries, and add up what they find for its keys, each time in the same order."""
    pattern = SparsePattern(2, SIZE, causal=causal)
    inputs = [each.detach().to(dtype).requires_grad_() for each in states(1, 2, 301, SIZE)]
    before, results = torch.get_num_threads(), {}
    try:
        for threads in (1, 2, 7, 64):
            torch.set_num_threads(threads)
            results[threads] = with_gradients(sparse_attention, inputs, pattern)
            again = with_gradients(sparse_attention, inputs, pattern)
            assert all(map(torch.equal, results[threads], again))
    finally:
        torch.set_num_threads(before)
    for threads, result in results.items():
        assert torch.equal(result[0], results[1][0]), threads
        for actual, expected in zip(result[1:], results[1][1:], strict=True):
            torch.testing.assert_close(
                actual, expected, rtol=2e-5 if dtype == torch.float32 else 1e-2, atol=1e-4
            )


def dropped(pattern: SparsePattern, query: torch.Tensor, key: torch.Tensor, p: float) -> torch.Tensor:
    """The weights after dropout [B, H, n, n], read off by attending to unit vectors; n is the head width."""
    units = torch.eye(query.shape[-2]).expand(*query.shape[:2], -1, -1)
    return sparse_attention(query, key, units, pattern, dropout=p)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_equals_dense_attention_with_the_same_choice(causal: bool) -> None:
    pattern, p, length = SparsePattern(2, SIZE, causal=causal), 0.3, 9 * SIZE
    query, key, value = states(3, 2, length, length, torch.float32)
    torch.manual_seed(1)
    keep = dropped(pattern, query, key, p).detach() != 0
    visible = pattern.to_dense(length).expand_as(keep)
    assert keep[visible].double().mean() == pytest.approx(1 - p, abs=0.01)
    torch.manual_seed(1)
    actual = with_gradients(sparse_attention, (query, key, value), pattern, None, None, p)
    scale = 65536 / (65536 - round(p * 65536))

    def reference(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        scores = (query @ key.mT / length**0.5).masked_fill(~visible, -torch.inf)
        return (scores.softmax(-1) * keep * scale) @ value

    for ours, expected in zip(actual, with_gradients(reference, (query, key, value)), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5)


def test_dropout_drops_independently() -> None:
    """Of sequences, heads, blocks, rows and columns: no two agree more often than chance."""
    pattern, length = SparsePattern(2, SIZE, window_blocks=9), 4 * SIZE
    zeros = torch.zeros(2, 2, length, length)
    torch.manual_seed(0)
    keep = (dropped(pattern, zeros, zeros, 0.5) != 0).float() - 0.5
    deviation = 0.25 / keep.numel() ** 0.5
    for other in (keep.flip(0), keep.flip(1), keep.roll(SIZE, 2), keep.roll(SIZE, 3), keep.roll(1, 2)):
        assert abs((keep * other).mean()) < 5 * deviation
    assert abs(keep.mean()) < 10 * deviation


def test_dropout_depends_only_on_the_global_seed() -> None:
    pattern, inputs = SparsePattern(2, SIZE), states(2, 2, 100, SIZE, torch.float32)
    before, runs = torch.get_num_threads(), []
    try:
        for seed, threads in ((5, 1), (5, 3), (5, 9), (6, 1)):
            torch.set_num_threads(threads)
            torch.manual_seed(seed)
            runs.append(sparse_attention(*inputs, pattern, dropout=0.5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[3])
    state = torch.get_rng_state()
    sparse_attention(*inputs, pattern)
    assert torch.equal(torch.get_rng_state(), state)  # without dropout nothing is drawn


@pytest.mark.parametrize(
    ("dtype", "size", "expected"),
    [
        (torch.float32, SIZE, True),
        (torch.float16, SIZE, True),
        (torch.float64, SIZE, False),
        (torch.float32, SIZE + 1, False),
    ],
)
def test_unsupported_inputs_use_the_plain_path(dtype: torch.dtype, size: int, expected: bool) -> None:
    query = torch.empty(1, 2, 100, SIZE, dtype=dtype)
    assert sparse_native.can_compute(query, SparsePattern(2, size)) == expected
    assert not sparse_native.can_compute(query[:0], SparsePattern(2, size))


def test_the_plain_path_equals_dense_attention_for_other_block_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = partial(sparse_native.attend_natively, attend_by_pattern.plain)
    monkeypatch.setattr(attend_by_pattern, "kernel", kernel)
    pattern, inputs = SparsePattern(2, SIZE + 1), states(1, 2, 100, SIZE)
    torch.testing.assert_close(sparse_attention(*inputs, pattern), dense_reference(*inputs, pattern))


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_passes_opcheck(causal: bool) -> None:
    """PyTorch's own checks of a custom operator: schema, fake kernel, autograd, dynamic shapes."""
    pattern, inputs = SparsePattern(2, SIZE, causal=causal), states(2, 2, 21, SIZE, torch.float32)
    arguments = (*inputs, torch.ones(2, 21, dtype=torch.bool), None, pattern_numbers(pattern), 0.5, 0.0)
    torch.library.opcheck(torch.ops.vaswani.sparse_attention, arguments)


@pytest.mark.slow
def test_the_operator_compiles_without_graph_breaks() -> None:
    pattern, inputs = SparsePattern(2, SIZE), states(1, 2, 100, SIZE, torch.float32)
    compiled = torch.compile(lambda *tensors: sparse_attention(*tensors, pattern) * 2, fullgraph=True)
    expected, actual = 2 * sparse_attention(*inputs, pattern), compiled(*inputs)
    torch.testing.assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    gradients = [torch.autograd.grad(output, inputs, upstream) for output in (actual, expected)]
    torch.testing.assert_close(*gradients)


def test_stage_times_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, threads = torch.zeros(3, dtype=torch.float64), torch.get_num_threads()
    monkeypatch.setattr(sparse_native, "stage_seconds", seconds)
    torch.set_num_threads(1)  # which the clock is for
    try:
        sparse_attention(*states(1, 2, 500, SIZE, torch.float32), SparsePattern(2, SIZE))
    finally:
        torch.set_num_threads(threads)
    assert (seconds > 0).all()


def test_an_exported_program_raises_an_error_without_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exported program does not call `can_compute`; that happened before the export."""
    pattern = SparsePattern(1, SIZE, window_blocks=1, global_blocks=0, random_blocks=0)
    inputs = states(1, 1, 2 * SIZE, SIZE, torch.float32)
    monkeypatch.setattr(sparse_native, "library", lambda: None)
    monkeypatch.setattr(sparse_native, "unavailable", lambda: "there is no compiler")
    with pytest.raises(RunError, match=r"with a kernel that cannot be used here \(there is no compiler\)"):
        torch.ops.vaswani.sparse_attention(*inputs, None, None, pattern_numbers(pattern), 1.0, 0.0)
