"""MarianMT (Junczys-Dowmunt et al., 2018: OPUS-MT) and FSMT (fairseq's WMT19 systems, Ng et al., 2019)."""

from copy import deepcopy
from typing import Any

from transformers import FSMTConfig, MarianConfig

from vaswani.errors import UserError
from vaswani.interop.equal_weights import with_concatenated_sinusoids, with_zero_biases
from vaswani.interop.formats import USUAL, Format
from vaswani.interop.weights import Rule, State, linear
from vaswani.model.configuration_vaswani import VaswaniConfig

OURS: dict[str, Any] = {
    **USUAL,
    "layer_norm_eps": 1e-5,
    "position_embedding": "sinusoidal",
    "attention_bias": True,
    "encoder_attention": "full",
    "decoder_attention": "full",
}
SAME_FIELDS = (
    *("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"),
    *("decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"),
    *("d_model", "dropout", "attention_dropout", "activation_dropout", "activation_function"),
    *("scale_embedding", "max_position_embeddings", "decoder_start_token_id", "use_cache"),
)
FIELDS = {**{name: name for name in SAME_FIELDS}, "init_std": "initializer_range"}
TRAINING_ONLY = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
LONGEST_TABLE = 2**13  # maximum positions of an exported model; each load computes them in Python


def _stacks() -> tuple[Rule, ...]:
    rules: list[Rule] = []
    for stack, attentions in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        names = [f"{attention}.{name}_proj" for attention in attentions for name in ("q", "k", "v", "out")]
        names += [f"{attention}_layer_norm" for attention in attentions] + ["fc1", "fc2", "final_layer_norm"]
        rules += [Rule(f"{stack}.embed_tokens.weight", (f"{stack}.embed_tokens.weight",))]
        rules += [Rule(f"{stack}.embed_positions.weight")]
        for name in (f"{stack}.layers.{{}}.{name}" for name in names):
            rules += linear(name, name)
    return tuple(rules)


def _marian_fields(config: Any, class_name: str) -> dict[str, Any]:
    if config.share_encoder_decoder_embeddings and not config.tie_word_embeddings:
        raise UserError(
            "share_encoder_decoder_embeddings=True with tie_word_embeddings=False has no counterpart in "
            "vaswani: such a Marian model shares nothing, whatever it says; set both to one value"
        )
    shared = config.share_encoder_decoder_embeddings
    return {"decoder_vocab_size": config.vocab_size if shared else config.decoder_vocab_size}


def _marian_fields_back(config: Any) -> dict[str, Any]:
    shared = config.share_encoder_decoder_embeddings and config.tie_word_embeddings
    return {"init_std": config.initializer_range or 0.02, "share_encoder_decoder_embeddings": shared}


def _prepared_for_marian(model: Any) -> tuple[VaswaniConfig, State]:
    """Rewrite a model with MarianMT's layout of sinusoids, all biases, and positions for its texts."""
    config = deepcopy(model.config)
    if config.norm_order == "pre":
        raise UserError(
            "norm_order='pre' is not supported: MarianMT has post-norm layers only; `vaswani export --to "
            "ctranslate2` takes both"
        )
    if model.can_generate():
        generation = model.generation_config  # our sinusoids have no limit, and Marian's are a table
        lengths = generation.max_length, getattr(generation, "max_source_length", None)
        longest = min(LONGEST_TABLE, max(each or 0 for each in lengths))
        config.max_position_embeddings = max(config.max_position_embeddings, longest)
    elif config.position_embedding == "sinusoidal" and config.sinusoidal_layout == "interleaved":
        raise UserError(
            f"sinusoidal_layout='interleaved' is not supported for {type(model).__name__}: in a MarianModel, "
            "the features of its outputs would have another order; convert a VaswaniForConditionalGeneration"
        )
    return with_zero_biases(*with_concatenated_sinusoids(config, model.state_dict()))


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
    theirs={"is_decoder": False},
    training_only=TRAINING_ONLY,
    ours={
        **OURS,
        "sinusoidal_layout": "concatenated",
        "sinusoidal_offset": 0,
        "lm_head_bias": True,
    },
    free=frozenset({"position_from_mask", "lm_head_bias"}),  # without a bias, theirs is zero
    base=(*_stacks(), Rule("shared.weight", ("encoder.embed_tokens.weight",))),
    prefix="model.",
    heads=(
        Rule("lm_head.weight", ("lm_head.weight",)),
        Rule("final_logits_bias", ("lm_head.bias",), row=True),
    ),
    derived=_marian_fields,
    derived_back=_marian_fields_back,
    prepared=_prepared_for_marian,
)


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
    training_only=TRAINING_ONLY,
    ours={
        **OURS,
        "sinusoidal_layout": "tensor2tensor",
        "position_from_mask": True,
        "lm_head_bias": False,
    },
    base=_stacks(),
    prefix="model.",
    heads=(Rule("model.decoder.output_projection.weight", ("lm_head.weight",)),),
    derived=lambda config, class_name: {
        "sinusoidal_offset": config.pad_token_id + 1,
        "share_encoder_decoder_embeddings": config.tie_word_embeddings,
    },
    derived_back=_fsmt_fields_back,
)
