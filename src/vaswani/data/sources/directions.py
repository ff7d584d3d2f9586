"""Directions of a multilingual corpus: a row of a table gives a pair of texts for each pair of columns.

A tag before each source names the column of its target (Johnson et al., 2017, arXiv:1611.04558).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

from vaswani.data.sources.reading import Row
from vaswani.errors import UserError


@dataclass(frozen=True)
class Direction:
    """A pair of columns of a table: the sources, and their targets."""

    source: str
    target: str

    @property
    def tag(self) -> str:
        """The tag of the targets; that of a nested column has its last name (translation.de: >>de<<)."""
        return f">>{self.target.rpartition('.')[2]}<<"

    def __str__(self) -> str:
        return (":" if "-" in self.source + self.target else "-").join((self.source, self.target))


def parse_directions(items: Sequence[str]) -> list[Direction]:
    """Return the directions that are written as in en-de or, if the names have hyphens, as in en:zh-CN.

    Raises:
        UserError: an item names no two columns or one that is given before, or two columns have one tag.
    """
    found: list[Direction] = []
    for item in items:
        names = [name.strip() for name in item.split(":" if ":" in item else "-")]
        if len(names) != 2 or not all(names):
            raise UserError(
                f"directions={item!r}: expected the columns of sources and of targets, such as en-de or, if "
                "a name has a hyphen, en:zh-CN"
            )
        direction = Direction(*names)
        if direction.source == direction.target:
            raise UserError(f"directions={item} has the same column twice; give two columns, such as en-de")
        if direction in found:
            raise UserError(f"directions={item} is given more than once; give each direction once")
        for other in found:
            if other.tag == direction.tag and other.target != direction.target:
                raise UserError(
                    f"directions={item}: the columns {other.target} and {direction.target} have the same "
                    f"tag {direction.tag}; rename one of them"
                )
        found.append(direction)
    return found


def columns_of(directions: Iterable[Direction]) -> list[str]:
    """Return the columns of all directions, each once."""
    return list(dict.fromkeys(name for each in directions for name in (each.source, each.target)))


def tags_of(directions: Iterable[Direction]) -> list[str]:
    """Return the tags of all directions, each once."""
    return list(dict.fromkeys(each.tag for each in directions))


def examples_of(rows: Iterable[Row], directions: Sequence[Direction]) -> Iterator[Row]:
    """Yield the tagged source, the target and the direction for each direction of each row.

    Args:
        rows: cells of `columns_of(directions)`; None for an unparsable row, which is one for each direction.
        directions: the directions.
    """
    columns = columns_of(directions)
    named = [(each.source, each.target, each.tag, str(each)) for each in directions]
    for row in rows:
        if row is None:
            yield from repeat(None, len(directions))
            continue
        cells = dict(zip(columns, row, strict=True))
        for source, target, tag, name in named:
            yield _tagged(cells[source], tag), cells[target], name


def _tagged(source: object, tag: str) -> object:
    """Return a text with its tag; anything else unchanged, so that it is left out and counted."""
    return f"{tag} {source}" if isinstance(source, str) and source.strip() else source
