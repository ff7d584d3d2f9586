"""The page of the models' configurations, made from their dataclasses and docstrings."""

import dataclasses
import inspect
import re
from typing import Any

from builder.tables import shown_default, table, type_name
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)

INTRODUCTION = """# Model configurations

A model configuration, `config.json` beside the weights, holds everything that changes numbers. It is a
[`VaswaniConfig`](#vaswaniconfig), [`VaswaniEncoderConfig`](#vaswaniencoderconfig) or
[`VaswaniDecoderConfig`](#vaswanidecoderconfig). [Systems](systems.md) lists the values that make BERT, GPT-2
or MarianMT. Commands that make new weights, such as [`vaswani train`](commands/train.md), have the same
fields as options. The fields of transformers' `PreTrainedConfig`, such as `num_labels`, are accepted as well.

"""


def configuration_page() -> str:
    """The fields of each configuration, with types, defaults and meaning."""
    parts = [_part(each) for each in (VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig)]
    return INTRODUCTION + "\n".join(parts)


def _part(config_class: Any) -> str:
    summary = inspect.getdoc(config_class).partition("\n")[0]
    meanings = {**_meanings(VaswaniFamilyConfig), **_meanings(config_class)}
    rows = [
        [f"`{name}`", type_name(field.type), shown_default(default_of(field)), meanings[name]]
        for name, field in ((field.name, field) for field in dataclasses.fields(config_class))
        if name in meanings
    ]
    heading = ["field", "type", "default", "meaning"]
    return f"## {config_class.__name__}\n\n{summary}\n\n{table(heading, rows)}"


def default_of(field: dataclasses.Field) -> Any:
    """The default of a field, `None` if it has none."""
    return None if field.default is dataclasses.MISSING else field.default


def _meanings(config_class: Any) -> dict[str, str]:
    """Return the description of each field under `Args:`; several fields may share an entry."""
    arguments = inspect.getdoc(config_class).partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(
        r"^    (\w+(?:,\s+\w+)*): (.*?)(?=^    \w|\Z)", arguments, flags=re.DOTALL | re.MULTILINE
    )
    return {name: text for names, text in entries for name in re.split(r",\s+", names)}
