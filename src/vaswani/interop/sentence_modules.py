"""The modules of sentence-transformers that follow a model in its folder: pooling, normalization ..."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

from vaswani.errors import UserError

MODULES = "modules.json"
SETTINGS_OF_MODEL, SETTINGS_OF_VECTORS = "sentence_bert_config.json", "config_sentence_transformers.json"


def sentence_modules(folder: Path) -> list[tuple[str, str]]:
    """Return the kind of each module, such as "Pooling", and the name of its folder in `folder`.

    Returns:
        The modules in their order, the model itself ("Transformer") first; none without a `modules.json`.

    Raises:
        UserError: the list cannot be read.
    """
    path = folder / MODULES
    if not path.is_file():
        return []
    try:
        modules: Any = json.loads(path.read_text(encoding="utf-8"))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} lists no modules of sentence-transformers; correct or remove it") from error


def copy_sentence_modules(folder: Path, output: Path) -> tuple[str, ...]:
    """Copy the list of modules, their folders and their settings; return the kinds of those after the model.

    Args:
        folder: folder of a model; nothing is copied without a `modules.json`.
        output: the folder of its export.

    Returns:
        Names such as "Pooling" and "Normalize"; empty without modules.

    Raises:
        UserError: the list cannot be read, or names a folder that is not inside `folder`.
    """
    following = sentence_modules(folder)[1:]
    for _, place in following:
        given = folder / place
        if not given.resolve().is_relative_to(folder.resolve()):
            raise UserError(
                f"{folder / MODULES} names {place}, which is outside its folder; correct or remove it"
            )
        if place and given.is_dir():
            copytree(given, output / place)
    for name in (MODULES, SETTINGS_OF_MODEL, SETTINGS_OF_VECTORS):
        if (folder / name).is_file():
            copyfile(folder / name, output / name)
    return tuple(kind for kind, _ in following)
