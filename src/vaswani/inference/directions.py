"""Models of both directions: from source to target, and from target to source."""

from __future__ import annotations

from pathlib import Path

from vaswani.errors import UserError
from vaswani.files.run_settings import read_settings


def check_other_direction(model: str | Path, reverse_model: str | Path, allow_mismatch: bool = False) -> None:
    """Raise a UserError if a reverse model is the model itself, or was trained on the same direction.

    Do not call it if languages or a prefix select the direction of a multilingual model, which can be both.

    Args:
        model: folder, or name on the Hub, of the model from source to target.
        reverse_model: the same for the model from target to source.
        allow_mismatch: accept models that were trained from and to columns of the same names.
    """
    if Path(reverse_model).resolve() == Path(model).resolve():
        raise UserError(
            f"the model and the reverse_model are both {model}, which reads one direction only; give a model "
            "from target to source, or, for a multilingual model, the languages or a reverse_source_prefix"
        )
    directions = [_trained_direction(each) for each in (model, reverse_model)]
    if directions[0] is not None and directions[0] == directions[1] and not allow_mismatch:
        source, target = directions[0]
        raise UserError(
            f"the model {model} and the reverse_model {reverse_model} were both trained from the column "
            f"{source!r} to {target!r}; give a reverse model that was trained with --source_field {target} "
            f"--target_field {source}, or --allow_mismatch if the columns held other languages"
        )


def _trained_direction(model: str | Path) -> tuple[str, str] | None:
    """Return the columns of sources and targets in a model's training; None if they name no direction.

    Two text files have the default columns in either direction.
    """
    settings = read_settings(Path(model))
    source, target = settings.get("source_field"), settings.get("target_field")
    if source is None or target is None or (source, target) == ("source", "target"):
        return None
    return source, target
