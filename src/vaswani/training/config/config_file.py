"""From a YAML file and command-line flags to the arguments of a run.

A configuration file is flat: each key is a field of one of the sections of a run (`run_config.BaseConfig`).
The file gives defaults and flags override them; both take the types of the fields in the same way.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from vaswani.data.sources.corpus import SPLITS
from vaswani.errors import RunError, UserError, one_line
from vaswani.files.named_configs import find_config
from vaswani.files.run_files import HISTORY
from vaswani.files.yaml_files import load_yaml
from vaswani.training.config.flags import Flag, check_name, first_values, split_flags, unexpected
from vaswani.training.config.run_config import BaseConfig, RunConfig, sections
from vaswani.training.config.typed_values import items_of, kinds_of, typed

Config = TypeVar("Config", bound=BaseConfig)


@typing.overload
def load_config(yaml_path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig: ...


@typing.overload
def load_config(
    yaml_path: str | Path | None, overrides: Sequence[str], config_class: type[Config]
) -> Config: ...


def load_config(
    yaml_path: str | Path | None, overrides: Sequence[str] = (), config_class: type[BaseConfig] = RunConfig
) -> BaseConfig:
    """Resolve a run: defaults, then the YAML file (if any), then flags such as `["--learning_rate", "1e-3"]`.

    The file is a path, or the name of a configuration that ships with the package (see `find_config`).
    The corpus is one choice: flags that name files replace the file's data set, and the other way round.

    Raises:
        UserError: for a file that cannot be read, an unknown key or flag (naming the nearest that exists), a
            value of the wrong type, a field that would be ignored, or values that contradict each other.
    """
    path = Path() if yaml_path is None else find_config(yaml_path)
    in_file = {} if yaml_path is None else _read_yaml(path)
    in_file.pop(HISTORY, None)  # written by `BaseConfig.save`; not a setting
    flags = split_flags(overrides)
    config_class = config_class.variant(in_file | first_values(flags))
    fields = _Fields(config_class)
    values = fields.of_yaml(in_file, path)
    for name in _replaced_corpus({name for _, name, _ in flags}):
        values.pop(name, None)
    values |= fields.of_flags(flags)
    try:
        return config_class(
            **{
                title: section(**{name: values[name] for name in _settable(section) if name in values})
                for title, section in sections(config_class).items()
            }
        )
    except (UserError, RunError):
        raise
    except (ValueError, NotImplementedError) as error:
        raise UserError(one_line(error)) from error
    except Exception as error:  # a file that is not there, a package that is missing
        raise UserError(f"an option does not work: {type(error).__name__}: {one_line(error)}") from error


class _Fields:
    """The fields of all sections of a configuration: their names and types."""

    def __init__(self, config_class: type[BaseConfig]):
        self._hints: dict[str, Any] = {}
        for section in sections(config_class).values():
            hints = typing.get_type_hints(section)
            self._hints |= {name: hints[name] for name in _settable(section)}
        self._without_effect = config_class.without_effect
        self._command = config_class.command

    def of_yaml(self, values: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        """The values of a configuration file as the types of their fields."""
        for name in values:
            self._check(str(name), f"unknown key {str(name)!r} in {path}")
        return {name: self._typed(name, value, f" in {path}") for name, value in values.items()}

    def of_flags(self, flags: Sequence[Flag]) -> dict[str, Any]:
        """The values of flags as the types of their fields."""
        given: dict[str, list[str]] = {}
        for flag, name, texts in flags:
            if name not in self._hints and bool in kinds_of(self._hints.get(name.removeprefix("no_"))):
                name, texts = name.removeprefix("no_"), ["false", *texts]
            self._check(name, f"unknown flag {flag!r}", "--")
            if name in given:
                raise UserError(f"{flag} is given more than once; give it once (a list takes several values)")
            given[name] = texts
        return {name: self._typed(name, self._value(name, texts)) for name, texts in given.items()}

    def _value(self, name: str, texts: list[str]) -> Any:
        """What the texts behind a flag give: a list, or one text, or true for a flag that stands alone."""
        kinds = kinds_of(self._hints[name])
        if not texts and bool in kinds:
            return True
        if not texts:
            raise UserError(f"{name}: expected {'at least ' * bool(items_of(kinds))}one argument")
        if len(texts) > 1 and not items_of(kinds):
            raise unexpected(texts[1])
        return texts if len(texts) > 1 else texts[0]

    def _typed(self, name: str, value: Any, place: str = "") -> Any:
        try:
            return typed(self._hints[name], value)
        except ValueError as error:
            raise UserError(f"{name}{place}: {error}") from error

    def _check(self, name: str, problem: str, prefix: str = "") -> None:
        check_name(name, self._hints, self._without_effect, problem, self._command, prefix)


def _settable(section: type) -> list[str]:
    """The names of the fields that a section is made from."""
    return [field.name for field in dataclasses.fields(section) if field.init]


def _replaced_corpus(flags: set[str]) -> list[str]:
    """The corpus is one choice: flags that name a data set, or files, replace what the file names."""
    files = [f"{split}_file" for split in SPLITS]
    if "dataset" in flags:
        return files
    return ["dataset", "dataset_config"] if flags & set(files) else []


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"configuration file {path} cannot be read: {' '.join(str(error).split())}"
        ) from error
    if values is not None and not isinstance(values, dict):
        raise UserError(
            f"configuration file {path} must hold `key: value` lines, got a {type(values).__name__}"
        )
    return values or {}
