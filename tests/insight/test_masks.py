"""Plots of masks, against masks written out from their definition."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb

from drawn import check_nothing_is_cut_off, legend, pixels_at
from vaswani.errors import UserError
from vaswani.insight.masks import LABELS, Cell, attention_masks, colours_of_cells, draw_masks
from vaswani.model.sparse_attention import dense_mask
from vaswani.model.sparse_pattern import SparsePattern

SOURCES, TARGETS = [8, 5], [6, 4]
SEEN, PAD_SEES, PADDING, LATER, OUTSIDE = Cell


def a_pattern(**fields) -> SparsePattern:
    values = {"block_size": 1, "window_blocks": 3, "global_blocks": 1, "random_blocks": 1}
    return SparsePattern(1, **{**values, **fields})


def plain(queries: int, keys: int, real_queries: int, real_keys: int, hidden=lambda query, key: None):
    """A mask from its definition."""

    def cell(query: int, key: int) -> Cell:
        if key >= real_keys:
            return PADDING
        reason = hidden(query, key)
        if reason is not None:
            return reason
        return SEEN if query < real_queries else PAD_SEES

    return [[cell(query, key) for key in range(keys)] for query in range(queries)]


def later(query: int, key: int) -> Cell | None:
    return LATER if key > query else None


def test_masks_are_those_of_the_definition():
    pattern = a_pattern()
    padding_mask = torch.arange(8) < torch.tensor(SOURCES)[:, None]
    visible = dense_mask(pattern, 8, 8, padding_mask=padding_mask)[:, 0]  # one head
    masks = attention_masks(SOURCES, TARGETS, pattern)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):

        def outside(query: int, key: int, of_row: torch.Tensor = visible[row]) -> Cell | None:
            return None if of_row[query, key] else OUTSIDE

        found = {name: mask[row].tolist() for name, mask in masks.items()}
        assert found == {
            "encoder": plain(8, 8, source, source),
            "decoder": plain(6, 6, target, target, later),
            "cross": plain(6, 8, target, source),
            "sparse": plain(8, 8, source, source, outside),
        }


def test_each_argument_changes_its_masks():
    base = attention_masks([16, 9], [6, 4], a_pattern())

    def moved(sources=(16, 9), targets=(6, 4), **fields) -> set[str]:
        masks = attention_masks(sources, targets, a_pattern(**fields))
        return {name for name, mask in masks.items() if not torch.equal(mask, base[name])}

    assert moved() == set()
    assert moved(sources=[16, 8]) == {"encoder", "cross", "sparse"}
    assert moved(targets=[6, 3]) == {"decoder", "cross"}
    for fields in (
        {"block_size": 2},
        {"window_blocks": 5},
        {"global_blocks": 2},
        {"random_blocks": 2},
        {"seed": 1},
    ):
        assert moved(**fields) == {"sparse"}


@pytest.mark.parametrize("dark", [False, True])
def test_every_cell_has_the_colour_of_its_reason(dark):
    masks = attention_masks([16], [14], a_pattern())  # without labels in the cells
    figure = draw_masks(masks, dark=dark)
    colours = (255 * np.array([to_rgb(colour) for colour in colours_of_cells(figure.theme)])).round()
    for panel, mask in zip(figure.axes, masks.values(), strict=True):
        assert (pixels_at(panel, *mask[0].shape) == colours[mask[0]]).all()
        assert not panel.texts
    assert legend(figure) == [LABELS[SEEN], LABELS[LATER], LABELS[OUTSIDE]]
    check_nothing_is_cut_off(figure)


def test_cells_of_short_masks_are_labelled():
    masks = attention_masks(SOURCES, TARGETS, a_pattern())
    figure = draw_masks(masks)
    for panel, mask in zip(
        figure.axes, [mask[row] for row in range(2) for mask in masks.values()], strict=True
    ):
        labels = [text.get_text() for text in panel.texts]
        assert labels == ["0" if cell <= PAD_SEES else "−∞" for cell in mask.flatten().tolist()]
    assert legend(figure) == list(LABELS.values())
    check_nothing_is_cut_off(figure)


def test_the_small_models_have_no_unknown_fields(caplog):
    attention_masks(SOURCES, TARGETS, a_pattern())
    assert not caplog.records


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ([0], [1], "source_lengths=0 must be at least 1 and at most 64"),
        ([1], [65], "target_lengths=65 must be at least 1 and at most 64"),
        ([1, 2], [1], "2 source lengths and 1 target lengths are given; give as many of each, at most 4"),
        ([1] * 5, [1] * 5, "5 source lengths .* at most 4"),
        ([], [], "0 source lengths"),
    ],
)
def test_invalid_lengths_raise_an_error(sources, targets, message):
    with pytest.raises(UserError, match=message):
        attention_masks(sources, targets, a_pattern())
