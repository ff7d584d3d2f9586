"""Short sequences in which all tokens see each other use dense attention, with the same result."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_reference import PADDINGS, any_pattern, assert_equal, dense_reference, paddings, states
from vaswani.kernels.sparse_attention import sparse_attention
from vaswani.kernels.sparse_short import attend_to_all, shows_everything
from vaswani.model.sparse_attention import attend_by_pattern
from vaswani.model.sparse_pattern import SparsePattern


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths computed by another kernel."""
    lengths: list[int] = []

    def record(query: torch.Tensor, *arguments: object) -> torch.Tensor:
        lengths.append(query.shape[2])
        return attend_by_pattern.plain(query, *arguments)

    monkeypatch.setattr(attend_by_pattern, "kernel", partial(attend_to_all, record))
    return lengths


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 15, 33, 48])
def test_patterns_of_all_pairs_use_dense_attention(
    length: int, causal: bool, padding: str, others: list[int]
) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16, causal=causal)
    inputs, mask = states(3, 2, length, 8), paddings(length, padding)
    assert_equal(sparse_attention(*inputs, pattern, mask), dense_reference(*inputs, pattern, mask), inputs)
    assert not others


def test_long_sequences_and_dropout_use_another_kernel(others: list[int]) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    sparse_attention(*states(1, 2, 200, 8), pattern)
    sparse_attention(*states(1, 2, 20, 8), pattern, dropout=0.5)
    assert others == [200, 20]


def test_the_scaling_moves_the_result(others: list[int]) -> None:
    pattern = SparsePattern(num_heads=2, block_size=16)
    query, key, value = states(1, 2, 16, 8)
    actual = sparse_attention(query, key, value, pattern, scaling=2.0)
    torch.testing.assert_close(actual, sparse_attention(2 * 8**0.5 * query, key, value, pattern))
    assert not others


@settings(deadline=None, max_examples=60)
@given(pattern=any_pattern, global_tokens=st.integers(0, 20), length=st.integers(1, 90))
def test_shows_everything_detects_patterns_of_all_pairs(
    pattern: SparsePattern, global_tokens: int, length: int
) -> None:
    if global_tokens:
        pattern = replace(pattern, global_blocks=0, global_tokens=global_tokens)
    visible = pattern.to_dense(length)
    expected = visible | torch.ones(length, length).triu(1).bool() if pattern.causal else visible
    assert shows_everything(pattern, length) == expected.all()
