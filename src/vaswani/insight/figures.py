"""Figures of matplotlib, which is optional and imported late; pyplot, with its global state, is not used."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**options: Any) -> Figure:
    """Return an empty figure that can be saved; raise a UserError if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UserError("drawing needs matplotlib: pip install 'vaswani[plots]'")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure
