"""A decoder step of a search by C++ (`decoder_native.cpp`), which is compiled at the first search.

It computes the same as `DecoderStep`, in float32 on the CPU: a step of a small model, or of a few rows, takes
less time than PyTorch needs to call all its operators. Beams attend only to their own ancestors, which the
tree of the cache contains.

R rows, K of each source · H heads · Dk, Dv widths of keys and values · S source length
V tokens in the vocabulary
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.activations import SiLUActivation
from transformers.modeling_outputs import Seq2SeqLMOutput

from vaswani.kernels.native_library import native_library, why_not_compiled
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.operators import Linear, OutputProjection

if TYPE_CHECKING:
    from vaswani.kernels.search_cache import SearchCache

SOURCE = Path(__file__).with_name("decoder_native.cpp")
MIN_PACKED_ROWS = 8  # FEW in the C++ code: fewer rows use unpacked weights
ACTIVATIONS = (nn.ReLU, nn.SiLU, SiLUActivation)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if there is none."""
    if why_not_compiled(SOURCE) is not None:
        return None
    compiled = native_library(SOURCE, structures=(_Weights, _Layer, _Step))
    if compiled is not None:
        compiled.vaswani_vector_width.restype = compiled.vaswani_packed_size.restype = ctypes.c_int64
        compiled.vaswani_decoder_step.restype = ctypes.c_int64
    return compiled


def can_compute(model: Any) -> bool:
    """Return whether the library can compute the steps of a model; `decoder_step.is_plain` must be True."""
    decoder = model.get_decoder()
    layers = decoder.layers
    parameters = [*decoder.parameters(), *model.get_output_embeddings().parameters()]
    linears = [module for module in decoder.modules() if isinstance(module, nn.Linear)]
    return (
        all(each.device.type == "cpu" and each.dtype == torch.float32 for each in parameters)
        and all(each.is_contiguous() for each in parameters)
        and all(type(module) is Linear for module in linears)
        and type(model.get_output_embeddings()) is OutputProjection
        and len(linears) == 10 * len(layers)  # not quantized
        and all(type(layer.activation_fn) in ACTIVATIONS for layer in layers)
        and (compiled := library()) is not None
        and not any(
            width % compiled.vaswani_vector_width()
            for layer in layers
            for width in (layer.fc1.in_features, layer.fc1.out_features)
        )
    )


class NativeStep:
    """The decoder of an encoder-decoder and its output projection, for one search.

    Args:
        model: a model for which `can_compute` is True.
        num_rows: number of rows of the search.
        source_mask: int64 [R/K, S], 0 for padding, or None; each source has a token that is not padding.
    """

    def __init__(self, model: Any, num_rows: int, source_mask: torch.Tensor | None):
        decoder = model.get_decoder()
        compiled = library()
        assert compiled is not None  # checked by `can_compute`
        self._library = compiled
        self._packs = num_rows >= MIN_PACKED_ROWS
        self._kept: list[torch.Tensor] = []  # keeps the memory alive that the structures point to
        self._positions = decoder.embed_positions
        self._has_padding = source_mask is not None and not bool(source_mask.all())
        self._bound: tuple[int, ...] | None = None
        self._layers = (_Layer * len(decoder.layers))()
        first = decoder.layers[0]
        for layer, module in zip(self._layers, decoder.layers, strict=True):
            own, source = module.self_attn, module.encoder_attn
            layer.own_norm = self._norm(module.self_attn_layer_norm)
            layer.source_norm = self._norm(module.encoder_attn_layer_norm)
            layer.inner_norm = self._norm(module.final_layer_norm)
            layer.query, layer.key = self._weights(own.q_proj), self._weights(own.k_proj)
            layer.value, layer.output = self._weights(own.v_proj), self._weights(own.out_proj)
            layer.source_query = self._weights(source.q_proj)
            layer.source_output = self._weights(source.out_proj)
            layer.inner, layer.outer = self._weights(module.fc1), self._weights(module.fc2)
        self._vocabulary = model.get_output_embeddings().out_features
        self._inner_width = max(module.fc1.out_features for module in decoder.layers)
        self._call = _Step(
            heads=model.config.decoder_attention_heads,
            key_dim=first.self_attn.key_dim,
            value_dim=first.self_attn.value_dim,
            width=model.config.d_model,
            norm_first=first.norm_first,
            is_silu=type(first.activation_fn) is not nn.ReLU,
            num_layers=len(decoder.layers),
            num_embeddings=decoder.embed_tokens.weight.shape[0],
            scale=decoder.embed_tokens.embed_scale,
            scaling=first.self_attn.scaling,
            embeddings=decoder.embed_tokens.weight.data_ptr(),
            layers=ctypes.cast(self._layers, ctypes.c_void_p),
            embed_norm=self._norm(decoder.embed_norm),
            last_norm=self._norm(decoder.layer_norm),
            vocabulary=self._weights(model.get_output_embeddings()),
        )

    def _norm(self, module: nn.Module) -> _Norm:
        if not isinstance(module, nn.LayerNorm):
            return _Norm()
        self._kept += [each for each in (module.weight, module.bias) if each is not None]
        return _Norm(_pointer(module.weight), _pointer(module.bias), module.eps)

    def _weights(self, module: nn.Linear) -> _Weights:
        self._kept += [each for each in (module.weight, module.bias) if each is not None]
        shape = module.out_features, module.in_features
        weights = _Weights(_pointer(module.weight), _pointer(module.bias), None, *shape)
        if self._packs:
            size = self._library.vaswani_packed_size(*map(ctypes.c_int64, shape))
            packed = torch.empty(size, dtype=torch.float32)
            self._library.vaswani_pack(
                ctypes.byref(weights), ctypes.c_void_p(packed.data_ptr()), ctypes.c_int64(_threads())
            )
            self._kept.append(packed)
            weights.packed = packed.data_ptr()
        return weights

    def __call__(
        self, cache: SearchCache, token_ids: torch.Tensor, source_mask: torch.Tensor | None
    ) -> Seq2SeqLMOutput:
        """Return the logits [R, 1, V] of the next token. The arguments are those of `DecoderStep`."""
        logits = self.logits(cache, token_ids, source_mask)
        fields: Any = {"logits": logits[:, None].clone(), CACHE_NAME: cache}
        return Seq2SeqLMOutput(**fields)

    def logits(
        self, cache: SearchCache, token_ids: torch.Tensor, source_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the logits [R, V], which the next step overwrites.

        Raises:
            IndexError: a token has no embedding.
        """
        tree: Any = cache.tree
        rows, length = token_ids.shape[0], tree.get_seq_length()
        tree.record_step()
        capacity = tree.reserve(length + 1)
        if self._bound != self._places(cache, rows, capacity):
            self._bind(cache, rows, capacity, source_mask)
            self._bound = self._places(cache, rows, capacity)
        token_ids = token_ids.contiguous()
        position = self._position(length)
        call = self._call
        call.tokens, call.position, call.past_length = token_ids.data_ptr(), _pointer(position), length
        call.ancestors = None if tree.num_beams == 1 else tree.ancestors.data_ptr()
        bad_row = self._library.vaswani_decoder_step(ctypes.byref(call))
        if bad_row >= 0:
            token = int(token_ids[bad_row])
            raise IndexError(f"token {token} has no embedding; there are {call.num_embeddings}")
        for layer in tree.layers:
            layer.length = length + 1
        return self._logits

    def _position(self, place: int) -> torch.Tensor | None:
        """Return the vector [d_model] of a position in float32; a float32 table is used without a copy."""
        if self._positions is None:
            return None
        found = self._positions.forward(torch.tensor([[place]]), place + 1, torch.float32)
        self._last_position = found.contiguous()
        return self._last_position

    def _bind(self, cache: SearchCache, rows: int, capacity: int, source_mask: torch.Tensor | None) -> None:
        """Update the pointers to a moved cache, and allocate memory for these rows."""
        call = self._call
        tree: Any = cache.tree
        sources: list[Any] = cache.cross_attention_cache.layers
        for layer, own, source in zip(self._layers, tree.layers, sources, strict=True):
            _lay_out(source)
            layer.own_keys, layer.own_values = own.keys.data_ptr(), own.values.data_ptr()
            layer.source_keys, layer.source_values = source.keys.data_ptr(), source.values.data_ptr()
            layer.value_strides[:] = source.values.stride()[:3]
        num_sources, _, source_length, _ = sources[0].keys.shape
        padded = _padded(source_length)
        call.rows, call.own_beams, call.source_rows = rows, tree.num_beams, rows // num_sources
        call.source_length, call.padded_length, call.capacity = source_length, padded, capacity
        call.num_threads = _threads()
        bias = None
        if self._has_padding and source_mask is not None:
            bias = torch.full((num_sources, padded), torch.finfo(torch.float32).min, dtype=torch.float32)
            bias[:, :source_length].masked_fill_(source_mask.bool(), 0.0)
        call.source_bias = _pointer(bias)
        most = max(capacity, call.source_rows * padded) + WIDEST_VECTOR
        room = {
            **dict.fromkeys(("states", "normed", "value", "attended"), rows * call.width),
            **dict.fromkeys(("query", "key"), rows * call.heads * call.key_dim),
            "inner": rows * self._inner_width,
            "scores": call.num_threads * most,
        }
        self._room = {name: torch.empty(size, dtype=torch.float32) for name, size in room.items()}
        self._room["bias"] = torch.empty(0, dtype=torch.float32) if bias is None else bias
        for name in room:
            setattr(call, name, self._room[name].data_ptr())
        self._logits = torch.empty(rows, self._vocabulary, dtype=torch.float32)
        call.logits = self._logits.data_ptr()

    @staticmethod
    def _places(cache: SearchCache, rows: int, capacity: int) -> tuple[int, ...]:
        """Return the values that change when the cache moves; all its layers move together."""
        own: Any = cache.self_attention_cache.layers[0]
        source: Any = cache.cross_attention_cache.layers[0]
        return (
            rows,
            capacity,
            *(each.data_ptr() for each in (own.keys, own.values, source.keys, source.values)),
        )


WIDEST_VECTOR = 16  # floats


def _lay_out(layer: Any) -> None:
    """Store keys [sources, H, S, Dk] by columns, and make the numbers of each value contiguous."""
    keys = layer.keys
    sources, heads, length, width = keys.shape
    padded = _padded(length)
    strides = heads * width * padded, width * padded, 1, padded
    if keys.stride() != strides:
        columns = keys.new_zeros(sources, heads, width, padded)
        columns[..., :length] = keys.transpose(2, 3)
        layer.keys = columns[..., :length].transpose(2, 3)
    if layer.values.stride(3) != 1:
        layer.values = layer.values.contiguous()


def _padded(length: int) -> int:
    """Round a length up to whole vectors."""
    return -(-length // WIDEST_VECTOR) * WIDEST_VECTOR


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _threads() -> int:
    return torch.get_num_threads()


# These match the structures of the same names in `decoder_native.cpp`.
class _Weights(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias", "packed")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        ("epsilon", ctypes.c_double),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Norm) for name in ("own_norm", "source_norm", "inner_norm")),
        *((name, _Weights) for name in ("query", "key", "value", "output")),
        *((name, _Weights) for name in ("source_query", "source_output", "inner", "outer")),
        *((name, ctypes.c_void_p) for name in ("own_keys", "own_values", "source_keys", "source_values")),
        ("value_strides", ctypes.c_int64 * 3),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "own_beams", "source_rows", "heads")),
        *((name, ctypes.c_int64) for name in ("key_dim", "value_dim", "width", "source_length")),
        *((name, ctypes.c_int64) for name in ("padded_length", "past_length", "capacity", "norm_first")),
        *((name, ctypes.c_int64) for name in ("is_silu", "num_layers")),
        *((name, ctypes.c_int64) for name in ("num_threads", "num_embeddings")),
        *((name, ctypes.c_double) for name in ("scale", "scaling")),
        *((name, ctypes.c_void_p) for name in ("tokens", "ancestors", "embeddings", "position")),
        *((name, ctypes.c_void_p) for name in ("source_bias", "layers")),
        *((name, _Norm) for name in ("embed_norm", "last_norm")),
        ("vocabulary", _Weights),
        *((name, ctypes.c_void_p) for name in ("states", "normed", "query", "key", "value", "attended")),
        *((name, ctypes.c_void_p) for name in ("inner", "scores", "logits")),
    )
