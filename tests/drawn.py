"""Inspect a figure: its legend, whether its texts fit, and the colours of its cells."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text


def legend(figure: Figure) -> list[str]:
    """The labels of the figure's only legend."""
    (found,) = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for text in found.get_texts()]


def check_nothing_is_cut_off(figure: Figure) -> None:
    """Check that everything drawn lies inside the figure."""
    figure.canvas.draw()
    drawn = figure.get_tightbbox()  # in inches
    width, height = figure.get_size_inches()
    assert drawn.x0 >= 0
    assert drawn.y0 >= 0
    assert drawn.x1 <= width
    assert drawn.y1 <= height


def check_no_texts_overlap(figure: Figure) -> None:
    """Check that no two texts of the figure overlap."""
    figure.canvas.draw()
    boxes = [(text.get_text(), text.get_window_extent().shrunk(0.98, 0.9)) for text in _texts(figure)]
    for index, (text, box) in enumerate(boxes):
        for other, other_box in boxes[index + 1 :]:
            assert not box.overlaps(other_box), (text, other)


def _texts(figure: Figure) -> Iterator[Text]:
    """All texts but labels of ticks that lie outside of their axis, which are not drawn."""
    outside = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    outside |= {tick.label1, tick.label2}
    for text in figure.findobj(Text):
        if text not in outside and text.get_visible() and text.get_text().strip():
            yield text


def pixels_at(axes: Axes, rows: int, columns: int) -> np.ndarray:
    """The colour in the middle of each cell of an image, uint8 [rows, columns, 3]."""
    axes.figure.canvas.draw()
    image = np.asarray(axes.figure.canvas.buffer_rgba())[::-1, :, :3]  # upwards, as matplotlib counts
    across = axes.transData.transform([(column, 0) for column in range(columns)])[:, 0].astype(int)
    up = axes.transData.transform([(0, row) for row in range(rows)])[:, 1].astype(int)
    return image[up][:, across]
