"""Read JSON files that may be damaged, and write valid JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaswani.errors import RunError, UserError

LARGEST_FILE = 1 << 28  # bytes; ten times the largest tokenizers on the Hub


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice."""


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise RepeatedKeyError(f"an object gives the key {repeated!r} more than once")
    return value


# Parses JSON; raises `RepeatedKeyError` for a repeated key, of which `json.loads` keeps the last value.
parse_json: Callable[[str], Any] = json.JSONDecoder(object_pairs_hook=_without_repeated_keys).decode


def read_object(path: Path, remedy: str = "use another checkpoint") -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: the file.
        remedy: advice for the message if it is damaged.

    Raises:
        UserError: the file is missing, a folder or unreadable, or does not hold an object.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
            raise UserError(f"{path} is not a regular file; {remedy}")
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"{path} is larger than {LARGEST_FILE:,} bytes; {remedy}")
        value = json.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(unreadable(path, error)) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged or half-written ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise UserError(
            f"{path} holds a JSON value of type {type(value).__name__}; expected an object: {remedy}"
        )
    return value


def unreadable(path: Path, error: OSError) -> str:
    """Return the message for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return f"{path} is missing; the checkpoint may be half-written: use another one"
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return f"{path} is a folder; expected a file: use another checkpoint"
    reason = error.strerror or str(error)
    return f"{path} cannot be read ({reason}); check its permissions, or use another checkpoint"


def finite_json(value: Any, **options: Any) -> str:
    """Return a value as standard JSON, which has no NaN and infinity.

    Raises:
        RunError: the value holds NaN or infinity.
    """
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError as error:
        where = _first_non_finite(value)
        raise RunError(
            f"a result is not a finite number: {where}; check the model's weights and its dtype"
        ) from error


def without_non_finite(value: Any) -> Any:
    """Return a JSON value with null in place of NaN and infinity."""
    if isinstance(value, dict):
        return {key: without_non_finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _first_non_finite(value: Any, name: str = "") -> str:
    """Return the place and value of the first NaN or infinity in a JSON value; empty if there is none."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{name or 'value'}={value}"
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else ()
    )
    found = (_first_non_finite(part, f"{name}.{key}".lstrip(".")) for key, part in parts)
    return next(filter(None, found), "")
