"""The options of a run as fields of dataclasses: their help, the values that they accept, and the check.

A field declares its bounds where it is defined; a table holds the bounds of the fields of transformers. A
section of a configuration checks all of its fields when it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any

from vaswani.bounds import LARGEST_SEED, Bounds
from vaswani.errors import UserError


def option(default: Any, text: str, *, may_be_blank: bool = False, **bounds: Any) -> Any:
    """Return a dataclass field with its help and the values that it accepts.

    Args:
        default: a list is copied for each object.
        text: its help.
        may_be_blank: whether a text may be only white space.
        bounds: of a number, as for `Bounds`.
    """
    metadata = {"help": text, "bounds": Bounds(**bounds), "may_be_blank": may_be_blank}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


# Of the fields that transformers defines and this project leaves as they are.
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
                bounds_of(one).check(one.name, leaf)


def bounds_of(one: Field) -> Bounds:
    """The numbers that a field accepts."""
    return one.metadata.get("bounds") or INHERITED_BOUNDS.get(one.name, Bounds())


def _leaves(value: Any) -> Iterator[Any]:
    """The value itself, or what a list or a dictionary holds."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _check_text(one: Field, text: str) -> None:
    if not text or (text.isspace() and not one.metadata.get("may_be_blank")):
        raise UserError(f"{one.name}={text!r} is empty; give a value, or leave it out")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{one.name}={text!r} is not valid Unicode ({error.reason}); write it in UTF-8"
        ) from error
    if "\0" in text:
        raise UserError(f"{one.name}={text!r} holds a NUL character; leave it out")
