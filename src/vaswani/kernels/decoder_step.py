"""One decoder step of a search, for one new token of each row, without calling modules.

A step of a small model computes little: most of its time would go into module calls and their checks, masks
that never change, and the choice of kernels. Here the weights of all layers are collected once for each
search, and a step is a plain sequence of the operators that the modules use.

R rows, K of each source · H heads · Dk, Dv widths of keys and values · S source length
V tokens in the vocabulary
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import nn
from torch.nn.functional import embedding, layer_norm, scaled_dot_product_attention
from transformers.modeling_outputs import Seq2SeqLMOutput

from vaswani.kernels.int8_linear import Int8Linear
from vaswani.kernels.onednn import product_by
from vaswani.kernels.short_attention import gains_from_short_attention, weights_of_seen
from vaswani.model.attention import VaswaniAttention, additive_mask, eager_attention_forward
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.embeddings import LearnedPositions, SinusoidalPositions, TokenEmbeddings
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from vaswani.model.operators import Linear, OutputProjection, is_called_alone
from vaswani.model.stacks import VaswaniDecoder, VaswaniDecoderLayer

if TYPE_CHECKING:
    from vaswani.kernels.search_cache import SearchCache

Product = Callable[[torch.Tensor], torch.Tensor]

PLAIN_MODULES = (
    *(VaswaniDecoder, VaswaniDecoderLayer, VaswaniAttention, TokenEmbeddings, Linear, OutputProjection),
    *(SinusoidalPositions, LearnedPositions, Int8Linear, nn.LayerNorm, nn.Identity, nn.ModuleList),
)

# The folders with the source files of the modules' methods, including decorated methods.
PACKAGES = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(__file__).parents[1],
        *(Path(str(one.__file__)).parent for one in (torch, transformers)),
    )
)


def is_plain(model: Any) -> bool:
    """Return whether the decoder is unmodified: no module is replaced, hooked, sharded or quantized."""
    decoder = model.get_decoder()
    if not all(map(_has_plain_attention, decoder.layers)):
        return False
    activations = [layer.activation_fn for layer in decoder.layers]  # of any type
    places = [layer.self_attn.layer_idx for layer in decoder.layers]  # in the cache
    return (
        not model.training
        and not any(module.training for module in decoder.modules() if hasattr(module, "dropout"))
        and model.config._attn_implementation == "sdpa"
        and model.dtype != torch.float16  # in float16, the layers clamp their sums
        and places == list(range(model.config.decoder_layers))
        and type(model).forward is VaswaniForConditionalGeneration.forward
        and type(model.model).forward is VaswaniModel.forward
        and all(map(_has_methods_of_its_own, PLAIN_MODULES))
        and _are_alike(decoder.layers)
        and all(map(is_called_alone, (model, model.model, *activations)))
        and all(
            type(module) in PLAIN_MODULES and is_called_alone(module) and _has_plain_parameters(module)
            for module in (*decoder.modules(), model.get_output_embeddings())
            if module not in activations
        )
        # The last check: autocast does not know the device "meta" of offloaded weights, which have hooks.
        and not torch.is_autocast_enabled(model.device.type)
    )


def _has_plain_attention(layer: Any) -> bool:
    """Return whether a layer and its attentions are of our classes and have the attributes read here."""
    return type(layer) is VaswaniDecoderLayer and all(
        type(attention) is VaswaniAttention for attention in (layer.self_attn, layer.encoder_attn)
    )


def _has_methods_of_its_own(module_class: type[nn.Module]) -> bool:
    """Return whether all methods of a class come from `PACKAGES`: none is replaced."""
    classes = module_class.__mro__[: module_class.__mro__.index(nn.Module)]
    methods = (each for one in classes for each in vars(one).values() if isinstance(each, FunctionType))
    return all(method.__code__.co_filename.startswith(PACKAGES) for method in methods)


def _are_alike(layers: Any) -> bool:
    """Return whether layers differ only in their weights, as a configuration builds them."""
    attentions = [attention for layer in layers for attention in (layer.self_attn, layer.encoder_attn)]
    kinds = {(type(layer.activation_fn), layer.norm_first) for layer in layers}
    sizes = {(attention.key_dim, attention.value_dim, attention.scaling) for attention in attentions}
    weights = (parameter for layer in layers for parameter in layer.activation_fn.parameters())
    return len(kinds) == len(sizes) == 1 and next(weights, None) is None


def _has_plain_parameters(module: nn.Module) -> bool:
    return all(type(parameter) is nn.Parameter for parameter in module.parameters(recurse=False))


@dataclass(frozen=True)
class Sublayer:
    """The operators of one sublayer: its norm, and the products by its weights."""

    norm: Product
    products: tuple[Product, ...]


class DecoderStep:
    """The decoder of an encoder-decoder and its output projection, for one search.

    Args:
        model: a model for which `is_plain` is True.
        num_rows: number of rows of the search.
        source_mask: int64 [R/K, S], 0 for padding, or None; each source has a token that is not padding.
    """

    def __init__(self, model: Any, num_rows: int, source_mask: torch.Tensor | None):
        decoder = model.get_decoder()
        first = decoder.layers[0]
        self.embeddings, self.positions = decoder.embed_tokens, decoder.embed_positions
        self.embed_norm, self.last_norm = _norm(decoder.embed_norm), _norm(decoder.layer_norm)
        self.norm_first = first.norm_first
        self.activation = first.activation_fn
        self.attention = first.self_attn  # others have the same widths
        self.has_padding = source_mask is not None and not bool(source_mask.all())
        self.project = product_by(model.get_output_embeddings(), num_rows)

        def sublayer(norm: nn.Module, *linears: Any) -> Sublayer:
            return Sublayer(_norm(norm), tuple(product_by(linear, num_rows) for linear in linears))

        self.layers = []
        for layer in decoder.layers:
            own, source = layer.self_attn, layer.encoder_attn
            self.layers.append(
                (
                    sublayer(layer.self_attn_layer_norm, own.q_proj, own.k_proj, own.v_proj, own.out_proj),
                    sublayer(layer.encoder_attn_layer_norm, source.q_proj, source.out_proj),
                    sublayer(layer.final_layer_norm, layer.fc1, layer.fc2),
                )
            )

    def __call__(
        self, cache: SearchCache, token_ids: torch.Tensor, source_mask: torch.Tensor | None
    ) -> Seq2SeqLMOutput:
        """Return the logits [R, 1, V] of the next token. The arguments are those of `logits`."""
        logits = self.logits(cache, token_ids, source_mask)
        fields: Any = {"logits": logits[:, None], CACHE_NAME: cache}
        return Seq2SeqLMOutput(**fields)

    def logits(
        self, cache: SearchCache, token_ids: torch.Tensor, source_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits [R, V] of the next token.

        Args:
            cache: has the keys and values of the source and of earlier tokens.
            token_ids: int64 [R, 1], inside the vocabulary.
            source_mask: the mask of the sources that are still open.
        """
        tree: Any = cache.tree
        own_cache, source_cache = tree.layers, cache.cross_attention_cache.layers
        states = self._embed(token_ids, tree.get_seq_length())
        visible = tree.step_mask(None)
        own_mask = None if visible is None else additive_mask(visible, states.dtype)
        hidden = None
        if self.has_padding and source_mask is not None:
            hidden = additive_mask(source_mask[:, None, None].bool(), states.dtype)
        for index, (own, source, feed_forward) in enumerate(self.layers):
            query, key, value, output = own.products
            x = own.norm(states) if self.norm_first else states
            new_keys = _heads(key(x), self.attention.key_dim)
            keys, values = own_cache[index].update(new_keys, _heads(value(x), self.attention.value_dim))
            states = self._add(states, output(self._attend(query(x), keys, values, own_mask)), own)

            query, output = source.products
            x = source.norm(states) if self.norm_first else states
            read: Any = source_cache[index]
            states = self._add(states, output(self._attend(query(x), read.keys, read.values, hidden)), source)

            inner, outer = feed_forward.products
            x = feed_forward.norm(states) if self.norm_first else states
            states = self._add(states, outer(self.activation(inner(x))), feed_forward)
        return self.project(self.last_norm(states))[:, -1]

    def _embed(self, token_ids: torch.Tensor, past_length: int) -> torch.Tensor:
        """Embed tokens with the next position: [R, 1] -> [R, 1, d_model]."""
        weight, scale = self.embeddings.weight, self.embeddings.embed_scale
        states = embedding(token_ids, weight) * scale
        if self.positions is not None:
            place = torch.full((1, 1), past_length, device=token_ids.device)
            states = states + self.positions.forward(place, past_length + 1, states.dtype)
        return self.embed_norm(states)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """[R, 1, H·Dk], [R/K, H, S, Dk] and [R/K, H, S, Dv] -> [R, 1, d_model]."""
        attention, (sources, heads) = self.attention, keys.shape[:2]
        queries = query.view(sources, -1, heads, attention.key_dim).transpose(1, 2)  # [R/K, H, K, Dk]
        scaling = attention.scaling
        if gains_from_short_attention(queries, keys, mask, dropout=0.0):
            output = weights_of_seen(queries, keys, mask, scaling) @ values
        elif attention.key_dim == attention.value_dim:
            output = scaled_dot_product_attention(queries, keys, values, mask, scale=scaling)
        else:  # which PyTorch's fused kernel does not take
            output = eager_attention_forward(attention, queries, keys, values, mask, scaling)[0].transpose(
                1, 2
            )
        return output.transpose(1, 2).reshape(*query.shape[:2], -1)

    def _add(self, states: torch.Tensor, output: torch.Tensor, sublayer: Sublayer) -> torch.Tensor:
        """Return x + Sublayer(LayerNorm(x)), or LayerNorm(x + Sublayer(x)) (section 5.4)."""
        total = states + output
        return total if self.norm_first else sublayer.norm(total)


def _heads(states: torch.Tensor, width: int) -> torch.Tensor:
    """[R, 1, H·width] -> [R, H, 1, width]."""
    return states.unflatten(2, (-1, width)).transpose(1, 2)


def _norm(module: nn.Module) -> Product:
    if not isinstance(module, nn.LayerNorm):
        return lambda states: states
    shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda states: layer_norm(states, shape, weight, bias, eps)
