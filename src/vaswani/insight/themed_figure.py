"""A figure drawn with its own theme and fonts, whatever matplotlib's settings in the process are."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any

import matplotlib
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from vaswani.insight.themes import Theme

_SETTINGS_IN_USE = RLock()  # matplotlib's settings belong to the process; threads take turns


class ThemedFigure(Figure):
    """A figure of matplotlib that keeps its theme. A notebook shows it.

    Args:
        theme: colours of the figure.
        families: fonts; each has characters that the earlier fonts lack.
        options: arguments of matplotlib's `Figure`.
    """

    def __init__(self, theme: Theme, families: list[str], **options: Any):
        self.theme = theme
        self._settings: Any = {  # typed as the union of all names
            **theme.settings(),
            "font.family": families,
            "text.parse_math": False,
        }
        with self.settings():
            super().__init__(**options)
        FigureCanvasAgg(self)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Give matplotlib this figure's settings, and its defaults for all other settings."""
        with _SETTINGS_IN_USE, matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(self._settings)
            yield

    def draw(self, renderer: RendererBase) -> None:
        """Draw the figure under its settings, because ticks and their labels are created only now."""
        with self.settings(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # `fonts` has reported them
            super().draw(renderer)

    def to_bytes(self, suffix: str) -> bytes:
        """Return the figure as the content of a file: png, svg or pdf."""
        picture = io.BytesIO()
        with self.settings():
            self.savefig(picture, format=suffix)
        return picture.getvalue()

    def _repr_png_(self) -> bytes:
        return self.to_bytes("png")
