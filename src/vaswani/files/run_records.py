"""Read what a run recorded in its folder: files that users may have edited, or that are not there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from vaswani.errors import UserError, one_line
from vaswani.files.run_files import SETTINGS_FILE, is_checkpoint
from vaswani.files.yaml_files import load_yaml, shown


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run, flat, from its folder or a checkpoint's; empty if not recorded.

    Raises:
        UserError: the file cannot be read.
    """
    return read_record(settings_file(folder), load_yaml)


def settings_file(folder: Path) -> Path:
    """Return the file with the settings of a run, whose folder or checkpoint is given; it may not exist."""
    of_run = is_checkpoint(folder) and not (folder / SETTINGS_FILE).exists()
    return (folder.resolve().parent if of_run else folder) / SETTINGS_FILE


def read_record(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """Return the names and values that a file holds; empty if there is no file.

    Args:
        path: the file, which may not exist.
        parse: parses its text, such as `json.loads`.

    Raises:
        UserError: the file cannot be read, or holds something else.
    """
    values = parsed(path, parse)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold names and values, not {shown(values)}; correct it")
    return values


def parsed(path: Path, parse: Callable[[str], Any]) -> Any:
    """Return the parsed contents of a file; None if there is no file.

    Raises:
        UserError: the file cannot be read.
    """
    if not path.is_file():
        return None
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); correct it, or move it away") from error
