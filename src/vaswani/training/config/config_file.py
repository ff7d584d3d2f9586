"""From a YAML file and command-line flags to the arguments of one run, and back to YAML.

A configuration file is flat: each key is a field of `ModelArguments`, `DataArguments`, `CardArguments` or
`TrainingArguments`, which has all of transformers'; a run of another kind has other sections. The file gives
defaults and flags override them; both go through one `HfArgumentParser`, so they obey the same types.
"""

import dataclasses
import difflib
import itertools
import re
import textwrap
import typing
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar, cast

import yaml
from transformers import HfArgumentParser

from vaswani.data.sources.corpus import SPLITS
from vaswani.errors import RunError, UserError, one_line
from vaswani.evaluation.text_metrics import METRICS
from vaswani.files.run_files import HISTORY
from vaswani.files.yaml_files import load_yaml, shown
from vaswani.training.config.arguments import (
    BaseTrainingArguments,
    CardArguments,
    DataArguments,
    ModelArguments,
    TrainingArguments,
    default_of,
    default_settings,
    is_inherited,
    plain,
    training_settings,
)
from vaswani.training.config.options import METADATA

_BATCHES = "batches hold max_tokens_per_batch tokens, length-bucketed; set that instead"
_OWN_PLAN = "models are sharded by their own plan; set fsdp_size"
_WHOLE_EVALUATION = "evaluation gathers every row once and scores them together"
FIELDS_WITHOUT_EFFECT = {
    "per_device_train_batch_size": _BATCHES,
    "per_device_eval_batch_size": _BATCHES,
    "auto_find_batch_size": _BATCHES,
    "train_sampling_strategy": _BATCHES,
    "length_column_name": _BATCHES,
    "sortish_sampler": _BATCHES,
    "dataloader_drop_last": _BATCHES,
    "fsdp": _OWN_PLAN,
    "fsdp_config": _OWN_PLAN,
    "batch_eval_metrics": _WHOLE_EVALUATION,
    "eval_accumulation_steps": _WHOLE_EVALUATION,
    "eval_do_concat_batches": _WHOLE_EVALUATION,
    "eval_use_gather_object": _WHOLE_EVALUATION,
    "include_for_metrics": _WHOLE_EVALUATION,
    "bf16_full_eval": "evaluation runs as training does; set bf16",
    "fp16_full_eval": "evaluation runs as training does; set fp16",
    "do_train": "training always runs",
    "do_predict": "the test split is evaluated at the end whenever there is one",
}


class BaseConfig:
    """The resolved arguments of one run; each kind of run is a dataclass with a field for each section."""

    model: Any
    data: Any
    training: BaseTrainingArguments
    card: CardArguments

    command: ClassVar[str]
    purpose: ClassVar[str]
    example: ClassVar[str]
    scores: ClassVar[Sequence[str]]  # that `metric_for_best_model` may name
    without_effect: ClassVar[dict[str, str]] = FIELDS_WITHOUT_EFFECT  # fields, and why

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> "type[BaseConfig]":
        """The kind of run that is meant by what was given; this one, unless a field chooses among several."""
        return cls

    @property
    def output_dir(self) -> Path:
        """Where the run writes."""
        return Path(self.training.output_dir or ".")

    def to_dict(self) -> dict[str, Any]:
        """Plain values: every field of ours, and those of transformers that differ from their defaults."""
        values: dict[str, Any] = {}
        for name in (name for name in sections(type(self)) if name != "training"):
            values |= dataclasses.asdict(getattr(self, name))
        return values | training_settings(self.training)

    def default_settings(self) -> dict[str, Any]:
        """Plain values: the defaults of all fields."""
        values: dict[str, Any] = {}
        for section in (section for name, section in sections(type(self)).items() if name != "training"):
            values |= {field.name: plain(default_of(field)) for field in dataclasses.fields(section)}
        return values | default_settings(self.training)

    def save(self, path: Path, history: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a configuration file that repeats this run.

        Args:
            path: of the file.
            history: the settings that changed when the run was resumed (see `resuming.Resumption.record`).
        """
        command = f"vaswani {self.command} --config {path.name} --output_dir ..."
        header = f"# A resolved run; repeat it with: {command}\n"
        values = self.to_dict()
        if history:
            header += (
                f"# Its settings changed when it was resumed, as {HISTORY} tells at the end: [before, now].\n"
            )
            values[HISTORY] = list(history)
        path.write_text(
            header + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


@dataclass
class RunConfig(BaseConfig):
    """The resolved arguments of one training on pairs, a section each; a subclass may add one."""

    model: ModelArguments
    data: DataArguments
    training: TrainingArguments
    card: CardArguments

    command: ClassVar[str] = "train"
    purpose: ClassVar[str] = "Train a Transformer on a parallel corpus."
    example: ClassVar[str] = "configs/dates.yaml"
    scores: ClassVar[Sequence[str]] = ("loss", *METRICS)


def sections(kind: type[BaseConfig]) -> dict[str, type]:
    """The sections of a run of this kind: a dataclass of arguments for each."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(cast(Any, kind))}


Config = TypeVar("Config", bound=BaseConfig)


@typing.overload
def load_config(yaml_path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig: ...


@typing.overload
def load_config(yaml_path: str | Path | None, overrides: Sequence[str], kind: type[Config]) -> Config: ...


def load_config(
    yaml_path: str | Path | None, overrides: Sequence[str] = (), kind: type[BaseConfig] = RunConfig
) -> BaseConfig:
    """Resolve a run: defaults, then the YAML file (if any), then flags such as `["--learning_rate", "1e-3"]`.

    The corpus is one choice: flags that name files replace the file's data set, and the other way round.

    Raises:
        UserError: for a file that cannot be read, an unknown key or flag (naming the nearest that exists), a
            value of the wrong type, a field that would be ignored, or values that contradict each other.
    """
    values = {} if yaml_path is None else _read_yaml(Path(yaml_path))
    values.pop(HISTORY, None)  # written by `BaseConfig.save`; not a setting
    kind = kind.variant(values | _flag_values(overrides))
    parser = _Parser(kind)
    namespace = parser.parse_yaml(values, Path(yaml_path or ""))
    parser.replace_corpus(overrides, namespace)
    namespace = parser.parse_flags(overrides, namespace)
    try:
        arguments = parser.parse_dict(vars(namespace))
    except (UserError, RunError):
        raise
    except (ValueError, NotImplementedError) as error:
        raise UserError(one_line(error)) from error
    except Exception as error:  # a file that is not there, a package that is missing
        raise UserError(f"an option does not work: {type(error).__name__}: {one_line(error)}") from error
    return kind(*arguments)


def describe_options(kind: type[BaseConfig] = RunConfig, flags: Sequence[str] = ()) -> str:
    """The help of a run's command: the fields that this project adds or gives another default.

    Args:
        kind: of the run.
        flags: that were given with it, for the field that chooses among several kinds.
    """
    kind = kind.variant(_flag_values(flags))
    lines = [f"Usage: vaswani {kind.command} --config FILE [--FIELD VALUE ...]", ""]
    lines += textwrap.wrap(
        f"{kind.purpose} FILE is flat YAML and gives defaults; flags override it. "
        "A boolean flag may stand alone (--bf16) or take true or false; a list takes several values.",
        100,
    )
    for title, section in sections(kind).items():
        lines += ["", f"{title.capitalize()}:"]
        for field in dataclasses.fields(section):
            if field.metadata.get("help") and not is_inherited(field.name, section):
                lines += _describe_option(field)
    lines += [""]
    lines += textwrap.wrap(
        "Every training argument of transformers is accepted as well, among them: "
        "output_dir, max_steps, num_train_epochs, gradient_accumulation_steps, max_grad_norm, seed, bf16, "
        "torch_compile, use_cpu, eval_strategy, eval_steps, save_strategy, save_steps, save_total_limit, "
        f"logging_steps, load_best_model_at_end, metric_for_best_model ({', '.join(kind.scores)}), "
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


class _Parser(HfArgumentParser):
    """`HfArgumentParser` that reads YAML as flags and reports every mistake as a `UserError`."""

    def __init__(self, kind: type[BaseConfig]):
        classes: list[Any] = list(sections(kind).values())
        super().__init__(classes, allow_abbrev=False, add_help=False)
        self._hints = {
            name: hint for section in classes for name, hint in typing.get_type_hints(section).items()
        }
        self._help = f"see vaswani {kind.command} --help"
        self._without_effect = kind.without_effect
        self._place = ""  # where the values being read come from, for messages

    def add_argument(self, *names: Any, **options: Any) -> Any:
        """As in argparse, to which the library passes all metadata of a field."""
        return super().add_argument(*names, **{k: v for k, v in options.items() if k not in METADATA})

    def error(self, message: str) -> NoReturn:
        """Called by argparse; its message reads `argument --name/--na-me: what is wrong`."""
        raise UserError(re.sub(r"^argument --([^:/]+)[^:]*: ", rf"\1{self._place}: ", message))

    def parse_yaml(self, values: dict[str, Any], path: Path) -> Namespace:
        """Values of a flat YAML file, converted to the types of their fields."""
        for name in values:
            self._check_name(str(name), f"unknown key {str(name)!r} in {path}")
        self._place = f" in {path}"
        namespace = Namespace(**{name: self._convert(name, value) for name, value in values.items()})
        self._place = ""
        return namespace

    def parse_flags(self, flags: Sequence[str], namespace: Namespace) -> Namespace:
        """Flags override what stands in the namespace."""
        given = set()
        for flag in (flag.split("=")[0] for flag in flags if flag.startswith("--")):
            name = flag.removeprefix("--").replace("-", "_").removeprefix("no_")
            self._check_name(name, f"unknown flag {flag!r}", "--")
            if name in given:
                raise UserError(f"{flag} is given more than once; give it once (a list takes several values)")
            given.add(name)
        namespace, rest = self.parse_known_args(list(flags), namespace)
        if rest:
            raise UserError(f"unexpected argument {rest[0]!r}; flags are such as --learning_rate 1e-3")
        return namespace

    @staticmethod
    def replace_corpus(flags: Sequence[str], namespace: Namespace) -> None:
        """The corpus is one choice: flags that name a data set, or files, replace what the file names."""
        given = {flag.split("=")[0].removeprefix("--").replace("-", "_") for flag in flags}
        files = [f"{split}_file" for split in SPLITS]
        if "dataset" in given:
            others = [name for name in files if name not in given]
        else:
            others = ["dataset", "dataset_config"] if given & set(files) else []
        for name in others:
            vars(namespace).pop(name, None)

    def _check_name(self, name: str, problem: str, prefix: str = "") -> None:
        if name in self._without_effect:
            raise UserError(f"{name} has no effect here: {self._without_effect[name]}")
        if name not in self._hints:
            nearest = difflib.get_close_matches(name, self._hints, n=1)
            hint = f"did you mean '{prefix}{nearest[0]}'?" if nearest else self._help
            raise UserError(f"{problem}; {hint}")

    def _convert(self, name: str, value: Any) -> Any:
        """One YAML value as the type of its field, by way of the flag that would set it."""
        hint = str(self._hints[name])
        if value is None and type(None) not in typing.get_args(self._hints[name]):
            self.error(f"argument --{name}: null is not possible; leave the key out for the default")
        if value is None or (isinstance(value, dict) and "dict" in hint) or (value == [] and "list" in hint):
            return value
        if isinstance(value, dict) or (isinstance(value, list) and "list" not in hint):
            self.error(f"argument --{name}: expected one value, got {shown(value)}")
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, dict | list) for text in texts):
            self.error(f"argument --{name}: expected a list of values, got {shown(value)}")
        if "bool" not in hint:
            texts = ["no" if text is False else text for text in texts]  # YAML reads a bare `no` as false
        namespace, rest = self.parse_known_args([f"--{name}", *map(str, texts)])
        return value if rest else getattr(namespace, name)


def _flag_values(flags: Sequence[str]) -> dict[str, str]:
    """The first value of each flag, as `--name value` or `--name=value`."""
    given = {}
    for flag, following in itertools.zip_longest(flags, flags[1:], fillvalue=""):
        if flag.startswith("--"):
            name, _, value = flag.removeprefix("--").partition("=")
            given[name.replace("-", "_")] = value or following
    return given


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
