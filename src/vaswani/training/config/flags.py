"""Flags of a training's command line. Imports no library, so that a wrong flag is refused at once."""

import difflib
from collections.abc import Collection, Mapping, Sequence

from vaswani.errors import UserError

Flag = tuple[str, str, list[str]]  # as written, the name of its field, the values that follow it


def split_flags(arguments: Sequence[str]) -> list[Flag]:
    """Return the flags of a command line, each written as `--name`, `--name value ...` or `--name=value`."""
    flags: list[Flag] = []
    takes_more = False
    for argument in arguments:
        if argument.startswith("--"):
            flag, *texts = argument.split("=", 1)
            flags.append((flag, flag.removeprefix("--").replace("-", "_"), texts))
            takes_more = not texts
        elif takes_more:
            flags[-1][2].append(argument)
        else:
            raise unexpected(argument)
    return flags


def is_none(texts: Sequence[str]) -> bool:
    """Return True if the values of a flag set its field to None, as `--name none` does."""
    return len(texts) == 1 and texts[0].lower() == "none"


def first_values(flags: Sequence[Flag]) -> dict[str, str | None]:
    """Return the first value of each flag that has one, by the name of its field."""
    return {name: None if is_none(texts) else texts[0] for _, name, texts in flags if texts}


def unexpected(argument: str) -> UserError:
    """Return the error for an argument that belongs to no flag."""
    return UserError(f"unexpected argument {argument!r}; flags are such as --learning_rate 1e-3")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise `UserError` unless a field that selects the configuration class has one of these values."""
    if value in tuple(choices):
        return
    nearest = _nearest(str(value), choices)
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    raise UserError(f"{name}={value} is unknown; choose one of {', '.join(choices)}{hint}")


def check_name(
    name: str,
    fields: Collection[str],
    without_effect: Mapping[str, str],
    problem: str,
    command: str,
    prefix: str = "",
) -> None:
    """Raise `UserError` unless a field of this name exists and has an effect.

    Args:
        name: name of the field.
        fields: names of all fields.
        without_effect: names of fields that have no effect, and why.
        problem: beginning of the message.
        command: the command whose help lists the fields.
        prefix: "--" if the field was given as a flag.
    """
    if name in without_effect:
        raise UserError(f"{name} has no effect here: {without_effect[name]}")
    if name not in fields:
        nearest = _nearest(name, fields)
        hint = f"did you mean '{prefix}{nearest}'?" if nearest else f"see vaswani {command} --help"
        raise UserError(f"{problem}; {hint}")


def _nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name that contains this one from the start of a word, or else the most similar one."""
    longer = [each for each in known if len(name) > 1 and f"_{name}" in f"_{each}"]
    similar = difflib.get_close_matches
    found = similar(name, longer, n=1, cutoff=0) or similar(name, known, n=1)
    return found[0] if found else None
