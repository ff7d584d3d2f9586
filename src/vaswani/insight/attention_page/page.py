"""A single HTML file that shows attention weights; it works offline and makes no requests."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vaswani.errors import UserError
from vaswani.files.line_files import LineWriter

if TYPE_CHECKING:
    from vaswani.insight.attention import AttentionMap

MAX_WEIGHTS = 2**24  # on a page; a browser then needs 32 MiB for them
STEPS = 65_535  # a weight is stored as a multiple of 1/65,535, in 2 bytes
FRAME = (
    '<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts" loading="lazy" '
    'style="width: 100%; height: 760px; border: 0"></iframe>'
)


@dataclass(frozen=True)
class AttentionPage:
    """A page that shows attention weights; a notebook shows it in its output."""

    title: str
    html: str

    def save(self, path: str | Path) -> None:
        """Write the page to a file, atomically.

        Raises:
            UserError: the file cannot be opened.
            RunError: the file cannot be written, for example because the disk is full.
        """
        with LineWriter(str(path)) as writer:
            writer.write(self.html)

    def _repr_html_(self) -> str:
        # A frame keeps the styles of the page and of the notebook apart.
        return FRAME.format(title=html.escape(self.title), page=html.escape(self.html))


def attention_page(maps: Sequence[AttentionMap], *, title: str = "Attention") -> AttentionPage:
    """Make a page of attention weights.

    Args:
        maps: attention of a model for one text or pair; the page shows each by tokens or by words.
        title: heading of the page.

    Returns:
        AttentionPage: the page, with weights rounded to 1/65,535.

    Raises:
        UserError: there are no maps, weights that are not finite, or more weights than a page holds.
    """
    _check(maps)
    data = {"maps": [_described(each) for each in maps]}
    parts = {
        "title": html.escape(title),
        "style": _part("viewer.css"),
        "script": _part("viewer.js"),
        "data": json.dumps(data).replace("<", "\\u003c"),  # so that no text ends the script element
    }
    return AttentionPage(title, re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("viewer.html")))


def _check(maps: Sequence[AttentionMap]) -> None:
    if not maps:
        raise UserError("there is no attention to show: the list of maps is empty")
    for each in maps:
        if not each.weights.isfinite().all():
            raise UserError(f"the weights of {each.kind} attention are not finite")
    count = sum(each.weights.numel() for each in maps)
    if count > MAX_WEIGHTS:
        raise UserError(
            f"a page holds at most {MAX_WEIGHTS:,} weights, and these texts give {count:,}; "
            "give shorter texts"
        )


def _described(of_tokens: AttentionMap) -> dict[str, Any]:
    """Return a map's data for the viewer: by tokens and, if they differ, by words."""
    of_words = of_tokens.words()
    differ = (of_words.queries, of_words.keys) != (of_tokens.queries, of_tokens.keys)
    return {
        "kind": of_tokens.kind,
        "tokens": _packed(of_tokens),
        "words": _packed(of_words) if differ else None,
    }


def _packed(each: AttentionMap) -> dict[str, Any]:
    """Return texts, shape [layers, heads, Q, K], and weights: little-endian uint16, deflated, in base64."""
    steps = (each.weights.double() * STEPS).round().clamp(0, STEPS).numpy().astype("<u2")
    return {
        "queries": each.queries,
        "keys": each.keys,
        "shape": steps.shape,
        "weights": base64.b64encode(zlib.compress(np.ascontiguousarray(steps).tobytes())).decode(),
    }


@cache
def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").rstrip()
