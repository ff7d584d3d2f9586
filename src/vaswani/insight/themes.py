"""Colours of figures on light and dark backgrounds, from the palette of Okabe and Ito (2008).

Its colours can be distinguished with colour blindness. Yellow and black are left out, because each is
illegible on one of the backgrounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY_BLUE = "#e69f00", "#56b4e9"
LINES = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY_BLUE)
DASHES = ("-", "--", ":", "-.")  # of the first six lines, of the next six, and so on


@dataclass(frozen=True)
class Theme:
    """Colours that depend on the background.

    Args:
        background: colour of the figure's background.
        foreground: colour of text and axes.
        faint: colour of empty cells and borders, close to the background.
        scale: colours of values from 0 to their maximum; the first is the background.
        ends: colours of the most negative and the most positive values.
    """

    background: str
    foreground: str
    faint: str
    scale: tuple[str, ...]
    ends: tuple[str, str]

    @property
    def sequential(self) -> Colormap:
        """Return the colours of values from 0 on; larger values differ more from the background."""
        return _colormap(self.scale)

    @property
    def diverging(self) -> Colormap:
        """Return the colours of values of both signs; 0 has the colour of the background."""
        return _colormap((self.ends[0], self.background, self.ends[1]))

    def settings(self) -> dict[str, Any]:
        """Return the settings of matplotlib that give a figure these colours."""
        from cycler import cycler

        in_foreground = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
        return {
            **dict.fromkeys((*in_foreground, "grid.color", "patch.edgecolor"), self.foreground),
            **dict.fromkeys(("figure.facecolor", "axes.facecolor"), self.background),
            "legend.edgecolor": self.faint,
            "grid.alpha": 0.2,
            "axes.prop_cycle": cycler(linestyle=DASHES) * cycler(color=LINES),
        }


LIGHT = Theme(
    background="#ffffff",
    foreground="#1f2328",
    faint="#eceef0",
    scale=("#ffffff", SKY_BLUE, BLUE, "#00263d"),
    ends=(BLUE, VERMILLION),
)
DARK = Theme(
    background="#15181c",
    foreground="#e6e8eb",
    faint="#2b3037",
    scale=("#15181c", BLUE, SKY_BLUE, "#eaf6ff"),
    ends=(SKY_BLUE, ORANGE),
)


def _colormap(colours: tuple[str, ...]) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("vaswani", colours)
