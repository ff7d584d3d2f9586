"""The model that a training begins with: a new one, or a pre-trained one with a head for its task."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    enable_full_determinism,
    set_seed,
)

from vaswani.auto_classes import models_of
from vaswani.data.given_tokenizers import is_sentencepiece, open_tokenizers
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError, one_line
from vaswani.hub.checkpoint import local_folder
from vaswani.hub.run_metadata import read_config
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.hub.weights import check_places, check_weights, is_of_base_model, load_weights, without_remarks
from vaswani.inference.decoding import position_limit
from vaswani.training.config.arguments import FamilyArguments
from vaswani.training.config.options import BaseConfig

ENCODERS = "an encoder such as 'vaswani_encoder', 'bert' or 'distilbert'"
DECODERS = "a decoder such as 'vaswani_decoder'"
ENCODER_DECODERS = "an encoder-decoder such as 'vaswani', 'marian', 'bart' or 't5'"

Shape = TypeVar("Shape", bound=PreTrainedConfig)


def config_from(config_class: type[Shape], arguments: FamilyArguments, **others: Any) -> Shape:
    """Return a model's configuration from the arguments of a run.

    Args:
        config_class: of the model.
        arguments: its fields as a run was given them.
        others: fields that the data decide, such as the size of the vocabulary.

    Raises:
        UserError: for values that make no model, such as heads that do not divide the width.
    """
    values = asdict(arguments)
    values.pop("attn_implementation")
    for name in ("encoder_attention", "decoder_attention"):
        if len(values.get(name, ())) == 1:  # one word for all layers
            values[name] = values[name][0]
    try:
        return config_class(**values, **others)
    except (ValueError, StrictDataclassError) as error:
        raise UserError(one_line(error.__cause__ or error)) from error


def new_model(config: BaseConfig, auto_class: Any, shape: PreTrainedConfig) -> PreTrainedModel:
    """Return a model with new weights, drawn from the run's seed.

    Args:
        config: of the run.
        auto_class: the Auto class whose model it is.
        shape: its configuration.

    Raises:
        UserError: there is no such attention kernel.
    """
    seed_everything(config)
    return _from_config(auto_class, shape, **kernel_options(config))


def pretrained_model(
    config: BaseConfig, pretrained: Pretrained, auto_class: Any, fields: dict[str, Any]
) -> PreTrainedModel:
    """Load a pre-trained model with the heads that a run trains; print which of its weights are new.

    Args:
        config: of the run, whose seed draws the new weights.
        pretrained: the model.
        auto_class: with those heads.
        fields: of its configuration, for the task.

    Raises:
        UserError: the weights are missing, damaged or another model's, or there is no such attention kernel.
    """
    seed_everything(config)
    model, new = load_with_head(pretrained, auto_class, fields, **kernel_options(config))
    if new:
        PartialState().print(f"new weights: {', '.join(new)}", flush=True)
    return model


def seed_everything(config: BaseConfig) -> None:
    """Draw first weights, and what follows, from the run's seed."""
    args = config.training
    enable_full_determinism(args.seed) if args.full_determinism else set_seed(args.seed)


def kernel_options(config: BaseConfig) -> dict[str, Any]:
    """Return the attention kernel of a run as the Auto classes take it; nothing for their own choice."""
    kernel = config.model.attn_implementation
    return {"attn_implementation": kernel} if kernel else {}


# -------------------------------------------------------------------------------------- pre-trained models


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model whose weights are not loaded yet.

    Args:
        folder: of the model.
        config: of the model, with a head of another task or none.
        tokenizer: pads on the right.
        longest: tokens that the model has positions for, special tokens counted; None for any number. Of an
            encoder-decoder, in its sources.
        longest_target: likewise, in its targets.
    """

    folder: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    longest: int | None
    longest_target: int | None

    def check_length(self, length: int, name: str = "max_length") -> None:
        """Raise `UserError` for sequences that are longer than the model's positions."""
        most = self.longest_target if name == "max_target_length" else self.longest
        if most is not None and length > most:
            raise UserError(
                f"{name}={length}, but {self.folder} has positions for {most} tokens; set {name} to {most} "
                "or less"
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
    if type(config) not in models_of(auto_class):
        kinds = {AutoModelForCausalLM: DECODERS, AutoModelForSeq2SeqLM: ENCODER_DECODERS}
        raise UserError(
            f"{folder} holds a model of type {config.model_type!r}, which {auto_class.__name__} does not "
            f"load; expected {kinds.get(auto_class, ENCODERS)}"
        )
    tokenizer = load_tokenizers(folder)[0]
    if tokenizer.pad_token_id is None:
        raise UserError(f"the tokenizer in {folder} has no padding token, which batches need; give it one")
    tokenizer.padding_side = "right"
    return Pretrained(folder, config, tokenizer, *_longest(config, auto_class, tokenizer))


def named_tokenizers(name: str) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Open the source and target tokenizers of a folder, of a model on the Hub, or of a SentencePiece model.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if Path(name).is_file() and not is_sentencepiece(name):
        raise UserError(
            f"tokenizer={name} is a file; expected a SentencePiece model (.model or .spm), a folder, or a "
            "name on the Hub"
        )
    return open_tokenizers(Path(name) if is_sentencepiece(name) else local_folder(name, weights=False))


def _longest(
    config: PreTrainedConfig, auto_class: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[int | None, int | None]:
    """The tokens of a source and of a target that a model has positions for.

    They may be fewer than its configuration tells: RoBERTa's begin behind its padding.
    """
    with torch.device("meta"):
        model = auto_class.from_config(config, trust_remote_code=False)
    source, target = position_limit(model, "source"), position_limit(model, "target")
    return None if source is None else min(source, tokenizer.model_max_length), target


def load_with_head(
    pretrained: Pretrained, auto_class: Any, fields: dict[str, Any], **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Load a model with a head for a task, in float32.

    Args:
        pretrained: the model.
        auto_class: of the task.
        fields: of the configuration, for the task's labels.
        options: of `from_pretrained`.

    Returns:
        The model, and the names of the weights that are new: those of a head that the model had not, or of
        another size. They are drawn from torch's generator.

    Raises:
        UserError: the weights are missing, damaged or another model's.
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
    """Return a model of the same shape with new weights, drawn from torch's generator, in float32.

    Raises:
        UserError: an option that does not work, or a tokenizer that does not fit.
    """
    config = _config_with(pretrained.folder, fields)
    model = _from_config(auto_class, config, dtype=torch.float32, trust_remote_code=False, **options)
    check_vocabulary(pretrained.folder, model, pretrained.tokenizer)
    return model


def _from_config(auto_class: Any, shape: PreTrainedConfig, **options: Any) -> PreTrainedModel:
    try:
        return auto_class.from_config(shape, **options)
    except (ValueError, ImportError) as error:
        raise UserError(one_line(error)) from error


def _config_with(folder: Path, fields: dict[str, Any]) -> PreTrainedConfig:
    with without_remarks():
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **fields)
