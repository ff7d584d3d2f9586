"""Read the settings of a run from its folder, where users may have edited them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from vaswani.errors import UserError, one_line
from vaswani.files.run_files import SETTINGS_FILE, is_checkpoint
from vaswani.files.yaml_files import load_yaml, shown

REPAIR = "correct it, or move it away"  # advice for a damaged record of a run


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run, flat, from its folder or a checkpoint's; empty if not recorded.

    Raises:
        UserError: the file cannot be read, or holds no settings.
    """
    if not folder.is_dir() or not (path := settings_file(folder)).is_file():
        return {}
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}); {REPAIR}") from error
    if not isinstance(values, dict | None):
        raise UserError(f"{path} must hold names and values, not {shown(values)}; {REPAIR}")
    return values or {}


def settings_file(folder: Path) -> Path:
    """Return the file with the settings of a run, whose folder or checkpoint is given; it may not exist."""
    of_run = is_checkpoint(folder) and not (folder / SETTINGS_FILE).exists()
    return (folder.resolve().parent if of_run else folder) / SETTINGS_FILE
