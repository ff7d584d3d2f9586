"""Combine a trained encoder and decoder into an encoder-decoder (Rothe et al., 2020, arXiv:1907.12461)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vaswani.errors import UserError
from vaswani.interop.formats import build_config
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.model.modeling_vaswani_encoder import VaswaniEncoderModel

# Fields on which encoder and decoder need not agree.
OWN_FIELDS = {
    *("vocab_size", "lm_head_bias", "tie_word_embeddings", "initializer_range"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
}
SIZES = ("layers", "attention_heads", "ffn_dim")


def combine(encoder: Any | None, decoder: Any | None, **values: Any) -> VaswaniForConditionalGeneration:
    """Return a `vaswani` model with the weights of a trained encoder and decoder; cross-attention is new.

    A stack that is not given is new, with as many layers, heads and feed-forward features as the other. Both
    vocabularies are kept, so embeddings are not shared between the stacks. Heads of the encoder are dropped;
    the embedding of its first token type is added to its positions or tokens, and other types are dropped.
    New weights are drawn from the global random state.

    Args:
        encoder: a `VaswaniEncoderModel`, with any head; convert a library's model first (see `convert`).
        decoder: a `VaswaniDecoderModel`, with any head, converted likewise.
        values: fields of the `VaswaniConfig` to override, such as `dropout`, or `decoder_layers` for a new
            decoder.

    Raises:
        UserError: neither model is given, or the models differ in a field that both stacks must share.
    """
    check_given(encoder, decoder)
    if values.get("share_encoder_decoder_embeddings") and None not in (encoder, decoder):
        raise UserError(
            "share_encoder_decoder_embeddings=True would replace the encoder's embeddings by the decoder's; "
            "leave it out"
        )
    model: Any = VaswaniForConditionalGeneration(_config(encoder, decoder, values))
    half: Any = decoder if encoder is None else encoder
    model.to(half.dtype)
    if encoder is not None:
        base = encoder.base_model
        _load(model.model.encoder, base.encoder)
        _fold_in_token_type(model.model.encoder, base)
    if decoder is not None:
        _load(model.model.decoder, decoder.base_model.decoder)
        if (head := decoder.get_output_embeddings()) is not None:
            model.lm_head.load_state_dict(head.state_dict())
    model.tie_weights()
    return model


def check_given(encoder: Any | None, decoder: Any | None) -> None:
    """Raise a UserError if there is nothing to combine."""
    if encoder is None and decoder is None:
        raise UserError("nothing to combine: give an encoder, a decoder or both")


def _config(encoder: Any, decoder: Any, values: dict[str, Any]) -> VaswaniConfig:
    halves: dict[str, Any] = {"encoder": encoder, "decoder": decoder}
    configs = {stack: model.config for stack, model in halves.items() if model is not None}
    for stack, config_class in (("encoder", VaswaniEncoderConfig), ("decoder", VaswaniDecoderConfig)):
        if stack in configs and not isinstance(configs[stack], config_class):
            raise UserError(
                f"the {stack} is a {configs[stack].model_type!r} model; expected "
                f"{config_class.model_type!r} (vaswani convert converts models of transformers)"
            )
    given = _common(configs, values)
    for stack, other in (("encoder", "decoder"), ("decoder", "encoder")):
        of = stack if stack in configs else other
        given |= {f"{stack}_{size}": getattr(configs[of], f"{of}_{size}") for size in SIZES}
        if stack in configs:
            given[f"{stack}_attention"] = getattr(configs[stack], f"{stack}_attention")
    source, target = (configs.get(stack) or next(iter(configs.values())) for stack in ("encoder", "decoder"))
    given |= {"vocab_size": source.vocab_size, "decoder_vocab_size": target.vocab_size}
    given |= {name: getattr(target, name) for name in OWN_FIELDS - {"vocab_size"}}
    given |= {"share_encoder_decoder_embeddings": False, "decoder_start_token_id": target.bos_token_id}
    return build_config(VaswaniConfig, {**given, **values})


def _common(configs: dict[str, VaswaniFamilyConfig], values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that both stacks of a model share."""
    ours = VaswaniFamilyConfig.__annotations__.keys() - OWN_FIELDS  # other fields are of transformers
    common: dict[str, Any] = {}
    for name in (field.name for field in fields(VaswaniFamilyConfig) if field.name in ours):
        found = {stack: _value(name, stack, configs) for stack in configs}
        if len(set(found.values())) > 1 and name not in values and _matters(name, configs):
            raise UserError(
                f"the encoder has {name}={found['encoder']!r} and the decoder {name}={found['decoder']!r}: "
                "both stacks of a model have the same value"
            )
        common[name] = found[_stack_with(name, configs)]
    return common


def _value(name: str, stack: str, configs: dict[str, VaswaniFamilyConfig]) -> Any:
    """Return a field of a stack. If any stack has a `key_dim`, that of others is the width that it means."""
    config = configs[stack]
    if name != "key_dim" or all(each.key_dim is None for each in configs.values()):
        return getattr(config, name)
    return config.head_widths(getattr(config, f"{stack}_attention_heads"))[0]


def _stack_with(name: str, configs: dict[str, VaswaniFamilyConfig]) -> str:
    """Return the stack whose value of a field is used; for a field of the pattern, prefer a sparse stack."""
    sparse = [stack for stack, config in configs.items() if "sparse" in config.layer_attention(stack)]
    return next(iter(sparse if name.startswith("sparse_") and sparse else configs))


def _matters(name: str, configs: dict[str, VaswaniFamilyConfig]) -> bool:
    """Return whether a field changes what the stacks compute."""
    if name.startswith("sparse_"):
        return all("sparse" in config.layer_attention(stack) for stack, config in configs.items())
    if name.startswith(("sinusoidal_", "max_position")):
        positions = "sinusoidal" if name.startswith("sinusoidal_") else "learned"
        return any(config.position_embedding == positions for config in configs.values())
    return True


def _load(stack: torch.nn.Module, trained: torch.nn.Module) -> None:
    report = stack.load_state_dict(trained.state_dict(), strict=False)
    new = [name for name in report.missing_keys if ".encoder_attn" not in name]
    if new or report.unexpected_keys:
        raise UserError(f"the weights do not fit: {', '.join([*new, *report.unexpected_keys])}")


@torch.no_grad()
def _fold_in_token_type(stack: Any, trained: VaswaniEncoderModel) -> None:
    """Add the embedding of the first token type, which all source tokens have, to positions or tokens."""
    if trained.embed_token_types is None:
        return
    first = trained.embed_token_types.weight[0]
    if stack.config.position_embedding == "learned":
        stack.embed_positions.weight += first
    else:
        stack.embed_tokens.weight += first / stack.embed_tokens.embed_scale
