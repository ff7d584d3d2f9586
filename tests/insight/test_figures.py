"""Figures: themes, the settings of the process, texts as they are, and files whole or not at all."""

import sys
import threading
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from vaswani.errors import UserError
from vaswani.insight.figures import check_picture, new_figure, save_figure, write_plain_numbers
from vaswani.insight.themed_figure import ThemedFigure
from vaswani.insight.themes import BLUE, DARK, GREEN, LIGHT, PURPLE, VERMILLION, Theme


def a_figure(dark: bool = False, text: str = "title") -> ThemedFigure:
    with new_figure((3, 2), dark=dark, texts=[text]) as figure:
        axes = figure.add_subplot()
        axes.plot([1, 2, 3], label="line")
        axes.set(title=text, xlabel="across", ylabel="up")
        axes.legend()
    return figure


def pixels(picture: bytes) -> np.ndarray:
    with Image.open(BytesIO(picture)) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB"))


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_and_lines_can_be_read_on_the_background(theme: Theme) -> None:
    """With the contrasts that WCAG 2.1 asks for: 4.5 for text, 3 for the first lines."""
    assert contrast(theme.foreground, theme.background) >= 4.5
    for colour in (BLUE, VERMILLION, GREEN, PURPLE):
        assert contrast(colour, theme.background) >= 3


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_a_larger_value_is_further_from_the_background(theme: Theme) -> None:
    shades = [luminance(theme.sequential(value)) for value in np.linspace(0, 1, 21)]
    distances = np.abs(np.array(shades) - luminance(theme.background))
    assert (np.diff(distances) > 0).all()
    middle = theme.diverging(0.5)
    assert np.allclose(middle[:3], to_rgb(theme.background), atol=0.02)
    assert to_rgb(theme.diverging(0.0)) != to_rgb(theme.diverging(1.0))


@pytest.mark.parametrize(("dark", "theme"), [(False, LIGHT), (True, DARK)])
def test_a_figure_has_the_colours_of_its_theme(dark: bool, theme: Theme) -> None:
    image = pixels(a_figure(dark).to_bytes("png"))
    background, foreground = (
        (255 * np.array(to_rgb(colour))).round() for colour in (theme.background, theme.foreground)
    )
    assert (image[0, 0] == background).all()
    for region in (image[:, :60], image[-60:]):  # the labels of the axes, which are made when it is drawn
        darkest = np.abs(region - foreground).sum(axis=2).min()
        assert darkest < 30
    assert not (image == np.array([255, 255, 255]) - background).all(axis=2).any()


def test_the_settings_of_the_process_are_neither_used_nor_changed() -> None:
    expected = a_figure().to_bytes("png")
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30.0, "savefig.dpi": 10}):
        before = dict(matplotlib.rcParams)
        assert a_figure().to_bytes("png") == expected
        assert dict(matplotlib.rcParams) == before


def test_threads_draw_in_their_own_themes() -> None:
    expected = {dark: a_figure(dark).to_bytes("png") for dark in (False, True)}
    drawn: list[bool] = []

    def draw(dark: bool) -> None:
        drawn.append(a_figure(dark).to_bytes("png") == expected[dark])

    threads = [threading.Thread(target=draw, args=(number % 2 == 1,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == [True] * 6


def test_dollar_signs_are_not_parsed_as_mathematics() -> None:
    prices, plain = (a_figure(text=text) for text in ("$5 or $6", "S5 or S6"))
    prices.canvas.draw()
    plain.canvas.draw()
    widths = [figure.axes[0].title.get_window_extent().width for figure in (prices, plain)]
    assert widths[0] == pytest.approx(widths[1], rel=0.1)


def test_a_logarithmic_axis_has_plain_numbers() -> None:
    with new_figure((3, 3)) as figure:
        axes = figure.add_subplot()
        axes.plot([0.01, 1000], [1, 1])
        axes.set_xscale("log")
        write_plain_numbers(axes.xaxis)
    figure.canvas.draw()
    assert {"0.01", "1", "10,000"} <= {label.get_text() for label in axes.get_xticklabels()}


def test_a_short_logarithmic_axis_has_plain_numbers() -> None:
    """Of less than a decade, on which matplotlib labels the minor ticks too."""
    with new_figure((3, 3)) as figure:
        axes = figure.add_subplot()
        axes.plot([0.35, 1.2], [20_000, 70_000])
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            write_plain_numbers(axis)
    figure.canvas.draw()
    across, up = (
        {label.get_text() for label in axis.get_ticklabels(minor=True)} for axis in (axes.xaxis, axes.yaxis)
    )
    assert "0.6" in across
    assert "40,000" in up
    assert not any("e" in label for label in across | up)


def test_pyplot_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    a_figure().to_bytes("png")


def test_a_notebook_shows_a_figure() -> None:
    assert a_figure()._repr_png_() == a_figure().to_bytes("png")


# Files.


@pytest.mark.parametrize(
    ("suffix", "start"), [("png", b"\x89PNG"), ("PNG", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")]
)
def test_the_suffix_selects_the_format(tmp_path: Path, suffix: str, start: bytes) -> None:
    output = tmp_path / f"picture.{suffix}"
    check_picture(output)
    save_figure(a_figure(), str(output))
    assert output.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.bmp", r"cannot draw .*a\.bmp: its suffix is \.bmp; use one of \.pdf, \.png, \.svg"),
        ("a", r"cannot draw .*a: its suffix is missing; use one of"),
        ("nowhere/a.png", r"cannot write .*nowhere/a\.png: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        save_figure(a_figure(), tmp_path / name)
    with pytest.raises(UserError, match=message):
        check_picture(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_figure_that_cannot_be_drawn_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("before")
    figure = a_figure()
    figure.set_size_inches(1e5, 1e5)
    with pytest.raises(ValueError, match="too large"):
        save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "before"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_missing_matplotlib_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for use in (a_figure, lambda: check_picture(Path("a.png"))):
        with pytest.raises(UserError, match=r"needs matplotlib: pip install 'vaswani\[plots\]'"):
            use()
