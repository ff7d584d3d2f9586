"""OpenAI's GPT (Radford et al., 2018) and GPT-2 (Radford et al., 2019)."""

from typing import Any

from transformers import GPT2Config, OpenAIGPTConfig

from vaswani.errors import UserError
from vaswani.interop.formats import USUAL, Format
from vaswani.interop.weights import Rule, linear
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig

LAYER = "decoder.layers.{}"
OURS: dict[str, Any] = {
    **USUAL,
    "attention_bias": True,
    "lm_head_bias": False,
    "activation_dropout": 0.0,
    "scale_embedding": False,
    "decoder_attention": "full",
}
FIELDS = {
    "vocab_size": "vocab_size",
    "n_embd": "d_model",
    "n_layer": "decoder_layers",
    "n_head": "decoder_attention_heads",
    "n_positions": "max_position_embeddings",
    "resid_pdrop": "dropout",
    "embd_pdrop": "dropout",
    "attn_pdrop": "attention_dropout",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}


def _decoder(tokens: str, positions: str) -> tuple[Rule, ...]:
    layer, attention = "h.{}", f"{LAYER}.self_attn"
    return (
        Rule(f"{tokens}.weight", ("decoder.embed_tokens.weight",)),
        Rule(f"{positions}.weight", ("decoder.embed_positions.weight",)),
        *linear(f"{layer}.ln_1", f"{LAYER}.self_attn_layer_norm"),
        *linear(f"{layer}.attn.c_attn", *(f"{attention}.{name}_proj" for name in "qkv"), transposed=True),
        *linear(f"{layer}.attn.c_proj", f"{attention}.out_proj", transposed=True),
        *linear(f"{layer}.ln_2", f"{LAYER}.final_layer_norm"),
        *linear(f"{layer}.mlp.c_fc", f"{LAYER}.fc1", transposed=True),
        *linear(f"{layer}.mlp.c_proj", f"{LAYER}.fc2", transposed=True),
    )


HEADS = (
    Rule("lm_head.weight", ("lm_head.weight",)),
    Rule("score.weight", ("score.weight",)),
    *linear("classifier", "classifier"),
    *linear("qa_outputs", "qa_outputs"),
)

GPT2 = Format(
    name="gpt2",
    config_class=GPT2Config,
    our_config_class=VaswaniDecoderConfig,
    classes={
        "GPT2Model": "VaswaniDecoderModel",
        "GPT2LMHeadModel": "VaswaniForCausalLM",
        "GPT2ForSequenceClassification": "VaswaniDecoderForSequenceClassification",
        "GPT2ForTokenClassification": "VaswaniDecoderForTokenClassification",
        "GPT2ForQuestionAnswering": "VaswaniDecoderForQuestionAnswering",
    },
    fields={**FIELDS, "activation_function": "activation_function"},
    theirs={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    ours={**OURS, "norm_order": "pre", "final_norm": True},
    base=(*_decoder("wte", "wpe"), *linear("ln_f", "decoder.layer_norm")),
    prefix="transformer.",
    heads=HEADS,
    derived=lambda config, class_name: {"decoder_ffn_dim": config.n_inner or 4 * config.n_embd},
    derived_back=lambda config: {"n_inner": config.decoder_ffn_dim},
)

# Activations by their names in OpenAI GPT.
GPT_ACTIVATIONS = {"gelu": "gelu_new", "swish": "silu", "relu": "relu", "silu": "silu"}


def _gpt_fields_back(config: Any) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in reversed(GPT_ACTIVATIONS.items())}
    if config.activation_function not in names:
        raise UserError(
            f"activation_function={config.activation_function!r} is not supported: openai-gpt models have "
            f"one of {', '.join(names)}"
        )
    if config.decoder_ffn_dim != 4 * config.d_model:
        raise UserError(
            f"decoder_ffn_dim={config.decoder_ffn_dim} is not supported: openai-gpt models have 4 · d_model "
            f"= {4 * config.d_model}"
        )
    return {"afn": names[config.activation_function]}


OPENAI_GPT = Format(
    name="openai-gpt",
    config_class=OpenAIGPTConfig,
    our_config_class=VaswaniDecoderConfig,
    classes={
        "OpenAIGPTModel": "VaswaniDecoderModel",
        "OpenAIGPTLMHeadModel": "VaswaniForCausalLM",
        "OpenAIGPTForSequenceClassification": "VaswaniDecoderForSequenceClassification",
    },
    fields=FIELDS,
    ours=OURS,
    base=_decoder("tokens_embed", "positions_embed"),
    prefix="transformer.",
    heads=HEADS,
    derived=lambda config, class_name: {
        "activation_function": GPT_ACTIVATIONS[config.afn],
        "decoder_ffn_dim": 4 * config.n_embd,
    },
    derived_back=_gpt_fields_back,
)
