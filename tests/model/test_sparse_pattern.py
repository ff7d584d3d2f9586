"""The sparse pattern against its definition, written a second time in plain Python."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_reference import any_pattern
from vaswani.model.sparse_pattern import MAX_BLOCKS, SparsePattern, block_hash

WORD = 2**64


def splitmix64(state: int) -> int:
    """Steele et al. (2014), figure 4: one output of the generator in this state."""
    state = (state + 0x9E3779B97F4A7C15) % WORD
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB % WORD
    return state ^ state >> 31


def plain_hash(seed: int, layer: int, head: int, query_block: int, key_block: int) -> int:
    state = seed % WORD
    for number in (layer, head, query_block, key_block):
        state = splitmix64(state ^ number)
    return (state >> 1) // MAX_BLOCKS * MAX_BLOCKS + key_block


def plain_sees(pattern: SparsePattern, head: int, i: int, j: int) -> bool:
    """Window or global, from the definition."""
    if pattern.causal:
        return 0 <= i - j < pattern.window_blocks or (j < pattern.global_blocks and j <= i)
    return abs(i - j) <= (pattern.window_blocks - 1) // 2 or min(i, j) < pattern.global_blocks


def plain_row(pattern: SparsePattern, num_blocks: int, head: int, i: int) -> set[int]:
    """The key blocks that a query block sees."""
    reachable = range(i + 1) if pattern.causal else range(num_blocks)
    seen = {j for j in reachable if plain_sees(pattern, head, i, j)}
    others = sorted(
        (plain_hash(pattern.seed, pattern.layer, head, i, j), j) for j in reachable if j not in seen
    )
    return seen | {j for _, j in others[: pattern.random_blocks]}


@settings(deadline=None, max_examples=60)
@given(pattern=any_pattern, length=st.integers(1, 110))
def test_the_pattern_equals_its_definition(pattern: SparsePattern, length: int) -> None:
    dense = pattern.to_dense(length)
    assert dense.shape == (pattern.num_heads, length, length)
    num_blocks = pattern.num_blocks(length)
    for head in range(pattern.num_heads):
        for i in range(num_blocks):
            row = plain_row(pattern, num_blocks, head, i)
            query = min(length, (i + 1) * pattern.block_size) - 1  # the last token of the block
            seen = {j // pattern.block_size for j in dense[head, query].nonzero()[:, 0].tolist()}
            assert seen == row
    block = torch.arange(length) // pattern.block_size
    if pattern.causal:
        assert not dense.triu(1).any()
        assert dense[:, torch.arange(length), torch.arange(length)].all()
    else:
        assert (dense == pattern.block_mask(num_blocks)[:, block][:, :, block]).all()


# (seed, layer, head, query block, key block) -> hash: fixed for good, for saved models depend on them.
PUBLISHED = [
    ((0, 0, 0, 0, 0), 1195769770526375936),
    ((0, 0, 0, 5, 1), 2403316085014134785),
    ((0, 3, 7, 1023, 512), 6493135442159862272),
    ((-1, 11, 15, 4096, 1048575), 6333250834281791487),
    ((1234567890123456789, 1, 2, 3, 4), 2049037194015801348),
]


@pytest.mark.parametrize(("numbers", "expected"), PUBLISHED)
def test_hashes_equal_the_published_values(numbers: tuple[int, ...], expected: int) -> None:
    assert plain_hash(*numbers) == expected
    seed, layer, *rest = numbers
    assert block_hash(seed, layer, *map(torch.tensor, rest)).item() == expected


def test_random_blocks_equal_the_published_values() -> None:
    pattern = SparsePattern(num_heads=2, seed=0)
    assert pattern.key_blocks(16)[:, 8 - 2, 2 + 3 :].tolist() == [[2, 12, 14], [3, 10, 11]]
    causal = SparsePattern(num_heads=2, seed=0, causal=True)
    assert causal.key_blocks(16)[:, 15, 2 + 3 :].tolist() == [[2, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize("causal", [False, True])
def test_seed_layer_and_head_choose_other_blocks(causal: bool) -> None:
    def random_blocks(**fields: int) -> torch.Tensor:
        return SparsePattern(num_heads=2, causal=causal, **fields).key_blocks(64)[..., 5:]

    base = random_blocks()
    assert torch.equal(base, random_blocks())
    assert not torch.equal(base, random_blocks(seed=1))
    assert not torch.equal(base, random_blocks(layer=1))
    assert not torch.equal(base[0], base[1])


def test_each_field_changes_the_pattern() -> None:
    base = SparsePattern(num_heads=2, block_size=2, seed=5)
    dense = base.to_dense(80)
    for fields in (
        {"block_size": 4},
        {"window_blocks": 5},
        {"global_blocks": 1},
        {"random_blocks": 1},
        {"seed": 6},
        {"layer": 1},
        {"causal": True},
    ):
        other = SparsePattern(**{"num_heads": 2, "block_size": 2, "seed": 5, **fields})
        assert not torch.equal(other.to_dense(80), dense), fields


def test_random_blocks_are_spread_evenly() -> None:
    """Over many rows each eligible block is drawn about as often."""
    blocks = SparsePattern(num_heads=16, global_blocks=0, window_blocks=1).key_blocks(128)[..., 1:]
    counts = torch.bincount(blocks.flatten(), minlength=128).double()  # 16 · 128 · 3 draws of 128 blocks
    assert counts.sum() == 16 * 128 * 3
    assert ((counts - 48).abs() < 6 * 48**0.5).all()


@pytest.mark.parametrize("num_blocks", [1, 5, 40])
def test_a_causal_row_does_not_depend_on_what_follows(num_blocks: int) -> None:
    pattern = SparsePattern(num_heads=2, causal=True)
    longer = seen_blocks(pattern.key_blocks(64)[:, :num_blocks])
    assert seen_blocks(pattern.key_blocks(num_blocks)) == longer


def seen_blocks(blocks: torch.Tensor) -> list[list[list[int]]]:
    """Without the places of a row that hold none, of which longer sequences have more."""
    return [[[block for block in row if block >= 0] for row in of_head] for of_head in blocks.tolist()]


def test_the_random_state_is_neither_used_nor_changed() -> None:
    pattern = SparsePattern(num_heads=2)
    torch.manual_seed(1)
    first, state = pattern.key_blocks(32), torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(pattern.key_blocks(32), first)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_long_sequences_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = SparsePattern(num_heads=2)
    whole = pattern.key_blocks(200)
    monkeypatch.setattr("vaswani.model.sparse_pattern._CHUNK", 1000)
    assert torch.equal(pattern.key_blocks(200), whole)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 0}, "num_heads=0 must be at least 1"),
        ({"block_size": 0}, "block_size=0 must be at least 1"),
        ({"window_blocks": 2}, "window_blocks=2 must be odd.*try 3"),
        ({"window_blocks": 0}, "window_blocks=0 must be at least 1"),
        ({"global_blocks": -1}, "global_blocks=-1 must be at least 0"),
        ({"random_blocks": -2}, "random_blocks=-2 must be at least 0"),
        ({"layer": -1}, "layer=-1 must be at least 0"),
        ({"seed": 2**63}, "seed=9223372036854775808 must fit into 64 bits"),
    ],
)
def test_invalid_numbers_raise_an_error(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SparsePattern(**{"num_heads": 1, **fields})


def test_too_many_blocks_raise_an_error() -> None:
    with pytest.raises(ValueError, match="more than 1048576; raise block_size"):
        SparsePattern(num_heads=1, block_size=1).num_blocks(2**20 + 1)
    assert SparsePattern(num_heads=1, causal=True, window_blocks=2).num_blocks(129) == 3


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("num_global", [0, 1, 2])
@pytest.mark.parametrize("num_random", [1, 2, 3])
def test_without_random_draws_shorter_texts_have_the_same_pattern(
    window: int, num_global: int, num_random: int
) -> None:
    """Otherwise a text's blocks would depend on the other texts of its batch."""
    blocks = {"window_blocks": window, "global_blocks": num_global, "random_blocks": num_random}
    pattern = SparsePattern(4, block_size=1, **blocks)
    drawn = set()
    for count in range(2, 12):
        drawn.add(pattern.varies_with_length(count))
        if not pattern.varies_with_length(count):
            longest = pattern.block_mask(count)
            for other in range(1, count):
                assert torch.equal(longest[:, :other, :other], pattern.block_mask(other))
    assert True in drawn
