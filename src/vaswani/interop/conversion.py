"""Models of other implementations as ours, and ours as theirs, in memory.

A converted model computes what the other did, to the last digits: the tests compare logits, hidden states,
losses and gradients.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from vaswani.errors import UserError
from vaswani.interop import torch_transformer
from vaswani.interop.bert import BERT, BIG_BIRD, DISTILBERT
from vaswani.interop.formats import Format
from vaswani.interop.gpt import GPT2, OPENAI_GPT
from vaswani.interop.marian_fsmt import FSMT, MARIAN
from vaswani.interop.weights import to_ours, to_theirs
from vaswani.model import modeling_vaswani, modeling_vaswani_decoder, modeling_vaswani_encoder
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)
from vaswani.model.embeddings import SinusoidalPositions

OUR_CLASSES: dict[str, Any] = {
    place.rpartition(".")[2]: getattr(module, place.rpartition(".")[2])
    for module, config_class in (
        (modeling_vaswani, VaswaniConfig),
        (modeling_vaswani_encoder, VaswaniEncoderConfig),
        (modeling_vaswani_decoder, VaswaniDecoderConfig),
    )
    for auto_class, place in config_class.auto_classes.items()
    if auto_class != "AutoConfig"
}
FORMATS = {each.name: each for each in (MARIAN, FSMT, BERT, DISTILBERT, BIG_BIRD, OPENAI_GPT, GPT2)}


def convert(model: Any) -> PreTrainedModel:
    """The model of ours that computes what a model of another implementation does.

    Takes MarianMT, FSMT, BERT, DistilBERT, BigBird, OpenAI GPT and GPT-2 models of transformers, and
    `torch.nn.Transformer`, which becomes a `VaswaniModel` without embeddings of its own: give it
    `inputs_embeds` and `decoder_inputs_embeds`. Weights are copied, in their dtype; the settings of
    `generate` too. BigBird's weights are theirs, its sparse pattern is ours.

    Raises:
        UserError: a model of another kind (naming those that there are), a field of its configuration that
            has no counterpart, or a tensor that has no place, named.
    """
    if isinstance(model, nn.Transformer):
        return torch_transformer.from_torch(model)
    kind = type(model).__name__
    found = format_of(kind)
    config = found.to_ours(model.config, kind)
    with torch.device("meta"):
        ours = OUR_CLASSES[found.classes[kind]](config)
    tables = _tables(model, config)
    state = to_ours(model.state_dict(), found.rules(kind), ours.state_dict(), tables)
    _check_ties(ours, state)
    return _filled(ours, state, model)


def export(model: PreTrainedModel, to: str) -> nn.Module:
    """The library's model that computes what ours does, where there is one.

    Args:
        model: of ours.
        to: `"marian"`, `"bert"`, `"gpt2"` or another of `FORMATS`.

    Raises:
        UserError: no such format, no such class there, or a field of our configuration that stands in the
            way, named.
    """
    if to not in FORMATS:
        raise UserError(f"unknown format {to!r}; choose one of {', '.join(FORMATS)}")
    kind = FORMATS[to]
    classes = {ours: theirs for theirs, ours in kind.classes.items()}
    ours = type(model).__name__
    if not isinstance(model.config, kind.our_config_class) or ours not in classes:
        raise UserError(f"{ours} has no counterpart among {to} models, which have {', '.join(classes)}")
    theirs = getattr(transformers, classes[ours])(kind.to_theirs(model.config)).to(model.dtype)
    state = to_theirs(model.state_dict(), kind.rules(classes[ours]), theirs.state_dict())
    return _filled(theirs, state, model)


def format_of(kind: str) -> Format:
    """The format that has a class of this name.

    Raises:
        UserError: none has, naming what there is.
    """
    for found in FORMATS.values():
        if kind in found.classes:
            return found
    known = ", ".join(name for found in FORMATS.values() for name in found.classes)
    raise UserError(f"{kind} cannot be converted; these can: {known}, torch.nn.Transformer")


def _tables(model: nn.Module, config: VaswaniFamilyConfig) -> dict[str, torch.Tensor]:
    """The sinusoids of each table of theirs, as we compute them; FSMT's counts from padding, ours from 0."""
    tables = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("embed_positions.weight") and config.position_embedding == "sinusoidal":
            offset = config.sinusoidal_offset
            positions = torch.arange(-offset, len(tensor) - offset, device=tensor.device)
            tables[name] = SinusoidalPositions(config).encode(positions, torch.float32)
            tables[name][max(offset - 1, 0) : offset] = 0  # that of padding
    return tables


def _check_ties(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> None:
    for target, source in model.all_tied_weights_keys.items():
        if not torch.equal(state[target], state[source]):
            raise UserError(f"{target} and {source} differ, though the configuration ties them")


def _filled(model: Any, state: dict[str, torch.Tensor], like: Any) -> Any:
    """A model with these weights, and the rest as another model has it."""
    model.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    model.tie_weights()
    model.config.dtype = like.dtype
    if like.can_generate() and model.can_generate():
        model.generation_config = deepcopy(like.generation_config)
    return model.train(like.training)
