"""Description of another implementation: its classes, and tables of configuration fields and tensors.

"Theirs" is the other implementation, "ours" is vaswani.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import PreTrainedConfig

from vaswani.errors import UserError, one_line
from vaswani.interop.weights import Rule, State, with_prefix
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig

logger = logging.getLogger(__name__)

# Fields of every configuration of transformers, with the same meaning everywhere.
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
SHARED_FIELDS = (*SPECIAL_TOKENS, "tie_word_embeddings", "id2label", "label2id", "problem_type")


# Values of our fields in most other implementations; a format replaces those that differ.
USUAL: dict[str, Any] = {
    "norm_order": "post",
    "final_norm": False,
    "embedding_norm": False,
    "norm_bias": True,
    "position_embedding": "learned",
    "position_from_mask": False,
    "attention_output_bias": True,
    "ffn_bias": True,
}


@dataclass(frozen=True)
class Format:
    """A model type of transformers that can be converted.

    Args:
        name: its `model_type`, and its name for `--to`.
        config_class: their configuration class.
        our_config_class: our configuration class.
        classes: maps their class names to ours.
        fields: maps their fields to our fields of the same meaning.
        theirs: values that their fields must have, because other values have no counterpart.
        training_only: likewise, for fields that only a training uses: other values are lost with a warning.
        ours: values that our fields have for all these models.
        base: rules for the tensors of their base model.
        prefix: prefix of the base model's tensor names in a model with a head.
        heads: rules for the tensors of all their heads.
        free: fields of `ours` that may have another value when a model is exported.
        derived: returns other fields of ours from their configuration and class name.
        derived_back: returns other fields of theirs from our configuration.
        prepared: returns our configuration and tensors, in an equivalent form that their models support.
    """

    name: str
    config_class: type[PreTrainedConfig]
    our_config_class: type[VaswaniFamilyConfig]
    classes: dict[str, str]
    fields: dict[str, str]
    base: tuple[Rule, ...]
    prefix: str
    heads: tuple[Rule, ...]
    theirs: dict[str, Any] = field(default_factory=dict)
    training_only: dict[str, Any] = field(default_factory=dict)
    ours: dict[str, Any] = field(default_factory=dict)
    free: frozenset[str] = frozenset({"position_from_mask"})  # no effect if padding is on the right
    derived: Callable[[Any, str], dict[str, Any]] = lambda config, class_name: {}
    derived_back: Callable[[Any], dict[str, Any]] = lambda config: {}
    prepared: Callable[[Any], tuple[Any, State]] = lambda model: (model.config, model.state_dict())

    def rules(self, class_name: str) -> tuple[Rule, ...]:
        """Return the rules for the tensors of one of their classes."""
        if self.classes[class_name].endswith("Model"):
            return self.base
        return (*with_prefix(self.prefix, self.base), *self.heads)

    def to_ours(self, config: PreTrainedConfig, class_name: str) -> VaswaniFamilyConfig:
        """Convert a configuration to ours.

        Raises:
            UserError: the value of a field has no counterpart.
        """
        for name, value in self.theirs.items():
            if (found := getattr(config, name, value)) != value:
                raise UserError(
                    f"{name}={found!r} has no counterpart in vaswani: only {self.name} models with "
                    f"{name}={value!r} can be converted"
                )
        for name, value in self.training_only.items():
            if (found := getattr(config, name, value)) != value:
                logger.warning(
                    "%s=%r, which has an effect in training only, has no counterpart in vaswani: left out.",
                    *(name, found),
                )
        causal = getattr(config, "is_causal", None)  # if set, transformers' masks follow it
        if causal is not None and not (causal and self.our_config_class.stacks == ("decoder",)):
            raise UserError(
                f"is_causal={causal!r} has no counterpart in vaswani: only {self.name} models without this "
                "field can be converted"
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
        values |= dict.fromkeys(tokens_without_embedding(config))
        return build_config(self.our_config_class, {**values, **self.derived(config, class_name)})

    def to_theirs(self, config: VaswaniFamilyConfig) -> PreTrainedConfig:
        """Convert our configuration to theirs.

        Raises:
            UserError: their models do not support the value of a field.
        """
        for name, value in self.ours.items():
            found = _plain(config, name)
            if found != value and name not in self.free:
                raise UserError(
                    f"{name}={found!r} is not supported: {self.name} models have {name}={value!r}"
                )
        values = {name: getattr(config, our_name) for name, our_name in self.fields.items()}
        values |= {name: getattr(config, name, None) for name in SHARED_FIELDS} | self.theirs
        values |= self.training_only
        return build_config(self.config_class, {**values, **self.derived_back(config)})


def tokens_without_embedding(config: PreTrainedConfig) -> list[str]:
    """Return the names of a single-stack model's special tokens without an embedding; warn about them.

    GPT-2's configuration has the token 50256 by default, also for a model with fewer tokens.
    """
    found = []
    for name in SPECIAL_TOKENS if not config.is_encoder_decoder else ():
        token = getattr(config, name, None)
        if isinstance(token, int) and not 0 <= token < config.vocab_size:
            logger.warning(
                "%s=%d is outside the vocabulary of %d tokens; the converted model has none.",
                *(name, token, config.vocab_size),
            )
            found.append(name)
    return found


def _plain(config: VaswaniFamilyConfig, name: str) -> Any:
    """Return the value of a field; attention that is full in all layers is `"full"`."""
    stack, _, suffix = name.rpartition("_")
    is_full = suffix == "attention" and set(config.layer_attention(stack)) == {"full"}
    return "full" if is_full else getattr(config, name)


def build_config(config_class: type[Any], values: Mapping[str, Any]) -> Any:
    """Return a configuration with these values.

    Raises:
        UserError: the configuration rejects them.
    """
    given = {name: value for name, value in values.items() if not (name in SHARED_FIELDS and value is None)}
    # Missing tokens are given as None, because the defaults are not None.
    given |= {name: values.get(name) for name in SPECIAL_TOKENS}
    try:
        return config_class(**given)
    except (ValueError, StrictDataclassError) as error:
        raise UserError(f"invalid configuration: {one_line(error.__cause__ or error)}") from error
