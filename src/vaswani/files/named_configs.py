"""Find the configurations that ship with the package by name: `dates`, `systems/gpt2`, `devices/h100`.

Each is a YAML file in `vaswani/configs`. Its first line describes it; one of the next shows how to use it.
"""

import difflib
import os
import re
from pathlib import Path

from vaswani.errors import UserError

FOLDER = Path(__file__).parents[1] / "configs"


def config_names() -> list[str]:
    """Return the names of all configurations, those in folders last."""
    names = map(_name_in_folder, FOLDER.rglob("*.yaml"))
    return sorted(names, key=lambda name: (name.count("/"), name))


def find_config(given: str | Path, what: str = "configuration file") -> Path:
    """Return the file at a path or, if there is no such file, the configuration of that name.

    `NAME.yaml` and `configs/NAME.yaml` are accepted as names too.

    Args:
        given: a path or a name.
        what: what the error message calls the file.

    Raises:
        UserError: neither exists.
    """
    path = Path(os.path.expanduser(given))
    if not os.path.isfile(path) and _name(given) in config_names():
        return shipped_config(given)
    if not os.path.lexists(path):
        raise UserError(f"{what} {given} does not exist; {_hint(given)}")
    return path


def shipped_config(name: str | Path) -> Path:
    """Return the file of a configuration that ships with the package.

    Raises:
        UserError: there is no configuration of that name.
    """
    if _name(name) not in config_names():
        raise UserError(f"no configuration is called {str(name)!r}; {_hint(name)}")
    return FOLDER / f"{_name(name)}.yaml"


def name_of_shipped(path: Path) -> str | None:
    """Return the name of a configuration that ships with the package; None for other files."""
    return _name_in_folder(path) if path.is_relative_to(FOLDER) else None


def _name_in_folder(path: Path) -> str:
    return path.relative_to(FOLDER).with_suffix("").as_posix()


def _name(given: str | Path) -> str:
    return str(given).removeprefix("configs/").removesuffix(".yaml")


def summary(name: str) -> str:
    """Return the one-line description of a configuration."""
    return _header(name)[0]


def usage(name: str) -> str:
    """Return the command line that uses a configuration, such as `vaswani train --config dates`."""
    options = ("--config", "--task", "--device")
    found = next(line for line in _header(name) if any(option in line for option in options))
    return found.removesuffix("\\").rstrip()


def command(name: str) -> str:
    """Return the command that takes a configuration: `train` of vaswani, or `launch` of accelerate."""
    return usage(name).split()[1]


def check_command(path: Path, given: str) -> None:
    """Raise `UserError` for a configuration that ships with the package for another command.

    Args:
        path: any file.
        given: the command of vaswani that was called: `train`.
    """
    shipped = name_of_shipped(path)
    if shipped and command(shipped) != given:
        raise UserError(f"{shipped} is not for vaswani {given}; use it with: {usage(shipped)}")


def command_of(path: Path) -> str:
    """Return the command that takes a configuration file, from its comments; `train` if they name none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # the reader of the configuration reports it
        return "train"
    found = re.findall(r"^# .*\bvaswani (train|distill|pretrain|finetune) --config", text, flags=re.MULTILINE)
    return found[0] if found else "train"


def _header(name: str) -> list[str]:
    lines = shipped_config(name).read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("# ")]


def _hint(given: str | Path) -> str:
    """Name the nearest configurations, comparing whole names and their last parts."""
    name, names = _name(given), config_names()
    ends = {known.rpartition("/")[2]: known for known in names}
    near = [*difflib.get_close_matches(name, names), *map(ends.get, difflib.get_close_matches(name, ends))]
    found = " or ".join(map(repr, dict.fromkeys(near)))
    return (
        f"did you mean {found}? (vaswani configs lists all)" if found else "vaswani configs lists the names"
    )
