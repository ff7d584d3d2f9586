"""Pictures: the reason of each block against the definition, and each pixel against its reason."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from drawn import check_nothing_is_cut_off, legend, pixels_at
from sparse_reference import any_pattern
from vaswani.errors import UserError
from vaswani.insight.sparse_patterns import (
    LABELS,
    Reason,
    block_reasons,
    colours_of_reasons,
    density,
    draw_sparse_pattern,
)
from vaswani.model.sparse_pattern import SparsePattern


def a_pattern(**fields: Any) -> SparsePattern:
    return SparsePattern(**{"num_heads": 2, "block_size": 4, "seed": 5, **fields})


# Reasons.


def plain_reason(pattern: SparsePattern, seen: bool, i: int, j: int) -> Reason:
    """From the definition; what is seen without being global or in the window is random."""
    if pattern.causal and i == j:
        return Reason.DIAGONAL
    if not seen:
        return Reason.UNSEEN
    if j < pattern.global_blocks or (i < pattern.global_blocks and not pattern.causal):
        return Reason.GLOBAL
    reach = pattern.window_blocks - 1 if pattern.causal else pattern.window_blocks // 2
    return Reason.WINDOW if abs(i - j) <= reach else Reason.RANDOM


@settings(deadline=None, max_examples=50)
@given(pattern=any_pattern, num_blocks=st.integers(1, 12))
def test_reasons_are_those_of_the_definition(pattern: SparsePattern, num_blocks: int) -> None:
    mask = pattern.block_mask(num_blocks)
    reasons = block_reasons(pattern, num_blocks)
    assert reasons.shape == mask.shape
    assert torch.equal(reasons != Reason.UNSEEN, mask)
    assert density(pattern, num_blocks) == pytest.approx(mask.sum().item() / mask.numel())
    places = range(num_blocks)
    assert reasons.tolist() == [
        [[plain_reason(pattern, bool(head[i, j]), i, j) for j in places] for i in places] for head in mask
    ]


def test_reasons_of_one_pattern() -> None:
    letters = {Reason.UNSEEN: ".", Reason.GLOBAL: "g", Reason.WINDOW: "w", Reason.DIAGONAL: "d"}

    def rows(**fields: Any) -> list[str]:
        pattern = a_pattern(num_heads=1, global_blocks=1, random_blocks=0, **fields)
        return ["".join(letters[reason] for reason in row) for row in block_reasons(pattern, 5)[0].tolist()]

    assert rows() == ["ggggg", "gww..", "gwww.", "g.www", "g..ww"]
    assert rows(causal=True) == ["d....", "gd...", "gwd..", "gwwd.", "g.wwd"]


@pytest.mark.parametrize("causal", [False, True])
def test_each_field_changes_the_reasons(causal: bool) -> None:
    base = block_reasons(a_pattern(causal=causal), 32)
    for fields in (
        {"window_blocks": 5},
        {"global_blocks": 1},
        {"random_blocks": 1},
        {"seed": 6},
        {"layer": 1},
        {"causal": not causal},
    ):
        assert not torch.equal(block_reasons(a_pattern(**{"causal": causal, **fields}), 32), base), fields
    assert not torch.equal(base[0], base[1])


# Pictures.


@pytest.mark.parametrize(
    ("num_blocks", "fields"),
    [(1, {}), (9, {"causal": True}), (24, {"num_heads": 5}), (512, {"num_heads": 1, "causal": True})],
)
def test_every_block_has_the_colour_of_its_reason(num_blocks: int, fields: dict[str, Any]) -> None:
    pattern = a_pattern(**fields)
    reasons = block_reasons(pattern, num_blocks)
    for dark in (False, True):
        figure = draw_sparse_pattern(pattern, num_blocks, dark=dark)
        colours = np.array([to_rgb(colour) for colour in colours_of_reasons(figure.theme)])
        for panel, of_head in zip(figure.axes, reasons, strict=True):
            drawn = pixels_at(panel, num_blocks, num_blocks)
            assert (drawn == (255 * colours).round()[of_head]).all()


@pytest.mark.parametrize(("num_blocks", "heads"), [(1, 1), (16, 3), (512, 1)])
def test_nothing_is_cut_off(num_blocks: int, heads: int) -> None:
    check_nothing_is_cut_off(
        draw_sparse_pattern(a_pattern(num_heads=heads, causal=True, seed=-(2**63)), num_blocks)
    )


def test_title_and_axis_labels_describe_the_pattern() -> None:
    pattern = SparsePattern(
        3, block_size=16, window_blocks=5, global_blocks=1, random_blocks=2, seed=8, layer=4, causal=True
    )
    figure = draw_sparse_pattern(pattern, 20)
    assert figure.get_suptitle() == (
        f"sparse pattern, causal: density {100 * density(pattern, 20):.1f} %\n"
        "block size 16, window 5, global 1, random 2, seed 8, layer 4"
    )
    assert [panel.get_title() for panel in figure.axes] == ["head 0", "head 1", "head 2"]
    assert {(panel.get_xlabel(), panel.get_ylabel()) for panel in figure.axes} == {
        ("key block", "query block")
    }
    assert legend(figure) == list(LABELS.values())


def test_the_legend_names_what_is_there() -> None:
    assert legend(draw_sparse_pattern(a_pattern(random_blocks=0), 8)) == ["not seen", "global", "window"]
    assert legend(draw_sparse_pattern(a_pattern(), 1)) == ["global"]


@pytest.mark.parametrize(
    ("fields", "num_blocks", "message"),
    [
        ({}, 0, r"shows 1 to 512 blocks, not 0; change the length"),
        ({}, 513, r"not 513; .* \(512 blocks of 4 are 2048 tokens\)"),
        ({"num_heads": 33}, 8, r"at most 32 heads, not 33; plot the first few"),
    ],
)
def test_invalid_pattern_sizes_raise_an_error(fields: dict[str, Any], num_blocks: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        draw_sparse_pattern(a_pattern(**fields), num_blocks)


def test_heads_do_not_depend_on_how_many_there_are() -> None:
    """What the error about too many heads promises."""
    few, many = (block_reasons(a_pattern(num_heads=heads), 16) for heads in (2, 5))
    assert torch.equal(few, many[:2])
