"""The options of a run as fields of dataclasses: their help, the values that they accept, and the check.

A field declares its bounds where it is defined; a table holds the bounds of the fields of transformers. A
section of a configuration checks all of its fields when it is made.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import yaml

from vaswani.bounds import LARGEST_SEED, Bounds
from vaswani.errors import UserError
from vaswani.files.run_files import HISTORY

if TYPE_CHECKING:
    from vaswani.training.config.training_arguments import BaseTrainingArguments

Part = TypeVar("Part")


def option(
    default: Any, text: str, *, may_be_blank: bool = False, may_be_empty: bool = False, **bounds: Any
) -> Any:
    """Return a dataclass field with its help text and the values that it accepts.

    Args:
        default: the default value; a list is copied for each object.
        text: the help text.
        may_be_blank: accept a text of white space alone.
        may_be_empty: accept also an empty text.
        bounds: bounds for numbers, as in `Bounds`.
    """
    accepts = {"may_be_blank": may_be_blank, "may_be_empty": may_be_empty}
    metadata = {"help": text, "bounds": Bounds(**bounds), **accepts}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def field_with_default(section: type[Any], name: str, default: Any) -> Any:
    """Return a field of a section, with its help and bounds, and another default."""
    return field(default=default, metadata=section.__dataclass_fields__[name].metadata)


def fields_fixed_by_model(new: Sequence[type[Any]], given: Sequence[type[Any]]) -> dict[str, str]:
    """Return the fields that have no effect when training continues with a model, and why.

    These are the fields of the sections for new weights that the sections for a given model lack.
    """
    names, left = ({each.name for section in group for each in fields(section)} for group in (new, given))
    return dict.fromkeys(
        sorted(names - left), "the model that training continues with keeps its own; leave it out"
    )


# Bounds of fields that transformers defines and this project does not redefine.
INHERITED_BOUNDS = {
    "adam_beta1": Bounds(at_least=0, below=1),
    "adam_beta2": Bounds(at_least=0, below=1),
    "adam_epsilon": Bounds(above=0, at_most=1),
    "data_seed": Bounds(at_least=0, at_most=LARGEST_SEED),
    "dataloader_num_workers": Bounds(at_least=0, at_most=1024),
    "dataloader_prefetch_factor": Bounds(at_least=1),
    "ddp_bucket_cap_mb": Bounds(at_least=1),
    "ddp_timeout": Bounds(at_least=1),
    "eval_accumulation_steps": Bounds(at_least=1),
    "eval_delay": Bounds(at_least=0),
    "eval_steps": Bounds(above=0),
    "generation_max_length": Bounds(at_least=2),  # the decoder's start token counts
    "gradient_accumulation_steps": Bounds(at_least=1),
    "label_smoothing_factor": Bounds(at_least=0, below=1),
    "learning_rate": Bounds(above=0),
    "local_rank": Bounds(at_least=-1),
    "logging_steps": Bounds(above=0),
    "max_grad_norm": Bounds(at_least=0),
    "max_steps": Bounds(at_least=1, also=(-1,)),
    "neftune_noise_alpha": Bounds(at_least=0),
    "num_train_epochs": Bounds(above=0),
    "per_device_eval_batch_size": Bounds(at_least=1),
    "per_device_train_batch_size": Bounds(at_least=1),
    "save_steps": Bounds(above=0),
    "save_total_limit": Bounds(at_least=1),
    "seed": Bounds(at_least=0, at_most=LARGEST_SEED),
    "torch_empty_cache_steps": Bounds(at_least=1),
    "warmup_steps": Bounds(at_least=0),
    "weight_decay": Bounds(at_least=0),
}


class Section:
    """A section of a run's configuration; dataclasses of options inherit it.

    Raises:
        UserError: for a value that a field does not accept.
    """

    def __post_init__(self) -> None:
        check_values(self)

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        return {}

    def part(self, part_class: type[Part]) -> Part:
        """Return an object of another dataclass with the values of the fields that both share."""
        mine = {each.name for each in fields(cast(Any, self))}
        names = [each.name for each in fields(cast(Any, part_class)) if each.name in mine]
        return part_class(**{name: getattr(self, name) for name in names})


def check_values(section: Any) -> None:
    """Raise `UserError` for the first field of a section with a value that it does not accept."""
    for one in fields(section):
        value = getattr(section, one.name)
        if one.default is not MISSING and value is one.default:
            continue
        for leaf in _leaves(value):
            if isinstance(leaf, str | Path):
                _check_text(one, str(leaf))
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool):
                bounds = one.metadata.get("bounds") or INHERITED_BOUNDS.get(one.name, Bounds())
                bounds.check(one.name, leaf)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the value itself or, for a list or a dictionary, each value in it."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _check_text(one: Field, text: str) -> None:
    accepted = one.metadata.get("may_be_empty") or (text and one.metadata.get("may_be_blank"))
    if not text.strip() and not accepted:
        raise UserError(f"{one.name}={text!r} is empty; give a value, or leave it out")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{one.name}={text!r} is not valid Unicode ({error.reason}); write it in UTF-8"
        ) from error
    if "\0" in text:
        raise UserError(f"{one.name}={text!r} holds a NUL character; leave it out")


# ------------------------------------------------------------------- configurations, and their plain values

# Not saved: they belong to a resumption or a process, not to the run, or they are secret.
UNSAVED_FIELDS = ("resume_from_checkpoint", "hub_token", "local_rank")

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
    "do_predict": "the test split is evaluated at the end if there is one; set evaluate_test",
}


class BaseConfig:
    """The resolved arguments of one run: a dataclass with a field for each section."""

    model: Any
    data: Any
    training: Any  # BaseTrainingArguments
    card: Any

    command: ClassVar[str]
    purpose: ClassVar[str]
    scores: ClassVar[Sequence[str]]  # the scores that `metric_for_best_model` may name
    without_effect: ClassVar[dict[str, str]] = FIELDS_WITHOUT_EFFECT  # field -> reason

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return the configuration class for these values: by default, this class."""
        return cls

    @property
    def output_dir(self) -> Path:
        """The folder that the run writes to."""
        return Path(self.training.output_dir or ".")

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found: dict[str, str] = {}
        for name in sections(type(self)):
            found |= getattr(self, name).unused()
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values of our own fields, and of transformers' fields that differ from their defaults."""
        values: dict[str, Any] = {}
        for name in (name for name in sections(type(self)) if name != "training"):
            values |= asdict(getattr(self, name))
        return values | training_settings(self.training)

    def default_settings(self) -> dict[str, Any]:
        """Plain values of the defaults of all fields."""
        values: dict[str, Any] = {}
        for section in (section for name, section in sections(type(self)).items() if name != "training"):
            values |= {field.name: plain(default_of(field)) for field in fields(section)}
        return values | default_settings(self.training)

    def save(self, path: Path, history: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a configuration file that repeats this run, with its history (see `Resumption.record`)."""
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


def sections(config_class: type[BaseConfig]) -> dict[str, type]:
    """Return the sections of a configuration: a dataclass of arguments for each."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints[field.name] for field in fields(cast(Any, config_class))}


def training_settings(training: BaseTrainingArguments) -> dict[str, Any]:
    """Plain values of our own fields, and of transformers' fields that differ from their defaults."""
    defaults = library_defaults(training)
    return {name: value for name, value in _plain_fields(training).items() if name not in defaults}


def library_defaults(training: BaseTrainingArguments) -> dict[str, Any]:
    """Plain values of transformers' fields that have their defaults."""
    arguments_class: Any = type(training)
    defaults = _defaults(arguments_class)
    return {
        name: value
        for name, value in _plain_fields(training).items()
        if getattr(training, name, None) == getattr(defaults, name)
        and name != "output_dir"
        and is_inherited(name, arguments_class)
    }


def default_settings(training: BaseTrainingArguments) -> dict[str, Any]:
    """Plain values of the defaults of all fields."""
    # Fields that have their defaults keep their current values, because setting up the devices fills some in.
    arguments_class: Any = type(training)
    return _plain_fields(_defaults(arguments_class)) | library_defaults(training)


def with_present_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that any version saved under the names of this version.

    In earlier versions, `tokenizer` of a pre-training was the kind of tokenizer to train. It is still read as
    a kind unless a file or folder has that name.
    """
    given = str(settings.get("tokenizer"))
    kind = {"bpe": "bpe", "bytes": "byte"}.get(given)
    if kind is None or "tokenizer_kind" in settings or Path(given).exists():
        return settings
    return {**settings, "tokenizer": None, "tokenizer_kind": kind}


def _plain_fields(training: BaseTrainingArguments) -> dict[str, Any]:
    return {
        field.name: plain(getattr(training, field.name, None))
        for field in fields(training)
        if field.init and field.name not in UNSAVED_FIELDS
    }


@functools.cache
def _defaults(arguments_class: type[BaseTrainingArguments]) -> BaseTrainingArguments:
    """Default arguments for comparison, without a device: an existing trainer would lose it."""
    return type(f"Default{arguments_class.__name__}", (arguments_class,), {"device": None})()


def default_of(field: Field) -> Any:
    """The default of a dataclass field."""
    return field.default_factory() if callable(field.default_factory) else field.default


def is_inherited(name: str, section: type) -> bool:
    """Return True if a field of a section is defined by transformers and not overridden here."""
    ours = [base for base in section.__mro__ if base.__module__.startswith("vaswani")]
    return not any(name in inspect.get_annotations(base) for base in ours)


def plain(value: Any) -> Any:
    """Convert a value to plain YAML: enumerations to their values, other objects to their fields."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value) if isinstance(value, Path) else value
