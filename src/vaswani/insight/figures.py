"""Create and save figures of matplotlib, which is optional and imported late.

pyplot, with its global state, is not used.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError
from vaswani.files.atomic_files import write_whole
from vaswani.insight.themes import DARK, LIGHT

if TYPE_CHECKING:
    import torch
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from vaswani.insight.themed_figure import ThemedFigure

FORMATS = ("pdf", "png", "svg")


@contextmanager
def new_figure(
    size: tuple[float, float],
    *,
    dark: bool = False,
    texts: Iterable[str] = (),
    dpi: float = 150,
    layout: str = "constrained",
) -> Iterator[ThemedFigure]:
    """Yield an empty figure; drawings within the `with` block use its colours and fonts.

    Args:
        size: width and height in inches.
        dark: whether the background is dark; `figure.theme` has the colours.
        texts: the figure's texts that may not be English; they determine the fonts.
        dpi: dots per inch of a PNG file.
        layout: matplotlib's layout engine, which keeps the parts from overlapping.

    Raises:
        UserError: matplotlib is missing.
    """
    check_matplotlib()
    from vaswani.insight.fonts import families_for
    from vaswani.insight.themed_figure import ThemedFigure

    theme = DARK if dark else LIGHT
    figure = ThemedFigure(theme, families_for(texts), figsize=size, dpi=dpi, layout=layout)
    with figure.settings():
        yield figure


def write_plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with 0.01 and 1000, not with powers of ten, which need math typesetting.

    Figures do not use math typesetting, because many texts contain a dollar sign.
    """
    from matplotlib.ticker import FuncFormatter, LogFormatter

    class Minor(LogFormatter):
        """Labels those ticks that `LogFormatter` labels, which writes 0.4 as 4e-01."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return _plain(x) if super().__call__(x, pos) else ""

    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(value)))
    axis.set_minor_formatter(Minor())


def _plain(number: float) -> str:
    return f"{number:,.10g}"


def draw_kinds(axes: Axes, kinds: torch.Tensor, colours: Sequence[str], **options: Any) -> None:
    """Plot a matrix of whole numbers, each in its colour.

    Args:
        axes: the panel.
        kinds: from 0 on [rows, columns].
        colours: of each number.
        options: of `imshow`.
    """
    from matplotlib.colors import ListedColormap

    options |= {"cmap": ListedColormap(colours), "vmin": -0.5, "vmax": len(colours) - 0.5}
    axes.imshow(kinds.numpy(), interpolation="none", **options)
    axes.locator_params(integer=True, min_n_ticks=1)


def add_colour_legend(figure: ThemedFigure, colours: Mapping[str, str], **options: Any) -> None:
    """Add a legend of colours, given by their labels; `options` are those of `legend`."""
    from matplotlib.patches import Patch

    edge = figure.theme.foreground
    patches = [
        Patch(facecolor=colour, edgecolor=edge, linewidth=0.5, label=label)
        for label, colour in colours.items()
    ]
    figure.legend(handles=patches, **options)


def check_picture(output: Path) -> None:
    """Raise a UserError before slow work if a picture could not be saved.

    Its suffix is no known format, its folder does not exist, or matplotlib is missing.
    """
    check_matplotlib()
    _format_of(output)
    if not output.parent.is_dir():
        raise UserError(f"cannot write {output}: {os.strerror(errno.ENOENT)}")


def check_matplotlib() -> None:
    """Raise a UserError if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UserError("drawing needs matplotlib: pip install 'vaswani[plots]'")


def save_figure(figure: ThemedFigure, output: str | Path) -> None:
    """Save a figure atomically in the format of the file's suffix: .png, .svg or .pdf.

    Raises:
        UserError: the suffix is unknown, or the file cannot be written.
    """
    picture = figure.to_bytes(_format_of(Path(output)))
    try:
        write_whole(Path(output), picture)
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error


def _format_of(output: Path) -> str:
    suffix = output.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        known = ", ".join(f".{name}" for name in FORMATS)
        raise UserError(
            f"cannot draw {output}: its suffix is {output.suffix or 'missing'}; use one of {known}"
        )
    return suffix
