"""Find installed fonts that have the characters of a text."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable
from contextlib import suppress

logger = logging.getLogger(__name__)

FIRST = "DejaVu Sans"  # comes with matplotlib
MAX_SHOWN = 5  # characters in a warning
REGULAR = (400, "normal", "regular", "book")  # weights
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")  # categories of Unicode
RIGHT_TO_LEFT = ("R", "AL")  # bidirectional classes of Unicode
# Parts of the names of fonts with East Asian characters. An ideograph has several national forms.
EAST_ASIAN = {"HIRAGANA": "CJK JP", "KATAKANA": "CJK JP", "HANGUL": "CJK KR", "CJK": "CJK SC"}


def families_for(texts: Iterable[str]) -> list[str]:
    """Return names of installed fonts that together have all characters of some texts.

    Warns of characters that no installed font has, with what to install, and of right-to-left text that the
    installed matplotlib cannot lay out.
    """
    characters = {character for text in texts for character in text}
    _check_direction(characters)
    visible = {each for each in characters if unicodedata.category(each) not in INVISIBLE}
    families, missing = _cover(visible)
    if missing and _add_new_fonts():
        families, missing = _cover(visible)
    if missing:
        _warn_of_missing(missing)
    return families


def _cover(characters: set[str]) -> tuple[list[str], set[str]]:
    """Return fonts for the characters, and the characters that no font has."""
    from matplotlib.font_manager import fontManager

    families, missing = [FIRST], characters - _found(FIRST, characters)
    upright = (font for font in fontManager.ttflist if font.weight in REGULAR and font.style == "normal")
    for family in _likeliest_first({font.name for font in upright}, missing):
        if not missing:
            break
        if found := _found(family, missing):
            families.append(family)
            missing = missing - found
    return families, missing


def _found(family: str, characters: set[str]) -> set[str]:
    """Return the characters that a font has."""
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    font = get_font(fontManager.findfont(FontProperties(family=[family])))
    return {character for character in characters if font.get_char_index(ord(character))}


def _likeliest_first(families: set[str], characters: set[str]) -> list[str]:
    """Sort fonts: those named after the script of a character, then sans-serif ones, then all others."""
    scripts = {_script(character) for character in characters}
    east_asian = [name for script, name in EAST_ASIAN.items() if script in scripts]
    names = {*east_asian[:1], *(script.capitalize() for script in scripts - EAST_ASIAN.keys())}

    def order(family: str) -> tuple[bool, bool, int, str]:
        named = any(name in family for name in names)
        return not named, not family.startswith("Noto Sans"), len(family), family

    real = (family for family in families if not family.replace(" ", "").startswith((".Last", "LastResort")))
    return sorted(real, key=order)


def _script(character: str) -> str:
    """Return the first word of a character's name, which is the script of a letter: ARABIC, CJK."""
    return unicodedata.name(character, "UNNAMED").split()[0]


def _add_new_fonts() -> bool:
    """Add fonts installed since matplotlib listed them; return whether it found any."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {str(font.fname) for font in fontManager.ttflist}
    new = [path for path in findSystemFonts() if path not in known]
    for path in new:
        with suppress(OSError, RuntimeError):  # damaged, or without outlines
            fontManager.addfont(path)
    return bool(new)


def _warn_of_missing(characters: set[str]) -> None:
    shown = [f"{character} (U+{ord(character):04X})" for character in sorted(characters)[:MAX_SHOWN]]
    more = len(characters) - len(shown)
    logger.warning(
        "no installed font has %s%s; install one, such as Noto (on Debian and Ubuntu: apt install "
        "fonts-noto-core fonts-noto-cjk fonts-symbola)",
        ", ".join(shown),
        f" and {more} more characters" if more else "",
    )


def _check_direction(characters: set[str]) -> None:
    """Warn of text from right to left with a matplotlib that has no layout of complex text."""
    from matplotlib import __version__, ft2font

    backwards = any(unicodedata.bidirectional(character) in RIGHT_TO_LEFT for character in characters)
    if backwards and not hasattr(ft2font, "__libraqm_version__"):
        logger.warning(
            "matplotlib %s writes Arabic and Hebrew from left to right, in separate letters; install 3.11 or "
            "newer, which needs Python 3.11",
            __version__,
        )
