"""Attention plots show the values of the tensors, and all of them are legible."""

import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgba

from drawn import check_no_texts_overlap, check_nothing_is_cut_off, pixels_at
from vaswani.errors import UserError
from vaswani.insight import fonts
from vaswani.insight.attention import AttentionMap
from vaswani.insight.attention_plots import MAX_LABELS, draw_arcs, draw_heatmap, draw_sheet, weights_of

QUERIES = ("it", "chased", "x" * 60, "it")
KEYS = ("The", "the_longest_of_all_words", "动物动物动物", "حيوان", "</s>")


def a_map(queries=QUERIES, keys=KEYS, layers: int = 3, heads: int = 2, kind: str = "cross") -> AttentionMap:
    torch.manual_seed(0)
    scores = 3 * torch.randn(layers, heads, len(queries), len(keys))
    return AttentionMap(kind, tuple(queries), tuple(keys), scores.softmax(-1))


def labels_of(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (-1, 0), (1, None)])
def test_a_heatmap_holds_the_weights_of_its_head(layer, head):
    attention = a_map()
    figure = draw_heatmap(attention, layer, head)
    axes = figure.axes[0]
    expected = attention.weights[layer].mean(0) if head is None else attention.weights[layer, head]
    torch.testing.assert_close(torch.tensor(axes.images[0].get_array().data), expected)
    assert labels_of(axes.xaxis) == [*KEYS]
    assert labels_of(axes.yaxis) == ["it", "chased", "x" * 15 + "…" + "x" * 14, "it"]
    of_head = "mean of 2 heads" if head is None else f"head {head}"
    assert figure.get_suptitle() == f"Cross-attention, layer {layer % 3}, {of_head}"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("target, predicted", "source, attended to")


@pytest.mark.parametrize("dark", [False, True])
def test_cells_with_more_weight_contrast_more_with_the_background(dark):
    attention = a_map()
    figure = draw_heatmap(attention, 0, 0, dark=dark)
    axes = figure.axes[0]
    shown = torch.tensor(pixels_at(axes, len(QUERIES), len(KEYS)).astype(float)).mean(-1).flatten()
    background = 255 * sum(to_rgba(figure.theme.background)[:3]) / 3
    distance = (shown - background).abs()
    order = attention.weights[0, 0].flatten().argsort()
    assert (distance[order].diff() >= -0.5).all()
    assert distance.max() > 100


def arcs_of(figure) -> dict[tuple[int, int], float]:
    """The opacity of each arc by its query and key."""
    (collection,) = [each for each in figure.axes[0].collections if isinstance(each, PathCollection)]
    ends = [(int(path.vertices[0, 1]), int(path.vertices[-1, 1])) for path in collection.get_paths()]
    return dict(zip(ends, collection.get_edgecolors()[:, 3].tolist(), strict=True))


def test_arcs_are_as_opaque_as_their_weights_are_large():
    attention = a_map()
    arcs = arcs_of(draw_arcs(attention, 1, 1))
    expected = attention.weights[1, 1] / attention.weights[1, 1].max()
    assert arcs == pytest.approx(
        {(q, k): expected[q, k].item() for q in range(4) for k in range(5)}, rel=1e-4
    )


def test_a_chosen_token_shows_only_its_arcs_and_shades_its_keys():
    attention = a_map()
    figure = draw_arcs(attention, 0, 0, token="it")
    expected = attention.weights[0, 0, [0, 3]]
    expected = expected / expected.max()
    arcs = arcs_of(figure)
    assert {query for query, _ in arcs} == {0, 3}
    assert [arcs[0, key] for key in range(5)] == pytest.approx(expected[0].tolist(), rel=1e-4)
    shades = [patch.get_alpha() for patch in figure.axes[0].patches]
    assert shades == pytest.approx((0.45 * expected.amax(0)).tolist(), rel=1e-4)
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_fontweight() == "bold"]
    assert bold == ["it", "it"]


def test_masked_pairs_of_a_sparse_layer_have_no_arc():
    attention = a_map()
    attention.weights[0, 0, 1, 2:] = 0
    assert {key for query, key in arcs_of(draw_arcs(attention, 0, 0)) if query == 1} == {0, 1}


def test_a_sheet_shows_every_head_on_one_scale():
    attention = a_map(layers=3, heads=4)
    figure = draw_sheet(attention)
    panels = [axes for axes in figure.axes if axes.images and axes.get_label() != "<colorbar>"]
    assert len(panels) == 12
    for number, panel in enumerate(panels):
        image = panel.images[0]
        torch.testing.assert_close(
            torch.tensor(image.get_array().data), attention.weights[number // 4, number % 4]
        )
        assert image.get_clim() == (0, pytest.approx(attention.weights.max().item()))
    assert [panel.get_title() for panel in panels[:4]] == [f"head {head}" for head in range(4)]
    assert [panel.get_ylabel() for panel in panels[::4]] == [f"layer {layer}" for layer in range(3)]


@pytest.mark.parametrize("draw", [draw_heatmap, draw_arcs, draw_sheet])
@pytest.mark.parametrize("shape", [(1, 1), (2, 30), (30, 2), (12, 14)])
def test_nothing_is_cut_off(draw, shape):
    """Of one token, of many, and of long ones."""
    sides = [[*QUERIES, *KEYS, *("abcdefghi" * 3)][:count] for count in shape]
    figure = draw(a_map(*sides))
    check_nothing_is_cut_off(figure)
    if draw is not draw_heatmap or shape[1] == 1:  # boxes around slanted labels overlap
        check_no_texts_overlap(figure)


@pytest.mark.parametrize("draw", [draw_heatmap, draw_arcs])
def test_the_tokens_select_the_fonts(draw, monkeypatch):
    """Whatever fonts are installed."""
    texts: list[str] = []
    monkeypatch.setattr(fonts, "families_for", lambda given: texts.extend(given) or ["DejaVu Sans"])
    draw(a_map())
    assert {"动物动物动物", "حيوان", "chased"} <= set(texts)


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (3, None, r"layer=3: the cross attention has 3; expected 0 to 2, or -3 to -1"),
        (-4, 0, r"layer=-4: the cross attention has 3"),
        (0, 2, r"head=2: the cross attention has 2; expected 0 to 1, or -2 to -1"),
    ],
)
def test_a_layer_or_head_that_is_not_there_is_refused(layer, head, message):
    with pytest.raises(UserError, match=message):
        weights_of(a_map(), layer, head)


def test_too_many_labels_or_heads_raise_an_error():
    many = ["a"] * (MAX_LABELS + 1)
    with pytest.raises(UserError, match=r"labels for up to 100 queries, not 101; shorten the text, join"):
        draw_heatmap(a_map(queries=many))
    with pytest.raises(UserError, match=r"labels for up to 100 keys, not 101"):
        draw_arcs(a_map(keys=many))
    draw_sheet(a_map(queries=many, keys=many, layers=1))
    with pytest.raises(UserError, match=r"a sheet shows up to 400 heads, not 462; plot one head"):
        draw_sheet(a_map(layers=21, heads=22))
    with pytest.raises(
        UserError, match=r"token='dog' is none of the queries; expected one of 'it', 'chased'"
    ):
        draw_arcs(a_map(), token="dog")
