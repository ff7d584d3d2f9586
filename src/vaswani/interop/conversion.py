"""Convert models of other implementations to vaswani and back, in memory.

A converted model computes the same outputs to rounding: tests compare logits, hidden states, losses and
gradients.
"""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from vaswani.errors import UserError
from vaswani.interop import torch_transformer
from vaswani.interop.bert import BERT, BIG_BIRD, DISTILBERT
from vaswani.interop.equal_weights import with_usual_keys
from vaswani.interop.formats import SPECIAL_TOKENS, Format
from vaswani.interop.gpt import GPT2, OPENAI_GPT
from vaswani.interop.marian_fsmt import FSMT, MARIAN
from vaswani.interop.weights import to_ours, to_theirs
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)
from vaswani.model.embeddings import SinusoidalPositions

OUR_CLASSES: dict[str, Any] = {
    name: getattr(import_module(f"vaswani.model.{module}"), name)
    for config_class in (VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig)
    for module, _, name in (place.partition(".") for place in config_class.auto_classes.values())
    if not name.endswith("Config")
}
FORMATS = {each.name: each for each in (MARIAN, FSMT, BERT, DISTILBERT, BIG_BIRD, OPENAI_GPT, GPT2)}


def convert(model: Any) -> PreTrainedModel:
    """Convert a model to vaswani.

    Accepts MarianMT, FSMT, BERT, DistilBERT, BigBird, OpenAI GPT and GPT-2 models of transformers, and
    `torch.nn.Transformer`, which becomes a `VaswaniModel` that needs `inputs_embeds` and
    `decoder_inputs_embeds`. Copies weights, dtype and generation settings. A converted BigBird keeps its
    weights and gets vaswani's sparse pattern.

    Raises:
        UserError: the class is not supported, or a configuration field or a tensor has no counterpart.
    """
    if isinstance(model, nn.Transformer):
        return torch_transformer.from_torch(model)
    class_name = type(model).__name__
    found = format_of(class_name)
    config = found.to_ours(model.config, class_name)
    with torch.device("meta"):
        ours = OUR_CLASSES[found.classes[class_name]](config)
    tables = _tables(model, config)
    state = to_ours(model.state_dict(), found.rules(class_name), ours.state_dict(), tables)
    _check_shapes(ours, state)
    _check_ties(ours, state)
    return _filled(ours, state, model)


def export(model: PreTrainedModel, to: str) -> nn.Module:
    """Convert a vaswani model to a model of transformers, in memory.

    `export_folder` writes files for inference engines.

    MarianMT supports every encoder-decoder with post-norm layers, full attention and the paper's sinusoids.
    If sines and cosines alternate, as by default, the features of the result's states are in Marian's order.

    Args:
        model: a model of vaswani.
        to: `"marian"`, `"bert"`, `"gpt2"` or another of `FORMATS`.

    Raises:
        UserError: the format does not exist, or the class or a configuration field has no counterpart in it.
    """
    if to not in FORMATS:
        raise UserError(f"unknown format {to!r}; choose one of {', '.join(FORMATS)}")
    target = FORMATS[to]
    classes = {ours: theirs for theirs, ours in target.classes.items()}
    ours = type(model).__name__
    if not isinstance(model.config, target.our_config_class) or ours not in classes:
        raise UserError(f"{ours} has no counterpart among {to} models, which have {', '.join(classes)}")
    config, our_state = with_usual_keys(*target.prepared(model))
    theirs = getattr(transformers, classes[ours])(target.to_theirs(config)).to(model.dtype)
    state = to_theirs(our_state, target.rules(classes[ours]), theirs.state_dict())
    return _filled(theirs, state, model)


def format_of(class_name: str) -> Format:
    """Return the format of a class; raise a UserError if it is not supported."""
    for found in FORMATS.values():
        if class_name in found.classes:
            return found
    known = ", ".join(name for found in FORMATS.values() for name in found.classes)
    raise UserError(f"{class_name} cannot be converted; these can: {known}, torch.nn.Transformer")


def _tables(model: nn.Module, config: VaswaniFamilyConfig) -> dict[str, torch.Tensor]:
    """Return our sinusoids for each of their tables; FSMT's positions start after the padding token's."""
    tables = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("embed_positions.weight") and config.position_embedding == "sinusoidal":
            offset = config.sinusoidal_offset
            positions = torch.arange(-offset, len(tensor) - offset, device=tensor.device)
            tables[name] = SinusoidalPositions(config).encode(positions, torch.float32)
            tables[name][max(offset - 1, 0) : offset] = 0  # the position of padding
    return tables


def _check_shapes(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        if state[name].shape != tensor.shape:
            raise UserError(
                f"{name} would have the shape {list(state[name].shape)}, and vaswani's model has "
                f"{list(tensor.shape)}; correct the configuration, such as num_labels"
            )


def _check_ties(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    for target, source in model.all_tied_weights_keys.items():
        if not torch.equal(state[target], state[source]):
            raise UserError(f"{target} and {source} differ, though the configuration ties them")


def _filled(model: Any, state: dict[str, torch.Tensor], like: Any) -> Any:
    """Load weights into a model, and copy its dtype, mode and generation settings from another."""
    model.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    model.tie_weights()
    model.config.dtype = like.dtype
    if like.can_generate() and model.can_generate():
        generation: Any = deepcopy(like.generation_config)
        # A token without an embedding ends no text (see `tokens_without_embedding`).
        for name in SPECIAL_TOKENS:
            if isinstance(token := getattr(generation, name), int) and token >= model.config.vocab_size:
                setattr(generation, name, None if not model.config.is_encoder_decoder else token)
        model.generation_config = generation
        if hasattr(model.config, "forced_eos_token_id"):  # Marian's default is token 0, whatever that is
            model.config.forced_eos_token_id = generation.forced_eos_token_id
    return model.train(like.training)
