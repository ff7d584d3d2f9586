"""Rewrite the weights of a model for another configuration that computes the same outputs.

Each function takes a configuration and the tensors of its model, and returns another pair. It does not change
its arguments.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch

from vaswani.errors import UserError
from vaswani.interop.weights import State
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniFamilyConfig

Config = TypeVar("Config", bound=VaswaniFamilyConfig)

READS_STREAM = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "fc1")  # features are the columns
WRITES_STREAM = ("out_proj", "fc2")  # features are the rows
BIAS_FIELDS = ("attention_bias", "attention_output_bias", "ffn_bias", "norm_bias")
WITHOUT_BIAS = ("embed_tokens", "embed_positions", "lm_head")


def with_usual_keys(config: Config, state: State) -> tuple[Config, State]:
    """Give the keys the width of the values, d_model / heads, if they are narrower.

    Zeros are added to the queries and keys of each head, which does not change their products. The queries
    are multiplied by sqrt(d_v / d_k), because the scores of wider keys are divided by sqrt(d_v).

    Raises:
        UserError: the keys are wider than the values.
    """
    if config.key_dim is None:
        return config, state
    for stack in config.stacks:
        key_dim, value_dim = config.head_widths(getattr(config, f"{stack}_attention_heads"))
        if key_dim > value_dim:
            raise UserError(
                f"key_dim={key_dim} is not supported: elsewhere, keys are at most as wide as values, "
                f"which have {value_dim} features in a head of the {stack}"
            )
    usual = deepcopy(config)
    usual.key_dim = None
    return usual, {name: _widened(config, name, tensor) for name, tensor in state.items()}


def _widened(config: VaswaniFamilyConfig, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a weight or bias of queries or keys with the width of the values; other tensors stay."""
    places = name.split(".")
    if places[-2] not in ("q_proj", "k_proj"):
        return tensor
    heads = getattr(config, f"{'encoder' if 'encoder' in places else 'decoder'}_attention_heads")
    key_dim, value_dim = config.head_widths(heads)
    wide = tensor.new_zeros(heads, value_dim, *tensor.shape[1:])
    factor = (value_dim / key_dim) ** 0.5 if places[-2] == "q_proj" else 1.0
    wide[:, :key_dim] = tensor.unflatten(0, (heads, key_dim)) * factor
    return wide.flatten(0, 1)


def with_concatenated_sinusoids(config: VaswaniConfig, state: State) -> tuple[VaswaniConfig, State]:
    """Put all sines before all cosines, if sines and cosines alternate.

    All layers read and write the same stream of `d_model` features, and no norm depends on their order.
    Therefore the sines can come first if the features of every tensor are permuted alike. Attention and
    feed-forward layers compute the same inside; the states between them, and so the encoder's output, are
    permuted by `sines_first`.

    Raises:
        KeyError: a tensor belongs to no layer of an encoder-decoder.
    """
    if config.position_embedding != "sinusoidal" or config.sinusoidal_layout != "interleaved":
        return config, state
    config = deepcopy(config)
    config.sinusoidal_layout = "concatenated"
    order = sines_first(config.d_model)
    return config, {name: _permuted(name, tensor, order) for name, tensor in state.items()}


def sines_first(d_model: int) -> torch.Tensor:
    """Return, for each feature of the concatenated layout, its index in the interleaved: int64 [d_model]."""
    return torch.arange(d_model).view(-1, 2).t().flatten()


def with_zero_biases(config: VaswaniConfig, state: State) -> tuple[VaswaniConfig, State]:
    """Add a zero bias to every projection and norm of the layers that has no bias."""
    config = deepcopy(config)
    for name in BIAS_FIELDS:
        setattr(config, name, True)
    zeros = {
        name.removesuffix("weight") + "bias": torch.zeros_like(weight[:, 0] if weight.ndim == 2 else weight)
        for name, weight in state.items()
        if name.endswith("weight") and name.split(".")[-2] not in WITHOUT_BIAS
    }
    return config, {**zeros, **state}


def _permuted(name: str, tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the features of the stream in another order; other axes stay."""
    *_, module, part = name.split(".")
    if module in READS_STREAM:
        return tensor[:, order] if part == "weight" else tensor
    if module in WRITES_STREAM or module.endswith("norm"):
        return tensor[order]
    raise KeyError(f"{name} has no known place in the residual stream")
