"""Tables of options and fields, in Markdown."""

import types
import typing
from collections.abc import Iterable
from typing import Any

from vaswani.bounds import Bounds


def table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table with a row for each option; cells are Markdown."""
    names = list(heading)
    lines = [names, ["---"] * len(names), *rows]
    return "".join("| " + " | ".join(map(_cell, line)) + " |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def as_text(words: str) -> str:
    """Escape plain words for Markdown."""
    return "".join(f"\\{letter}" if letter in "\\*_<>[]`" else letter for letter in words)


def type_name(annotation: Any) -> str:
    """Return a readable name of a type: `int`, `texts`, `post or pre`; without `None`."""
    if isinstance(annotation, str):
        return annotation
    arguments = [each for each in typing.get_args(annotation) if each is not type(None)]
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{each}`" for each in arguments)
    if origin in (typing.Union, types.UnionType):
        names = list(dict.fromkeys(map(type_name, arguments)))
        return "float" if set(names) == {"int", "float"} else " or ".join(names)
    if origin is typing.Annotated:
        return type_name(arguments[0])
    if origin in (list, tuple):
        return f"list of {type_name(arguments[0])}" if arguments else "list"
    names = {"str": "text", "bool": "true or false", "Path": "path"}
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, name)


def limits(bounds: Bounds) -> str:
    """Return the numbers that an option accepts, as ` ≥ 0, < 1`; empty if all."""
    default = Bounds()
    signs = (("≥", "at_least"), (">", "above"), ("<", "below"), ("≤", "at_most"))
    shown = [
        f"{sign} {getattr(bounds, name):,}"
        for sign, name in signs
        if getattr(bounds, name) != getattr(default, name)
    ]
    return " " + ", ".join([*shown, *(f"or {number}" for number in bounds.also)]) if shown else ""


def shown_default(value: Any) -> str:
    """Return a default as a user would type it; empty if there is none."""
    if isinstance(value, list | tuple):
        return f"`{' '.join(map(str, value))}`" if value else ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return "" if value in (None, "") else f"`{value}`"
