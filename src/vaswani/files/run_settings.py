"""Read the settings of a run from its folder, where users may have edited them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaswani.files.run_files import SETTINGS_FILE, is_checkpoint
from vaswani.files.yaml_files import read_mapping

REPAIR = "correct it, or move it away"  # advice for a damaged record of a run


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a run, flat, from its folder or a checkpoint's; empty if not recorded.

    Raises:
        UserError: the file cannot be read, or holds no settings.
    """
    if not folder.is_dir() or not (path := settings_file(folder)).is_file():
        return {}
    return read_mapping(path, "settings file", REPAIR)


def settings_file(folder: Path) -> Path:
    """Return the file with the settings of a run, whose folder or checkpoint is given; it may not exist."""
    of_run = is_checkpoint(folder) and not (folder / SETTINGS_FILE).exists()
    return (folder.resolve().parent if of_run else folder) / SETTINGS_FILE
