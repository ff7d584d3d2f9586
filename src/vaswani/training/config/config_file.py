"""Load the arguments of a run from a YAML file and command-line flags.

A configuration file is flat: each key is a field of one of the sections of a run (`options.BaseConfig`).
The file gives defaults and flags override them; both take the types of the fields in the same way.
"""

import dataclasses
import logging
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vaswani.data.sources.corpus_spec import SPLITS
from vaswani.errors import RunError, UserError, one_line
from vaswani.files.named_configs import check_command, find_config, name_of_shipped
from vaswani.files.run_files import HISTORY
from vaswani.files.yaml_files import read_mapping
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.flags import Flag, check_name, first_values, is_none, split_flags, unexpected
from vaswani.training.config.options import BaseConfig, plain, sections, with_present_names
from vaswani.training.config.typed_values import choices_of, items_of, kinds_of, typed

logger = logging.getLogger(__name__)

Config = TypeVar("Config", bound=BaseConfig)

_FILES = tuple(f"{split}_file" for split in SPLITS)
_DATA = ("dataset", "train_file")  # a training reads one of these
# Fields that describe the data of a configuration; they are dropped if other data is given.
_DATA_FIELDS = ("dataset_config", "language", "data_name", "data_url", "data_license")
# For each flag, the fields of the file that it replaces.
REPLACED_BY = {
    "num_train_epochs": ("max_steps",),
    "dataset": _FILES,
    **dict.fromkeys(_FILES, ("dataset", "dataset_config")),
    "directions": ("source_field", "target_field", "source_tags"),
    **dict.fromkeys(("source_field", "target_field"), ("directions",)),
}


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
    Flags that name data files replace the data set of the YAML file, and the other way round; fields that
    describe its data (languages, name, license) are dropped with it. Likewise, a length in epochs replaces a
    length in updates, and the other way round.

    Raises:
        UserError: for a file that cannot be read, an unknown key or flag (naming the nearest that exists), a
            value of the wrong type, a field that would be ignored, or values that contradict each other.
            Unlike a flag, a field of a file may be one that has no effect with the values of other fields.
    """
    path = Path() if yaml_path is None else find_config(yaml_path)
    check_command(path, config_class.command)
    in_file = {} if yaml_path is None else _read_yaml(path)
    flags = split_flags(overrides)
    chosen = first_values(flags)
    of_file, config_class = config_class.variant(in_file), config_class.variant(in_file | chosen)
    fields = _Fields(config_class)
    if of_file is not config_class:
        in_file = fields.without_those_of(of_file, in_file, chosen, path)
    values, given = fields.from_yaml(in_file, path), fields.from_flags(flags)
    config = _filled(config_class, _not_replaced(values, given) | given)
    for name, reason in config.unused().items():
        if name in given and fields.requests(name, given[name]):
            raise UserError(f"{name}={plain(given[name])} has no effect with {reason}; leave it out")
    return config


def _not_replaced(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a file without those that the given flags replace, such as other data."""
    replaced = {name for flag in given for name in REPLACED_BY.get(flag, ())}
    data = {name: values[name] for name in _DATA if name in values}
    if data and any(name in given and given[name] != data.get(name) for name in _DATA):
        replaced.update(_DATA_FIELDS)
    return {name: value for name, value in values.items() if name not in replaced}


def _filled(config_class: type[BaseConfig], values: Mapping[str, Any]) -> BaseConfig:
    """Fill the sections of a configuration with values; report as `UserError` whatever they raise."""
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
    except Exception as error:  # such as a missing file or package
        raise UserError(f"an option does not work: {type(error).__name__}: {one_line(error)}") from error


class _Fields:
    """The fields of all sections of a configuration: their names and types."""

    def __init__(self, config_class: type[BaseConfig]):
        self._hints: dict[str, Any] = {}
        self._true_by_default: set[str] = set()  # the fields that are true unless given
        for section in sections(config_class).values():
            hints = typing.get_type_hints(section)
            self._hints |= {name: hints[name] for name in _settable(section)}
            self._true_by_default |= {
                field.name for field in dataclasses.fields(section) if field.default is True
            }
        self._without_effect = config_class.without_effect
        self._command = config_class.command

    def without_those_of(
        self, other: type[BaseConfig], values: Mapping[Any, Any], flags: Mapping[str, Any], path: Path
    ) -> dict[Any, Any]:
        """Return the values of a file without those that only its own objective has or that flags override.

        For a file whose objective the flags replace. A warning names the fields that are left out.
        """
        unknown = _Fields(other)._hints.keys() - self._hints.keys() - self._without_effect.keys()
        if lost := [name for name in values if name in unknown]:
            logger.warning(f"left out, as the flags choose another objective than {path}: {', '.join(lost)}")
        return {name: value for name, value in values.items() if name not in unknown | flags.keys()}

    def requests(self, name: str, value: Any) -> bool:
        """Return whether a value asks for something: 0, false and none do not, where they are the default."""
        return bool(value) or (value is False and name in self._true_by_default)

    def from_yaml(self, values: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        """Convert the values of a configuration file to the types of their fields."""
        self._check_effect(values, path)
        for name in values:
            self._check(str(name), f"unknown key {str(name)!r} in {path}")
        return {name: self._typed(name, value, f" in {path}") for name, value in values.items()}

    def from_flags(self, flags: Sequence[Flag]) -> dict[str, Any]:
        """Convert the values of flags to the types of their fields."""
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
        """Return the value of a flag: a list, one text, None, or True for a flag without a value."""
        kinds = kinds_of(self._hints[name])
        if not texts and bool in kinds:
            return True
        if not texts:
            raise UserError(f"{name}: expected {'at least ' * bool(items_of(kinds))}one argument")
        if is_none(texts) and type(None) in kinds and "none" not in choices_of(kinds):
            return None
        if len(texts) > 1 and not items_of(kinds):
            raise unexpected(texts[1])
        return texts if len(texts) > 1 else texts[0]

    def _typed(self, name: str, value: Any, place: str = "") -> Any:
        try:
            return typed(self._hints[name], value)
        except ValueError as error:
            raise UserError(f"{name}{place}: {error}") from error

    def _check_effect(self, values: Mapping[Any, Any], path: Path) -> None:
        """Raise `UserError` if fields of a file have no effect; it names those of one reason together."""
        ignored = [str(name) for name in values if str(name) in self._without_effect]
        if not ignored:
            return
        reason = self._without_effect[ignored[0]]
        names = [name for name in ignored if self._without_effect[name] == reason]
        each = " each" if len(names) > 1 else ""
        shipped = name_of_shipped(path)
        copy = f" of a copy, which vaswani configs show {shipped} prints" if shipped else ""
        raise UserError(f"{', '.join(names)}{each} has no effect here: {reason}{copy} (in {path})")

    def _check(self, name: str, problem: str, prefix: str = "") -> None:
        check_name(name, self._hints, self._without_effect, problem, self._command, prefix)


def _settable(section: type) -> list[str]:
    """The names of the fields that can be passed to a section."""
    return [field.name for field in dataclasses.fields(section) if field.init]


def _read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings of a configuration file, under their present names."""
    settings = with_present_names(read_mapping(path, "configuration file"))
    settings.pop(HISTORY, None)  # written by `BaseConfig.save`; not a setting
    return settings
