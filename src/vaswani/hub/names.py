"""Check the name of a model (a folder, or a repository on the Hub) before any library is imported."""

import difflib
import os

from vaswani.errors import UserError, listing


def check_model_name(name: str) -> None:
    """Raise `UserError` if a model is neither an existing path nor a possible name on the Hub."""
    try:
        os.stat(name)
    except (FileNotFoundError, NotADirectoryError):
        check_hub_name(name)
    except (OSError, ValueError):
        return  # opening the model will report the error


def check_hub_name(name: str) -> None:
    """Raise `UserError` if a model that is not a local folder cannot be a name on the Hub either."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or name.endswith("/"):
        others = similar_folders(name)
        raise UserError(f"model folder {name} does not exist{others}; give the folder that a training wrote")


def similar_folders(name: str) -> str:
    """Return, in brackets after a space, the folders beside a missing one whose names are similar, or ""."""
    parent, last = os.path.split(os.path.normpath(name))
    try:
        entries = os.scandir(parent or ".")
        folders = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return ""
    # In a folder that was named, any other model may be meant; in the current folder, only a misspelled one.
    near = difflib.get_close_matches(last, folders, n=3, cutoff=0.6) or (folders[:3] if parent else [])
    return f" ({parent or 'the current folder'} holds {listing(near)})" if near else ""
