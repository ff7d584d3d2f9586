"""Parse the cells of labelled rows: a text or its words, and the labels of each task.

A cell is text, a number, true or false, a list of these, or None.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.sources.reading import shown

TASKS = ("classification", "multi_label", "regression", "tagging")


def read_text(cell: Any, task: str) -> str | list[str] | None:
    """Return the text of a cell or, for tagging, its words, unchanged.

    Words are a list, a JSON list of texts, or a text of words separated by white space.

    Returns:
        None if there is no text.

    Raises:
        ValueError: the cell is a list and the task takes texts, or the list holds something other than words.
    """
    if task == "tagging":
        return _words(cell)
    if isinstance(cell, list):
        raise ValueError(f"has a list, {shown(cell)}, where task={task} takes a text")
    return cell if isinstance(cell, str) else None


def read_label(cell: Any, task: str, separator: str = ",") -> str | list[str] | float | None:
    """Return the label of a cell: a name, a list of names (`multi_label`, `tagging`) or a number.

    Args:
        cell: from a file.
        task: one of `TASKS`.
        separator: separates labels in one text, unless the text is a JSON list.

    Returns:
        None for null and NaN.

    Raises:
        ValueError: the cell is not a label of this task. The message is the rest of a sentence that begins
            with "row 1 of FILE".
    """
    if cell is None or cell != cell:
        return None
    readers: dict[str, Callable[[Any], Any]] = {
        "classification": _name,
        "multi_label": lambda cell: _several(cell, separator),
        "regression": _number,
        "tagging": _tags,
    }
    return readers[task](cell)


def _name(cell: Any) -> str:
    """Return one label from text, a whole number, true or false."""
    if isinstance(cell, str):
        return cell.strip()
    if isinstance(cell, bool):
        return json.dumps(cell)
    if isinstance(cell, int | float) and math.isfinite(cell) and cell == int(cell):
        return str(int(cell))
    if isinstance(cell, list):
        raise ValueError(f"has a list, {shown(cell)}, where one label is expected; see task")
    raise ValueError(f"has {shown(cell)} where a label is expected; see task and label_field")


def _several(cell: Any, separator: str) -> list[str]:
    """Return the distinct labels in order of first occurrence."""
    is_text = isinstance(cell, str)
    if is_text:
        cell = _listed(cell, default=cell.split(separator))
    items = cell if isinstance(cell, list) else [cell]
    names = [_name(item) for item in items]
    may_be_numbers = is_text or not any(isinstance(item, str) for item in items)
    has_numbers = may_be_numbers and set(names) <= {"0", "1"} and len(set(names)) < len(names)
    if has_numbers or (len(names) > 1 and set(names) <= {"true", "false"}):
        raise ValueError(f"has {shown(cell)}, a 0 or 1 for each label; give the names of a row's labels")
    return [name for name in dict.fromkeys(names) if name]


def _listed(text: str, default: list[Any]) -> list[Any]:
    """Return the items of a JSON list, or `default`; refuse a list as Python prints it."""
    try:
        value = json.loads(text)
    except ValueError:
        if re.fullmatch(r"\[\s*(['\"]).*['\"]\s*\]", text.strip(), re.DOTALL):
            raise ValueError(
                f'has {shown(text)}, a list as Python prints it; write it as JSON: ["a", "b"]'
            ) from None
        return default
    return value if isinstance(value, list) else default


def _number(cell: Any) -> float | None:
    try:
        number = float(cell) if not isinstance(cell, bool) else math.inf
    except (TypeError, ValueError):
        number = math.inf if cell else math.nan  # an empty cell is missing
    if math.isinf(number):
        raise ValueError(f"has {shown(cell)} where task=regression takes a number")
    return None if math.isnan(number) else number


def _tags(cell: Any) -> list[str] | None:
    """Return a sequence of tags."""
    if isinstance(cell, list) and IGNORED_LABEL in cell:
        raise ValueError(
            f"has the tag {IGNORED_LABEL}, which marks words without a tag; every word needs one, such as O"
        )
    if isinstance(cell, str):
        cell = _listed(cell, default=cell.split())
    return [_name(item) for item in cell] if isinstance(cell, list) else None


def _words(cell: Any) -> list[str] | None:
    """Return a list of words; in a list, words keep their white space and whole numbers are words too."""
    if isinstance(cell, str):
        listed = _listed(cell, default=[])
        return listed if listed and all(isinstance(word, str) for word in listed) else cell.split()
    return [_word(item) for item in cell] if isinstance(cell, list) else None


def _word(item: Any) -> str:
    if isinstance(item, str):
        return item
    try:
        return _name(item)
    except ValueError:
        raise ValueError(
            f"has {shown(item)} where a word is expected; see text_field, and write words as texts"
        ) from None
