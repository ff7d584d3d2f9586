"""Export models to CTranslate2 (https://github.com/OpenNMT/CTranslate2), an engine in C++ without PyTorch.

An encoder-decoder becomes a CTranslate2 `Translator`, an encoder an `Encoder`, a causal language model a
`Generator`. The exported model computes the same outputs to rounding: tests compare scores and tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError
from vaswani.interop.equal_weights import with_usual_keys
from vaswani.interop.to_onnx import GRAPHS, check_full_attention
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.unwritten_padding import unwritten_padding

QUANTIZATIONS = (
    *("float32", "float16", "bfloat16"),
    *("int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16"),
)
NEVER_LOGIT = -1e4  # logit of a token that is never written; float16 can represent it
USUAL_POSITIONS = 2048  # a table of 4 MB at width 512
INSTALL = 'install it with: pip install "vaswani[ctranslate2]"'
# Names of `ACT2FN` with those of CTranslate2's `Activation`.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_new": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "gelu_python_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}


def export_to_ctranslate2(
    model: PreTrainedModel,
    tokenizers: Sequence[PreTrainedTokenizerBase],
    folder: Path,
    *,
    quantization: str | None = None,
    max_positions: int | None = None,
) -> None:
    """Write a model into an empty folder in CTranslate2's format.

    The files are `model.bin`, `config.json` and the vocabularies, without the tokenizers. The engine's input
    is the tokens of a text from its tokenizer, with the special tokens.

    Args:
        model: a `VaswaniForConditionalGeneration`, `VaswaniForCausalLM` or `VaswaniEncoderModel`; it is not
            changed.
        tokenizers: the source tokenizer and the target tokenizer. For a model of one stack, only the last one
            is used.
        folder: an existing folder.
        quantization: one of `QUANTIZATIONS`; None keeps float32.
        max_positions: maximum length of a sequence for a model with sinusoids or without positions; None
            means 2,048. CTranslate2 stores a table of positions instead of computing them.

    Raises:
        UserError: CTranslate2 is not installed, has no such quantization, or cannot hold the class or the
            value of a field; `max_positions` is given for learned positions.
    """
    check_engine(quantization)
    _check_exportable(model, max_positions)
    model = _with_usual_keys(model)
    spec = SPECIFICATIONS[type(model).__name__](model, max_positions or USUAL_POSITIONS)
    _set_vocabularies(spec, model, tokenizers)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def check_engine(quantization: str | None) -> None:
    """Raise `UserError` if CTranslate2 is not installed, or has no such quantization."""
    try:
        import ctranslate2  # noqa: F401
    except ImportError as error:
        raise UserError(f"CTranslate2 is not installed ({error}); {INSTALL}") from error
    if quantization not in (None, *QUANTIZATIONS):
        raise UserError(f"unknown quantization {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}")


def _check_exportable(model: PreTrainedModel, max_positions: int | None) -> None:
    """Raise `UserError` if CTranslate2 cannot hold a model."""
    config: Any = model.config
    if (name := type(model).__name__) not in SPECIFICATIONS:
        advice = "; export it to ONNX (--to onnx)" if name in GRAPHS else ""
        raise UserError(
            f"CTranslate2 has no counterpart of {name}; it runs {', '.join(SPECIFICATIONS)}{advice}"
        )
    check_full_attention(config, "CTranslate2")
    if config.activation_function not in ACTIVATIONS:
        raise UserError(
            f"activation_function={config.activation_function!r} is not supported: CTranslate2 has "
            f"{', '.join(ACTIVATIONS)}"
        )
    if max_positions is not None and config.position_embedding == "learned":
        raise UserError(
            f"max_positions={max_positions} has no effect on learned positions, of which the model has "
            f"{config.max_position_embeddings}; leave it out"
        )


def _with_usual_keys(model: Any) -> Any:
    """Return an equal model with keys as wide as its values; the model itself if it has them."""
    config, state = with_usual_keys(model.config, model.state_dict())
    if config is model.config:
        return model
    with torch.device("meta"):
        usual = type(model)(config)
    usual.load_state_dict(state, assign=True)
    usual.tie_weights()
    if model.can_generate():
        usual.generation_config = model.generation_config
    return usual


# -------------------------------------------------------------------------------------------- kinds of models


def _translator(model: Any, max_positions: int) -> Any:
    """Return the specification of an encoder-decoder, with its weights."""
    from ctranslate2.specs import transformer_spec

    encoder = _encoder_stack(model.config, model.model.encoder, max_positions)
    decoder = _decoder_stack(model, max_positions)
    return transformer_spec.TransformerSpec(encoder, decoder)


def _generator(model: Any, max_positions: int) -> Any:
    """Return the specification of a causal language model, with its weights."""
    from ctranslate2.specs import transformer_spec

    decoder = _decoder_stack(model, max_positions)
    return transformer_spec.TransformerDecoderModelSpec(decoder)


def _encoder(model: Any, max_positions: int) -> Any:
    """Return the specification of an encoder without a head, with its weights."""
    from ctranslate2.specs import transformer_spec

    encoder = _encoder_stack(model.config, model.encoder, max_positions, model.embed_token_types)
    spec = transformer_spec.TransformerEncoderModelSpec(encoder, pooling_layer=model.pooler is not None)
    if model.pooler is not None:
        _linear(spec.pooler_dense, model.pooler.dense)
    return spec


# The classes that CTranslate2 can run, with the functions that make their specifications.
SPECIFICATIONS = {
    "VaswaniForConditionalGeneration": _translator,
    "VaswaniForCausalLM": _generator,
    "VaswaniEncoderModel": _encoder,
}
# Pre-trained encoders, which are used for their vectors. Other models would lose their task with their head.
EXPORTED_WITHOUT_HEAD = ("VaswaniForMaskedLM", "VaswaniForPreTraining")


# --------------------------------------------------------------------------------------------------- weights


def _encoder_stack(
    config: VaswaniFamilyConfig, ours: Any, max_positions: int, token_types: nn.Embedding | None = None
) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    spec = transformer_spec.TransformerEncoderSpec(
        *_shape(config, "encoder"),
        **_norms(config),
        activation=_activation(config),
        num_source_embeddings=1 if token_types is None else 2,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
    )
    if token_types is not None:
        # CTranslate2 multiplies the sum of both embeddings by the scale.
        spec.embeddings[1].weight = _numbers(token_types.weight / ours.embed_tokens.embed_scale)
    _fill_stack(spec, spec.embeddings[0], config, ours, max_positions)
    return spec


def _decoder_stack(model: Any, max_positions: int) -> Any:
    """Return the specification of a decoder and its output layer."""
    from ctranslate2.specs import transformer_spec

    config = model.config
    spec = transformer_spec.TransformerDecoderSpec(
        *_shape(config, "decoder"),
        **_norms(config),
        activation=_activation(config),
        with_encoder_attention=config.is_encoder_decoder,
    )
    _fill_stack(spec, spec.embeddings, config, model.model.decoder, max_positions)
    _linear(spec.projection, model.lm_head)
    if (padding := unwritten_padding(model)) is not None:
        if model.lm_head.bias is None:
            spec.projection.bias = torch.zeros(len(model.lm_head.weight))
        spec.projection.bias[padding] = NEVER_LOGIT
    return spec


def _shape(config: VaswaniFamilyConfig, stack: str) -> tuple[int, int]:
    return getattr(config, f"{stack}_layers"), getattr(config, f"{stack}_attention_heads")


def _norms(config: VaswaniFamilyConfig) -> dict[str, bool]:
    """Return the options for the norms of a stack.

    A specification has a final norm only with `pre_norm`, although the engine applies a final norm in either
    order. So `pre_norm` is always set here, and `_fill_stack` sets the real order.
    """
    return {
        "pre_norm": True,
        "no_final_norm": not config.final_norm,
        "layernorm_embedding": config.embedding_norm,
    }


def _activation(config: VaswaniFamilyConfig) -> Any:
    from ctranslate2.specs import common_spec

    return common_spec.Activation[ACTIVATIONS[config.activation_function]]


def _fill_stack(
    spec: Any, embeddings: Any, config: VaswaniFamilyConfig, ours: Any, max_positions: int
) -> None:
    """Set the weights and the order of norms of a stack."""
    spec.pre_norm = config.norm_order == "pre"
    embeddings.weight = _numbers(ours.embed_tokens.weight)
    spec.scale_embeddings = config.scale_embedding
    spec.position_encodings.encodings = _positions(config, ours.embed_positions, max_positions)
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, ours.embed_norm)
    if config.final_norm:
        _norm(spec.layer_norm, ours.layer_norm)
    for theirs, layer in zip(spec.layer, ours.layers, strict=True):
        _fill_layer(theirs, layer)


def _fill_layer(spec: Any, layer: Any) -> None:
    own = layer.self_attn
    _linear(spec.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
    _linear(spec.self_attention.linear[1], own.out_proj)
    _norm(spec.self_attention.layer_norm, layer.self_attn_layer_norm)
    if hasattr(layer, "encoder_attn"):
        cross = layer.encoder_attn
        _linear(spec.attention.linear[0], cross.q_proj)
        _linear(spec.attention.linear[1], cross.k_proj, cross.v_proj)
        _linear(spec.attention.linear[2], cross.out_proj)
        _norm(spec.attention.layer_norm, layer.encoder_attn_layer_norm)
    _linear(spec.ffn.linear_0, layer.fc1)
    _linear(spec.ffn.linear_1, layer.fc2)
    _norm(spec.ffn.layer_norm, layer.final_layer_norm)


def _positions(config: VaswaniFamilyConfig, ours: Any, max_positions: int) -> torch.Tensor:
    """Return the table of positions, float32 [positions, d_model]; zeros for a model that has none."""
    if config.position_embedding == "learned":
        return _numbers(ours.weight)
    if config.position_embedding == "sinusoidal":
        return ours.encode(torch.arange(max_positions), torch.float32)
    return torch.zeros(max_positions, config.d_model)


def _linear(spec: Any, *layers: nn.Linear) -> None:
    """Set the weights of one linear layer, which may combine several layers with the same input."""
    spec.weight = torch.cat([_numbers(layer.weight) for layer in layers])
    if layers[0].bias is not None:
        spec.bias = torch.cat([_numbers(layer.bias) for layer in layers])


def _norm(spec: Any, layer: nn.LayerNorm) -> None:
    spec.gamma = _numbers(layer.weight)
    spec.beta = _numbers(torch.zeros_like(layer.weight) if layer.bias is None else layer.bias)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a float32 copy, because quantization changes the tensors of a specification in place."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


# --------------------------------------------------------------------------------------------------- tokens


def _set_vocabularies(
    spec: Any, model: PreTrainedModel, tokenizers: Sequence[PreTrainedTokenizerBase]
) -> None:
    """Set the vocabularies and the special tokens of a specification."""
    config: Any = model.config
    target = tokenizers[-1]
    vocabulary = TextCodec(target, "target").vocabulary()
    target_tokens = _tokens(vocabulary, getattr(config, "decoder_vocab_size", config.vocab_size))
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.config.unk_token = target.unk_token or target_tokens[config.pad_token_id or 0]
    eos = config.eos_token_id[0] if isinstance(config.eos_token_id, list) else config.eos_token_id
    for name, token_id in (("bos_token", config.bos_token_id), ("eos_token", eos)):
        setattr(spec.config, name, spec.config.unk_token if token_id is None else target_tokens[token_id])
    if not config.is_encoder_decoder:
        spec.register_vocabulary(target_tokens)
        return
    spec.config.decoder_start_token = target_tokens[config.decoder_start_token_id]
    spec.config.add_source_bos = spec.config.add_source_eos = False
    source_tokens = _tokens(TextCodec(tokenizers[0], "source").vocabulary(), config.vocab_size)
    spec.register_source_vocabulary(source_tokens)
    spec.register_target_vocabulary(target_tokens)


def _tokens(vocabulary: dict[str, int], size: int) -> list[str]:
    """Return the tokens by id; an embedding without a token gets a name that no text contains."""
    tokens = [f"<unused {number}>" for number in range(size)]
    for token, number in vocabulary.items():
        if number < size:
            tokens[number] = token
    return tokens
