"""Short sequences are left to fused attention, in the fastest way; each equals dense attention."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_reference import PADDINGS, any_pattern, assert_equal, dense_reference, paddings, states
from vaswani.model import sparse_attention as caller
from vaswani.model import sparse_fused as module
from vaswani.model.sparse_attention import sparse_attention
from vaswani.model.sparse_pattern import SparsePattern

SIZE = 16


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Which ways were taken: dense, masked, gathered, kernel."""
    taken: set[str] = set()
    places = {
        "dense": (module, "_dense_attention"),
        "gathered": (module, "_gathered_attention"),
        "masked": (SparsePattern, "to_dense"),
        "kernel": (caller, "sparse_attention_kernel"),
    }
    for way, (owner, name) in places.items():
        function = getattr(owner, name)
        spy = lambda *a, way=way, function=function: (taken.add(way), function(*a))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, spy)
    yield taken
    module.visible_share.cache_clear()


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 15, 33, 48])
def test_all_pairs_are_dense_attention(length: int, causal: bool, padding: str, ways: set[str]) -> None:
    pattern = SparsePattern(2, SIZE, causal=causal)
    assert module.visible_share(pattern, length) == 1
    check(pattern, length, "dense", ways, padding)


@pytest.mark.parametrize(
    ("length", "options", "limits", "way"),
    [
        (8 * SIZE, {}, {}, "gathered"),
        (12 * SIZE, {}, {}, "gathered"),
        (5 * SIZE, {"global_blocks": 0, "window_blocks": 1}, {}, "gathered"),
        (8 * SIZE, {"global_blocks": 0, "global_tokens": SIZE}, {}, "gathered"),
        (8 * SIZE, {}, {"LEAST_BLOCK_GATHERED": SIZE + 1}, "masked"),
        (8 * SIZE - 3, {}, {}, "masked"),
        (7 * SIZE, {"global_blocks": 0, "global_tokens": 3}, {}, "masked"),
        (9 * SIZE, {"causal": True}, {}, "masked"),
        (8 * SIZE - 3, {}, {"LONGEST_MASK": 8 * SIZE - 4}, "kernel"),
        (12 * SIZE, {}, {"LEAST_BLOCK_GATHERED": SIZE + 1}, "kernel"),
        (25 * SIZE, {}, {}, "kernel"),
    ],
)
def test_most_pairs_are_fused_attention_with_as_little_mask_as_can_be(
    length: int,
    options: dict,
    limits: dict[str, int],
    way: str,
    ways: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, limit in {"LEAST_BLOCK_GATHERED": SIZE, **limits}.items():
        monkeypatch.setattr(module, name, limit)
    check(SparsePattern(2, SIZE, **options), length, way, ways)


@pytest.mark.parametrize("padding", PADDINGS[1:])
def test_padding_of_a_pattern_with_gaps_is_left_to_the_kernel(
    padding: str, ways: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_BLOCK_GATHERED", SIZE)
    check(SparsePattern(2, SIZE), 8 * SIZE, "kernel", ways, padding)


def check(pattern: SparsePattern, length: int, way: str, ways: set[str], padding: str = "none") -> None:
    """In which way it is computed, and that it equals dense attention."""
    inputs, mask = states(3, pattern.num_heads, length, 8), paddings(length, padding)
    actual = sparse_attention(*inputs, pattern, mask)
    assert ways == {way}
    assert_equal(actual, dense_reference(*inputs, pattern, mask), inputs)


@settings(deadline=None, max_examples=60)
@given(pattern=any_pattern.filter(lambda pattern: not pattern.causal), num_blocks=st.integers(1, 12))
def test_gathered_blocks_equal_dense_attention_for_any_pattern(
    pattern: SparsePattern, num_blocks: int
) -> None:
    inputs = states(2, pattern.num_heads, num_blocks * pattern.block_size, 8)
    actual = module._gathered_attention(*inputs, pattern, None)
    assert_equal(actual, dense_reference(*inputs, pattern), inputs)


def test_what_is_made_in_inference_serves_training(ways: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BLOCK_GATHERED", SIZE)
    module._groups.cache_clear()
    pattern, inputs = SparsePattern(2, SIZE, seed=5), states(1, 2, 8 * SIZE, 8)
    with torch.inference_mode():
        sparse_attention(*(each.detach() for each in inputs), pattern)
    sparse_attention(*inputs, pattern).sum().backward()
    assert all(each.grad.any() for each in inputs)
    assert ways == {"gathered"}


def test_the_scaling_moves_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BLOCK_GATHERED", SIZE)
    for length in (SIZE, 8 * SIZE - 1, 8 * SIZE):
        query, key, value = states(1, 2, length, 8)
        actual = sparse_attention(query, key, value, SparsePattern(2, SIZE), scaling=2.0)
        expected = sparse_attention(2 * 8**0.5 * query, key, value, SparsePattern(2, SIZE))
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("global_tokens", [0, 5])
@pytest.mark.parametrize("length", [1, 3, 20, 29, 40])
def test_the_visible_share_counts_pairs(length: int, global_tokens: int, causal: bool) -> None:
    pattern = SparsePattern(2, 4, 1, 0, 2, global_tokens=global_tokens, causal=causal)
    most = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    expected = pattern.to_dense(length).sum() / (2 * most.sum())
    share = module.visible_share(pattern, length)
    assert share == pytest.approx(expected.item()) or (share == 0 and expected < module.LEAST_SHARE_GATHERED)
    assert module.visible_share(pattern, 10_000) == 0.0
