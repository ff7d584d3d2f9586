"""Convert values of configuration files and flags to the types of their fields."""

import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

from vaswani.files.yaml_files import shown

TRUE, FALSE = ("true", "yes", "t", "y", "1"), ("false", "no", "f", "n", "0")


def typed(hint: Any, value: Any) -> Any:
    """Return the value as a type that the hint of a field allows.

    A single value stands for a list of one. A text is read as the type asks: "1e-3" is a float, "no" a bool.

    Raises:
        ValueError: the field does not take such a value; the message says what it takes.
    """
    kinds = kinds_of(hint)
    if value is None:
        if type(None) not in kinds:
            raise ValueError("null is not possible; leave the key out for the default")
        return None
    if isinstance(value, dict):
        if not any(dict in (kind, typing.get_origin(kind)) for kind in kinds):
            raise ValueError(f"expected one value, got {shown(value)}")
        return value
    items = items_of(kinds)
    if isinstance(value, list):
        if not items:
            raise ValueError(f"expected one value, got {shown(value)}")
        if any(isinstance(item, dict | list) for item in value):
            raise ValueError(f"expected a list of values, got {shown(value)}")
        return [_scalar(items, item) for item in value]
    takes_text = str in kinds and items == (str,)
    return [_scalar(items, value)] if items and not takes_text else _scalar(kinds, value)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """The types that a hint allows: those of a union, or itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def items_of(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of the items if one of these types is a list; otherwise empty."""
    return next((typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is list), ())


def _scalar(kinds: tuple[Any, ...], value: Any) -> Any:
    """Convert a value that is neither a list nor a mapping."""
    if isinstance(value, bool) and (bool in kinds or Literal[value] in kinds):
        return value
    text = "no" if value is False else str(value)  # YAML reads a bare `no` as false
    if choices := choices_of(kinds):
        if text not in choices:
            raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(map(repr, choices))})")
        return text
    if bool in kinds:
        if text.lower() not in (*TRUE, *FALSE):
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() in TRUE
    for kind in (int, float, Path, str):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise ValueError(f"invalid {kind.__name__} value: {text!r}") from None
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds if kind is not type(None))
    raise ValueError(f"invalid {names} value: {text!r}")


def choices_of(kinds: tuple[Any, ...]) -> list[str]:
    """The allowed values of an enumeration or of literals alone; empty for other types."""
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return [choice.value for choice in kind]
        if typing.get_origin(kind) is Literal and str not in kinds:
            return list(typing.get_args(kind))
    return []
