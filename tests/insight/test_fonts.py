"""Fonts by the characters of a text, with small fonts made here, whatever others are installed."""

import logging
from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager, ft2font
from matplotlib.font_manager import fontManager

from vaswani.insight.figures import new_figure
from vaswani.insight.fonts import families_for


def write_font(path: Path, family: str, characters: str) -> None:
    """A font whose characters are filled squares."""
    names = {ord(character): f"u{ord(character):04X}" for character in characters}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    builder.setupGlyf(dict.fromkeys([".notdef", *names.values()], square))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """A folder of fonts, the only ones that matplotlib knows besides its own."""
    own = [font for font in fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(fontManager, "ttflist", own)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path) for path in tmp_path.iterdir()])
    return tmp_path


def add(folder: Path, family: str, characters: str) -> None:
    write_font(folder / f"{family}.ttf", family, characters)
    fontManager.addfont(folder / f"{family}.ttf")


def test_latin_greek_and_arabic_need_no_other_font(installed, caplog):
    assert families_for(["Grüße, Γειά σου", "سلام", "a\tb\n\u200d"]) == ["DejaVu Sans"]
    assert not caplog.records


def test_further_fonts_cover_the_missing_characters(installed):
    add(installed, "Toy Ethiopic", "አማ")
    add(installed, "Toy Letters", "abcአ中")
    assert families_for(["a አማ"]) == ["DejaVu Sans", "Toy Ethiopic"]
    assert families_for(["አ 中"]) == ["DejaVu Sans", "Toy Ethiopic", "Toy Letters"]


@pytest.mark.parametrize(
    ("text", "font"),
    [("漢字", "Noto Sans CJK SC"), ("漢字かな", "Noto Sans CJK JP"), ("漢字한", "Noto Sans CJK KR")],
)
def test_the_font_of_ideographs_fits_the_language(installed, text, font):
    for region in ("JP", "KR", "SC"):
        add(installed, f"Noto Sans CJK {region}", "漢字かな한")
        add(installed, f"Noto Serif CJK {region}", "漢字かな한")
    assert families_for([text]) == ["DejaVu Sans", font]


def test_characters_without_a_font_are_logged_in_one_line(installed, caplog):
    caplog.set_level(logging.WARNING)
    assert families_for(["ab አማ", "𓀀𓀁𓀂𓀃𓀄"]) == ["DejaVu Sans"]
    (record,) = caplog.records
    assert record.getMessage() == (
        "no installed font has ማ (U+121B), አ (U+12A0), 𓀀 (U+13000), 𓀁 (U+13001), 𓀂 (U+13002) and 2 more "
        "characters; install one, such as Noto (on Debian and Ubuntu: apt install fonts-noto-core "
        "fonts-noto-cjk fonts-symbola)"
    )


def test_a_newly_installed_font_is_found(installed, caplog):
    assert families_for(["አ"]) == ["DejaVu Sans"]
    write_font(installed / "new.ttf", "Toy New", "አ")
    caplog.clear()
    assert families_for(["አ"]) == ["DejaVu Sans", "Toy New"]
    assert not caplog.records


def test_a_damaged_font_is_left_out(installed):
    (installed / "damaged.ttf").write_bytes(b"no font")
    assert families_for(["አ"]) == ["DejaVu Sans"]


def test_a_figure_is_drawn_with_the_fonts_of_its_texts(installed, recwarn):
    add(installed, "Toy Ethiopic", "አ")
    drawn = {}
    for texts in (["አ"], []):
        with new_figure((2, 1), texts=texts) as figure:
            figure.text(0.2, 0.2, "አ", fontsize=40)
        drawn[bool(texts)] = figure.to_bytes("png")
    assert drawn[True] != drawn[False]
    assert not recwarn.list


@pytest.mark.parametrize(("text", "told"), [("שלום", 1), ("سلام", 1), ("hello", 0)])
def test_a_matplotlib_that_cannot_write_from_right_to_left_is_named(
    installed, monkeypatch, caplog, text, told
):
    families_for([text])
    assert not caplog.records
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    families_for([text])
    assert ["install 3.11 or newer, which needs Python 3.11" in line for line in caplog.messages] == [
        True
    ] * told
