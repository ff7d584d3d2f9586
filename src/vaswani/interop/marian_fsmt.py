"""MarianMT (Junczys-Dowmunt et al., 2018: OPUS-MT) and FSMT (fairseq's WMT19 systems, Ng et al., 2019)."""

from typing import Any

from transformers import FSMTConfig, MarianConfig

from vaswani.errors import UserError
from vaswani.interop.formats import Format
from vaswani.interop.weights import Move, Rule, Same, Table, linear, under
from vaswani.model.configuration_vaswani import VaswaniConfig

OURS: dict[str, Any] = {
    "norm_order": "post",
    "final_norm": False,
    "embedding_norm": False,
    "layer_norm_eps": 1e-5,
    "norm_bias": True,
    "position_embedding": "sinusoidal",
    "attention_bias": True,
    "attention_output_bias": True,
    "ffn_bias": True,
    "encoder_attention": "full",
    "decoder_attention": "full",
}
FIELDS = {
    **{
        name: name
        for stack in ("encoder", "decoder")
        for name in (f"{stack}_layers", f"{stack}_attention_heads", f"{stack}_ffn_dim")
    },
    **{
        name: name
        for name in ("d_model", "dropout", "attention_dropout", "activation_dropout", "activation_function")
    },
    "scale_embedding": "scale_embedding",
    "max_position_embeddings": "max_position_embeddings",
    "decoder_start_token_id": "decoder_start_token_id",
    "init_std": "initializer_range",
    "use_cache": "use_cache",
}
THEIRS = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}


def _stacks() -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        names = [f"{attention}.{name}_proj" for attention in attentions for name in ("q", "k", "v", "out")]
        names += [f"{attention}_layer_norm" for attention in attentions] + ["fc1", "fc2", "final_layer_norm"]
        rules += [Move(f"{stack}.embed_tokens.weight", f"{stack}.embed_tokens.weight")]
        rules += [Table(f"{stack}.embed_positions.weight")]
        for name in (f"{stack}.layers.{{}}.{name}" for name in names):
            rules += linear(name, name)
    return tuple(rules)


def _marian_rules(class_name: str) -> tuple[Rule, ...]:
    base = (*_stacks(), Same("shared.weight", "encoder.embed_tokens.weight"))
    if class_name == "MarianModel":
        return base
    head = (Move("lm_head.weight", "lm_head.weight"), Move("final_logits_bias", "lm_head.bias", row=True))
    return (*under("model.", "model.", base), *head)


def _marian_fields(config: Any, class_name: str) -> dict[str, Any]:
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        raise UserError(
            "share_encoder_decoder_embeddings=True with tie_word_embeddings=False has no counterpart in "
            "vaswani: such a Marian model shares nothing, whatever it says; set both to one value"
        )
    shared = config.share_encoder_decoder_embeddings
    return {"decoder_vocab_size": config.vocab_size if shared else config.decoder_vocab_size}


MARIAN = Format(
    name="marian",
    config_class=MarianConfig,
    our_config_class=VaswaniConfig,
    classes={"MarianModel": "VaswaniModel", "MarianMTModel": "VaswaniForConditionalGeneration"},
    fields={
        **FIELDS,
        "vocab_size": "vocab_size",
        "decoder_vocab_size": "decoder_vocab_size",
        "share_encoder_decoder_embeddings": "share_encoder_decoder_embeddings",
    },
    theirs={**THEIRS, "is_decoder": False},
    ours={
        **OURS,
        "sinusoidal_layout": "concatenated",
        "sinusoidal_offset": 0,
        "position_from_mask": False,
        "lm_head_bias": True,
    },
    free=frozenset({"position_from_mask", "lm_head_bias"}),  # without a bias, theirs is zero
    rules=_marian_rules,
    derived=_marian_fields,
    derived_back=lambda config: {"init_std": config.initializer_range or 0.02},
)


def _fsmt_rules(class_name: str) -> tuple[Rule, ...]:
    base = (*under("model.", "model.", _stacks()),)
    return (*base, Move("model.decoder.output_projection.weight", "lm_head.weight"))


def _fsmt_fields_back(config: Any) -> dict[str, Any]:
    if config.share_encoder_decoder_embeddings != config.tie_word_embeddings:
        raise UserError(
            f"share_encoder_decoder_embeddings={config.share_encoder_decoder_embeddings} and "
            f"tie_word_embeddings={config.tie_word_embeddings} are not supported: fsmt models have one value "
            "for both"
        )
    if config.sinusoidal_offset != config.pad_token_id + 1:
        raise UserError(
            f"sinusoidal_offset={config.sinusoidal_offset} is not supported: fsmt models have pad_token_id "
            f"+ 1 = {config.pad_token_id + 1}"
        )
    return {"init_std": config.initializer_range or 0.02}


FSMT = Format(
    name="fsmt",
    config_class=FSMTConfig,
    our_config_class=VaswaniConfig,
    classes={"FSMTForConditionalGeneration": "VaswaniForConditionalGeneration"},
    fields={**FIELDS, "src_vocab_size": "vocab_size", "tgt_vocab_size": "decoder_vocab_size"},
    theirs=THEIRS,
    ours={
        **OURS,
        "sinusoidal_layout": "tensor2tensor",
        "position_from_mask": True,
        "lm_head_bias": False,
    },
    rules=_fsmt_rules,
    derived=lambda config, class_name: {
        "sinusoidal_offset": config.pad_token_id + 1,
        "share_encoder_decoder_embeddings": config.tie_word_embeddings,
    },
    derived_back=_fsmt_fields_back,
)
