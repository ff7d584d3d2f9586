"""What there is to say of another implementation so that its models become ours, and ours become its.

Configurations are tables too: which field of theirs is which of ours, and what all models of that kind have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from vaswani.errors import UserError, one_line
from vaswani.interop.weights import Rule
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

# What every configuration of transformers has, and means the same everywhere.
SHARED_FIELDS = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings"),
    *("id2label", "label2id", "problem_type"),
)


@dataclass(frozen=True)
class Format:
    """One kind of model of the library.

    Args:
        name: its `model_type`, and what `--to` calls it.
        config_class: of its configurations.
        our_config_class: of ours.
        classes: for each class of theirs, ours.
        fields: for each field of theirs, the one of ours that means the same.
        theirs: values that fields of theirs must have: others have no counterpart here.
        ours: values that fields of ours have for all models of that kind.
        rules: of the tensors of a class of theirs.
        free: fields of `ours` that may have another value and still be converted back.
        derived: fields of ours that follow in other ways from theirs and the name of their class.
        derived_back: fields of theirs that follow in other ways from ours.
    """

    name: str
    config_class: type[PreTrainedConfig]
    our_config_class: type[VaswaniFamilyConfig]
    classes: dict[str, str]
    fields: dict[str, str]
    rules: Callable[[str], tuple[Rule, ...]]
    theirs: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    free: frozenset[str] = frozenset({"position_from_mask"})  # the same wherever padding is on the right
    derived: Callable[[Any, str], dict[str, Any]] = lambda config, kind: {}
    derived_back: Callable[[Any], dict[str, Any]] = lambda config: {}

    def to_ours(self, config: PreTrainedConfig, kind: str) -> VaswaniFamilyConfig:
        """The configuration of a class of theirs as ours.

        Raises:
            UserError: a field of theirs whose value has no counterpart, named.
        """
        for name, value in self.theirs.items():
            if (found := getattr(config, name, value)) != value:
                raise UserError(
                    f"{name}={found!r} has no counterpart in vaswani: of {self.name} models, those with "
                    f"{name}={value!r} can be converted"
                )
        values: dict[str, Any] = {}
        for name, our_name in self.fields.items():
            value = getattr(config, name)
            if values.setdefault(our_name, value) != value:
                others = [other for other, ours in self.fields.items() if ours == our_name and other != name]
                raise UserError(
                    f"{name}={value!r} and {others[0]}={values[our_name]!r} differ, and vaswani has "
                    f"{our_name} for both; set them to one value"
                )
        values |= {name: getattr(config, name, None) for name in SHARED_FIELDS} | self.ours
        return made(self.our_config_class, {**values, **self.derived(config, kind)})

    def to_theirs(self, config: VaswaniFamilyConfig) -> PreTrainedConfig:
        """Our configuration as theirs.

        Raises:
            UserError: a field of ours whose value their models do not have, named.
        """
        for name, value in self.ours.items():
            found = _plain(config, name)
            if found != value and name not in self.free:
                raise UserError(
                    f"{name}={found!r} stands in the way: {self.name} models have {name}={value!r}"
                )
        values = {name: getattr(config, our_name) for name, our_name in self.fields.items()}
        values |= {name: getattr(config, name, None) for name in SHARED_FIELDS} | self.theirs
        return made(self.config_class, {**values, **self.derived_back(config)})


def _plain(config: VaswaniFamilyConfig, name: str) -> Any:
    """The value of a field; attention that is full in all layers is `"full"`."""
    if name.endswith("_attention") and set(config.layer_attention(name.removesuffix("_attention"))) == {
        "full"
    }:
        return "full"
    return getattr(config, name)


def made(config_class: type[Any], values: Mapping[str, Any]) -> Any:
    """A configuration with these values.

    Raises:
        UserError: they make none, in the words of the configuration.
    """
    given = {name: value for name, value in values.items() if not (name in SHARED_FIELDS and value is None)}
    # A missing token is said, for the defaults name some.
    given |= {name: values.get(name) for name in SHARED_FIELDS[:3]}
    try:
        return config_class(**given)
    except (ValueError, StrictDataclassError) as error:
        raise UserError(f"no such configuration: {one_line(error.__cause__ or error)}") from error
