"""An encoder-decoder from halves that were trained apart (Rothe et al., 2020, arXiv:1907.12461)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vaswani.errors import UserError
from vaswani.interop.formats import made
from vaswani.model.configuration_vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniFamilyConfig,
)
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.model.modeling_vaswani_encoder import VaswaniEncoderModel

# Of each stack its own, or decided for the whole: the halves need not agree on these.
OWN_FIELDS = {
    *("vocab_size", "lm_head_bias", "tie_word_embeddings", "initializer_range"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
}
SIZES = ("layers", "attention_heads", "ffn_dim")


def combine(encoder: Any | None, decoder: Any | None, **values: Any) -> VaswaniForConditionalGeneration:
    """A `vaswani` model whose stacks begin as those of trained models; attention between them is new.

    A half that is not given is new too, with as many layers, heads and inner features as the other. Both
    vocabularies stay what they are: embeddings are not shared between the stacks. An encoder's heads are left
    behind, and its token types but the first, which all of a source has, and which its positions or tokens
    take up. Draws new weights from the global random state.

    Args:
        encoder: a `VaswaniEncoderModel`, with any head; a library's is converted first (see `convert`).
        decoder: likewise a `VaswaniDecoderModel`.
        values: other values for fields of the `VaswaniConfig`, such as `decoder_layers` where the decoder is
            new, or `dropout`.

    Raises:
        UserError: neither was given, or they differ in what the stacks of one model have in common, named.
    """
    if encoder is None and decoder is None:
        raise UserError("nothing to combine: give an encoder, a decoder or both")
    if values.get("share_encoder_decoder_embeddings") and None not in (encoder, decoder):
        raise UserError(
            "share_encoder_decoder_embeddings=True would replace the encoder's embeddings by the decoder's: "
            "halves that were trained apart have one each; leave it out"
        )
    model: Any = VaswaniForConditionalGeneration(_config(encoder, decoder, values))
    half: Any = decoder if encoder is None else encoder
    model.to(half.dtype)
    if encoder is not None:
        base = encoder.base_model
        _load(model.model.encoder, base.encoder)
        _take_up_token_type(model.model.encoder, base)
    if decoder is not None:
        _load(model.model.decoder, decoder.base_model.decoder)
        if (head := decoder.get_output_embeddings()) is not None:
            model.lm_head.load_state_dict(head.state_dict())
    model.tie_weights()
    return model


def _config(encoder: Any, decoder: Any, values: dict[str, Any]) -> VaswaniConfig:
    halves: dict[str, Any] = {"encoder": encoder, "decoder": decoder}
    configs = {stack: model.config for stack, model in halves.items() if model is not None}
    for stack, kind in (("encoder", VaswaniEncoderConfig), ("decoder", VaswaniDecoderConfig)):
        if stack in configs and not isinstance(configs[stack], kind):
            raise UserError(
                f"the {stack} is a {configs[stack].model_type!r} model; expected a {kind.model_type!r} one "
                "(vaswani convert makes one of a library's model)"
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
    return made(VaswaniConfig, {**given, **values})


def _common(configs: dict[str, VaswaniFamilyConfig], values: dict[str, Any]) -> dict[str, Any]:
    """The fields that both stacks of a model have in common."""
    ours = VaswaniFamilyConfig.__annotations__.keys() - OWN_FIELDS  # the others are the library's
    common: dict[str, Any] = {}
    for name in (field.name for field in fields(VaswaniFamilyConfig) if field.name in ours):
        found = {stack: getattr(config, name) for stack, config in configs.items()}
        if len(set(found.values())) > 1 and name not in values and _matters(name, configs):
            raise UserError(
                f"the encoder has {name}={found['encoder']!r} and the decoder {name}={found['decoder']!r}: "
                "the stacks of one model have one value"
            )
        common[name] = next(iter(found.values()))
    return common


def _matters(name: str, configs: dict[str, VaswaniFamilyConfig]) -> bool:
    """Whether a field changes what the stacks compute."""
    if name.startswith("sparse_"):
        return all("sparse" in config.layer_attention(stack) for stack, config in configs.items())
    if name.startswith(("sinusoidal_", "max_position")):
        kind = "sinusoidal" if name.startswith("sinusoidal_") else "learned"
        return any(config.position_embedding == kind for config in configs.values())
    return True


def _load(stack: torch.nn.Module, trained: torch.nn.Module) -> None:
    report = stack.load_state_dict(trained.state_dict(), strict=False)
    new = [name for name in report.missing_keys if ".encoder_attn" not in name]
    if new or report.unexpected_keys:
        raise UserError(f"the weights do not fit: {', '.join([*new, *report.unexpected_keys])}")


@torch.no_grad()
def _take_up_token_type(stack: Any, trained: VaswaniEncoderModel) -> None:
    """Add the embedding of the first token type, which a source has throughout, where it is added anyway."""
    if trained.embed_token_types is None:
        return
    first = trained.embed_token_types.weight[0]
    if stack.config.position_embedding == "learned":
        stack.embed_positions.weight += first
    else:
        stack.embed_tokens.weight += first / stack.embed_tokens.scale
