r"""Read tasks from YAML files. The keys are the fields of `Task`, `examples_file` and `test_file`.

description: Say whether a review is positive or negative.
prompt: "Review: {text}\nSentiment:"
answer: " {sentiment}"
choices: [" positive", " negative"]
examples_file: train.jsonl   # JSON Lines, relative to this file
test:
  - {text: A joy from start to end., sentiment: positive}
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaswani.data.sources.records import read_records
from vaswani.errors import UserError
from vaswani.files.named_configs import check_command, find_config
from vaswani.files.yaml_files import read_mapping, shown
from vaswani.inference.prompt.task import Task


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) and all(map(_is_text, row)) for row in value)


_TEXT = "a text", _is_text
_TEXTS = "a list of texts", _are_texts
_ROWS = "a list of rows such as {text: A joy., label: positive}", _are_rows
_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "description": _TEXT,
    "prompt": _TEXT,
    "answer": _TEXT,
    "label": _TEXT,
    "choices": (f"one template or {_TEXTS[0]}", lambda value: _is_text(value) or _are_texts(value)),
    "normalize": _TEXT,
    "answer_context": _TEXT,
    "generate": ("true or false", lambda value: isinstance(value, bool)),
    "max_new_tokens": ("a whole number", lambda value: type(value) is int),
    "stop": _TEXTS,
    "separator": _TEXT,
    "examples": _ROWS,
    "examples_file": _TEXT,
    "test": _ROWS,
    "test_file": _TEXT,
}


def load_task(path: str | Path) -> Task:
    """Read a task file, given by its path or by a name that ships with the package.

    Raises:
        UserError: the file or a file that it names cannot be read, a key is unknown, a value has a wrong
            type, rows are given twice, or the task is invalid (see `Task`).
    """
    path = find_config(path, "task file")
    check_command(path, "prompt")
    values = read_mapping(path, "task file")
    try:
        for key, value in values.items():
            _check(str(key), value)
        row_files = [_read_row_file(values, rows, path.parent) for rows in ("examples", "test")]
        if "prompt" not in values:
            raise UserError("prompt is missing: the template of a question")
        return Task(**{"test": [], **values}, files=[path, *filter(None, row_files)])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def _check(key: str, value: Any) -> None:
    if key not in _KEYS:
        nearest = difflib.get_close_matches(key, _KEYS, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(_KEYS)}"
        raise UserError(f"unknown key {key!r}; {hint}")
    expected, is_right = _KEYS[key]
    if not is_right(value):
        raise UserError(f"{key}: expected {expected}, got {shown(value)}")


def _read_row_file(values: dict[str, Any], rows: str, folder: Path) -> Path | None:
    """Replace `examples_file` or `test_file` by the rows of the file; return the file."""
    name = values.pop(f"{rows}_file", None)
    if name is None:
        return None
    if rows in values:
        raise UserError(f"{rows} and {rows}_file were both given; give one of them")
    values[rows] = [record.row for record in read_records(folder / name)]
    return folder / name
