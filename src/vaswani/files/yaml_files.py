"""Read YAML with plain values only and without duplicate keys."""

import reprlib
from typing import Any

import yaml

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
