"""Check the name of a model (a folder, or a repository on the Hub) before any library is imported."""

import os

from vaswani.errors import UserError


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
        raise UserError(f"model folder {name} does not exist; give the folder that a training wrote")
