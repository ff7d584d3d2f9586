"""Read YAML with plain values only and without duplicate keys."""

import reprlib
from pathlib import Path
from typing import Any

import yaml

from vaswani.errors import UserError, one_line
from vaswani.files.json_files import parse_json

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring = 2, 4, 4, 80


def load_yaml(text: str) -> Any:
    """Read YAML into plain values.

    Raises:
        yaml.YAMLError: the text is not YAML, is nested too deeply, or repeats a key (PyYAML would keep the
            last value).
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error


def read_mapping(path: Path, what: str, remedy: str = "") -> dict[str, Any]:
    """Read a file of `key: value` lines, in YAML or, if its name ends in .json, in JSON.

    Args:
        path: the file; it may begin with a byte-order mark, and an empty file holds no keys.
        what: what the file is, for messages.
        remedy: advice for messages about a damaged file.

    Raises:
        UserError: the file is missing or cannot be read, or holds something else.
    """
    advice = f"; {remedy}" if remedy else ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = parse_json(text) if path.suffix == ".json" else load_yaml(text)
    except FileNotFoundError:
        raise UserError(f"{what} {path} does not exist") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{what} {path} cannot be read: {one_line(error)}{advice}") from error
    if not isinstance(values, dict | None):
        raise UserError(f"{what} {path} must hold `key: value` lines, not {shown(values)}{advice}")
    return values or {}


def shown(value: Any) -> str:
    """Return the beginning of a value for a message: a few aliases can expand to gigabytes."""
    return _SHORT.repr(value)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which rejects duplicate keys."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise yaml.YAMLError(f"{key.value} is given twice, in lines {lines[name]} and {line}")
                lines[name] = line
        return node
