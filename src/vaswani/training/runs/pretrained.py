"""The pre-trained model that a training begins with: opened, and given a head for its task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.run_metadata import read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import check_places, check_weights, is_of_base_model, load_weights, without_remarks
from vaswani.model.decoding import position_limit

ENCODERS = "an encoder such as 'vaswani_encoder', 'bert' or 'distilbert'"
DECODERS = "a decoder such as 'vaswani_decoder'"


@dataclass(frozen=True)
class Pretrained:
    """What a training can begin with.

    Args:
        folder: of the model.
        config: of the model, with a head of another task or none.
        tokenizer: pads on the right.
        longest: tokens that the model has positions for, special tokens counted; None for any number.
    """

    folder: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    longest: int | None

    def check_length(self, max_length: int) -> None:
        """Find sequences that are longer than the model's positions.

        Raises:
            UserError: they are.
        """
        if self.longest is not None and max_length > self.longest:
            raise UserError(
                f"max_length={max_length}, but {self.folder} has positions for {self.longest} tokens; set "
                f"max_length to {self.longest} or less"
            )


def open_pretrained(name: str, auto_class: Any) -> Pretrained:
    """Open a folder, or a model on the Hub, without loading its weights.

    Args:
        name: of the folder or of the model.
        auto_class: that will load it.

    Raises:
        UserError: there is no model, none that this class loads, or no tokenizer that can be used.
    """
    folder = local_folder(name)
    config = read_config(folder)
    if type(config) not in auto_class._model_mapping:
        causal = auto_class is AutoModelForCausalLM
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}, which {auto_class.__name__} does not "
            f"load; expected {DECODERS if causal else ENCODERS}"
        )
    tokenizer = load_tokenizers(folder)[0]
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer in {folder} has no padding token, which batches need; give it one")
    tokenizer.padding_side = "right"
    return Pretrained(folder, config, tokenizer, _longest(config, auto_class, tokenizer))


def _longest(config: PreTrainedConfig, auto_class: Any, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The model may have fewer positions than its configuration tells: RoBERTa's begin behind its padding."""
    with torch.device("meta"):
        of_model = position_limit(auto_class.from_config(config, trust_remote_code=False))
    return None if of_model is None else min(of_model, tokenizer.model_max_length)


def load_with_head(
    pretrained: Pretrained, auto_class: Any, fields: dict[str, Any], **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load a model with a head for a task, in float32.

    Args:
        pretrained: the model.
        auto_class: of the task.
        fields: of the configuration, that tell of the task's labels.
        options: of `from_pretrained`.

    Returns:
        The model, and the names of the weights that are new: those of a head that it had not, or of other
        size. They are drawn as torch's generator stands.

    Raises:
        UserError: its weights are missing, damaged, or not those of this model.
    """
    folder = pretrained.folder
    check_weights(folder, pretrained.config)
    config = _config_with(folder, fields)
    model, report = load_weights(
        folder, auto_class, config, dtype=torch.float32, ignore_mismatched_sizes=True, **options
    )
    new = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    of_base = [
        [name for name in names if is_of_base_model(name, model)]
        for names in (new, report["unexpected_keys"])
    ]
    check_places(folder, missing=of_base[0], unplaced=of_base[1])
    check_vocabulary(folder, model, pretrained.tokenizer)
    return model, new


def new_with_head(
    pretrained: Pretrained, auto_class: Any, fields: dict[str, Any], **options: Any
) -> PreTrainedModel:
    """A model of the same shape with new weights, drawn as torch's generator stands, in float32.

    Raises:
        UserError: an option that cannot be.
    """
    config = _config_with(pretrained.folder, fields)
    try:
        model = auto_class.from_config(config, dtype=torch.float32, trust_remote_code=False, **options)
    except (ValueError, ImportError) as error:
        raise UserError(one_line(error)) from error
    check_vocabulary(pretrained.folder, model, pretrained.tokenizer)
    return model


def _config_with(folder: Path, fields: dict[str, Any]) -> PreTrainedConfig:
    with without_remarks():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **fields)
