"""From a YAML file and command-line flags to the arguments of a run.

A configuration file is flat: each key is a field of one of the sections of a run (`run_config.BaseConfig`).
The file gives defaults and flags override them; both take the types of the fields in the same way.
"""

import dataclasses
import difflib
import textwrap
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
from vaswani.training.config.arguments import default_of, is_inherited, plain
from vaswani.training.config.run_config import BaseConfig, RunConfig, sections
from vaswani.training.config.typed_values import items_of, kinds_of, typed

Config = TypeVar("Config", bound=BaseConfig)
Flag = tuple[str, str, list[str]]  # as it was written, the name of its field, the texts that follow it


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
    flags = _split(overrides)
    config_class = config_class.variant(in_file | _first_texts(flags))
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


def describe_options(config_class: type[BaseConfig] = RunConfig, flags: Sequence[str] = ()) -> str:
    """The help of a run's command: the fields that this project adds or gives another default.

    Args:
        config_class: of the run.
        flags: given with it, for the field that chooses among several classes.
    """
    config_class = config_class.variant(_first_texts(_split(flags)))
    lines = [f"Usage: vaswani {config_class.command} --config FILE [--FIELD VALUE ...]", ""]
    lines += textwrap.wrap(
        f"{config_class.purpose} FILE is flat YAML and gives defaults; flags override it. "
        "A boolean flag may stand alone (--bf16) or take true or false; a list takes several values.",
        100,
    )
    for title, section in sections(config_class).items():
        lines += ["", f"{title.capitalize()}:"]
        for field in dataclasses.fields(section):
            if field.metadata.get("help") and not is_inherited(field.name, section):
                lines += _describe_option(field)
    lines += [""]
    lines += textwrap.wrap(
        "Every training argument of transformers is accepted as well, among them: "
        "output_dir, max_steps, num_train_epochs, gradient_accumulation_steps, max_grad_norm, seed, bf16, "
        "torch_compile, use_cpu, eval_strategy, eval_steps, save_strategy, save_steps, save_total_limit, "
        f"logging_steps, load_best_model_at_end, metric_for_best_model ({', '.join(config_class.scores)}), "
        "resume_from_checkpoint (true or a directory).",
        100,
    )
    lines += [
        "",
        "  --debug  Show the traceback of an error. (transformers' own `debug` can be set in FILE.)",
    ]
    return "\n".join(lines)


def _describe_option(field: dataclasses.Field) -> list[str]:
    default = default_of(field)
    default = " ".join(default) if isinstance(default, list) else plain(default)
    shown = "" if default in (None, "") else f" [{default}]"
    text = f"{field.metadata['help']}{shown}"
    return textwrap.wrap(text, 100, initial_indent=f"  --{field.name:<34} ", subsequent_indent=" " * 39)


class _Fields:
    """The fields of all sections of a configuration: their names and types."""

    def __init__(self, config_class: type[BaseConfig]):
        self._hints: dict[str, Any] = {}
        for section in sections(config_class).values():
            hints = typing.get_type_hints(section)
            self._hints |= {name: hints[name] for name in _settable(section)}
        self._without_effect = config_class.without_effect
        self._help = f"see vaswani {config_class.command} --help"

    def of_yaml(self, values: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        """The values of a configuration file as the types of their fields."""
        for name in values:
            self._check_name(str(name), f"unknown key {str(name)!r} in {path}")
        return {name: self._typed(name, value, f" in {path}") for name, value in values.items()}

    def of_flags(self, flags: Sequence[Flag]) -> dict[str, Any]:
        """The values of flags as the types of their fields."""
        given: dict[str, list[str]] = {}
        for flag, name, texts in flags:
            if name not in self._hints and bool in kinds_of(self._hints.get(name.removeprefix("no_"))):
                name, texts = name.removeprefix("no_"), ["false", *texts]
            self._check_name(name, f"unknown flag {flag!r}", "--")
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
            raise UserError(_unexpected(texts[1]))
        return texts if len(texts) > 1 else texts[0]

    def _typed(self, name: str, value: Any, place: str = "") -> Any:
        try:
            return typed(self._hints[name], value)
        except ValueError as error:
            raise UserError(f"{name}{place}: {error}") from error

    def _check_name(self, name: str, problem: str, prefix: str = "") -> None:
        """Raise `UserError` unless there is such a field and it has an effect."""
        if name in self._without_effect:
            raise UserError(f"{name} has no effect here: {self._without_effect[name]}")
        if name not in self._hints:
            nearest = difflib.get_close_matches(name, self._hints, n=1)
            hint = f"did you mean '{prefix}{nearest[0]}'?" if nearest else self._help
            raise UserError(f"{problem}; {hint}")


def _settable(section: type) -> list[str]:
    """The names of the fields that a section is made from."""
    return [field.name for field in dataclasses.fields(section) if field.init]


def _split(arguments: Sequence[str]) -> list[Flag]:
    """The flags of a command line, each as `--name`, `--name text ...` or `--name=text`."""
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
            raise UserError(_unexpected(argument))
    return flags


def _unexpected(argument: str) -> str:
    return f"unexpected argument {argument!r}; flags are such as --learning_rate 1e-3"


def _first_texts(flags: Sequence[Flag]) -> dict[str, str]:
    return {name: texts[0] for _, name, texts in flags if texts}


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
