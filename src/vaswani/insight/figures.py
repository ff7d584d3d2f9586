"""Figures of matplotlib, which is optional and so imported late; never its pyplot, whose state is global."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**options: Any) -> Figure:
    """An empty figure that can be saved, with matplotlib's own options.

    Raises:
        UserError: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise UserError("drawing needs matplotlib: pip install 'vaswani[plots]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure
