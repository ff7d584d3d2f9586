"""BERT (Devlin et al., 2019), DistilBERT (Sanh et al., 2019) and BigBird (Zaheer et al., 2020)."""

from typing import Any

from transformers import BertConfig, BigBirdConfig, DistilBertConfig

from vaswani.interop.formats import Format
from vaswani.interop.weights import Move, Rule, Same, linear, under
from vaswani.model.configuration_vaswani import VaswaniEncoderConfig

LAYER = "encoder.layers.{}"
# Fields of all of them.
OURS: dict[str, Any] = {
    "norm_order": "post",
    "final_norm": False,
    "embedding_norm": True,
    "norm_bias": True,
    "position_embedding": "learned",
    "position_from_mask": False,
    "attention_output_bias": True,
    "ffn_bias": True,
    "lm_head_bias": True,
    "activation_dropout": 0.0,
    "mlm_transform": True,
    "classifier_pooling": "cls",
}
CLASSES = {
    "Model": "VaswaniEncoderModel",
    "ForPreTraining": "VaswaniForPreTraining",
    "ForMaskedLM": "VaswaniForMaskedLM",
    "ForSequenceClassification": "VaswaniForSequenceClassification",
    "ForTokenClassification": "VaswaniForTokenClassification",
    "ForQuestionAnswering": "VaswaniForQuestionAnswering",
}
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_dim",
    "hidden_act": "activation_function",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "token_type_vocab_size",
    "initializer_range": "initializer_range",
    "layer_norm_eps": "layer_norm_eps",
    "classifier_dropout": "classifier_dropout",
}


def _encoder(pooler: str) -> tuple[Rule, ...]:
    layer = "encoder.layer.{}"
    return (
        Move("embeddings.word_embeddings.weight", "encoder.embed_tokens.weight"),
        Move("embeddings.position_embeddings.weight", "encoder.embed_positions.weight"),
        Move("embeddings.token_type_embeddings.weight", "embed_token_types.weight"),
        *linear("embeddings.LayerNorm", "encoder.embed_norm"),
        *linear(f"{layer}.attention.self.query", f"{LAYER}.self_attn.q_proj"),
        *linear(f"{layer}.attention.self.key", f"{LAYER}.self_attn.k_proj"),
        *linear(f"{layer}.attention.self.value", f"{LAYER}.self_attn.v_proj"),
        *linear(f"{layer}.attention.output.dense", f"{LAYER}.self_attn.out_proj"),
        *linear(f"{layer}.attention.output.LayerNorm", f"{LAYER}.self_attn_layer_norm"),
        *linear(f"{layer}.intermediate.dense", f"{LAYER}.fc1"),
        *linear(f"{layer}.output.dense", f"{LAYER}.fc2"),
        *linear(f"{layer}.output.LayerNorm", f"{LAYER}.final_layer_norm"),
        *linear(pooler, "pooler.dense"),
    )


HEADS: tuple[Rule, ...] = (
    *linear("cls.predictions.transform.dense", "mlm_transform.dense"),
    *linear("cls.predictions.transform.LayerNorm", "mlm_transform.layer_norm"),
    Move("cls.predictions.decoder.weight", "lm_head.weight"),
    Move("cls.predictions.decoder.bias", "lm_head.bias"),
    Same("cls.predictions.bias", "cls.predictions.decoder.bias"),
    *linear("cls.seq_relationship", "next_sentence"),
    *linear("qa_outputs", "qa_outputs"),
)


def _bert_rules(class_name: str) -> tuple[Rule, ...]:
    encoder = _encoder("pooler.dense")
    if class_name == "BertModel":
        return encoder
    return (*under("bert.", "model.", encoder), *HEADS, *linear("classifier", "classifier"))


BERT = Format(
    name="bert",
    config_class=BertConfig,
    our_config_class=VaswaniEncoderConfig,
    classes={f"Bert{suffix}": ours for suffix, ours in CLASSES.items()},
    fields=FIELDS,
    theirs={"is_decoder": False, "add_cross_attention": False},
    ours={
        **OURS,
        "attention_bias": True,
        "scale_embedding": False,
        "encoder_attention": "full",
        "pooler": None,
        "classifier_activation": None,
    },
    rules=_bert_rules,
    # BertForQuestionAnswering has no dropout.
    derived=lambda config, class_name: (
        {"classifier_dropout": 0.0} if class_name == "BertForQuestionAnswering" else {}
    ),
)


def _big_bird_rules(class_name: str) -> tuple[Rule, ...]:
    encoder = _encoder("pooler")
    if class_name == "BigBirdModel":
        return encoder
    if class_name == "BigBirdForTokenClassification":
        return (*under("bert.", "model.", encoder), *linear("classifier", "classifier"))
    classifier = (
        *linear("classifier.dense", "pre_classifier"),
        *linear("classifier.out_proj", "classifier"),
    )
    return (*under("bert.", "model.", encoder), *HEADS, *classifier)


def _big_bird_attention(config: Any, class_name: str) -> dict[str, Any]:
    """Return the fields of our sparse pattern with their block numbers (see `SparsePattern`)."""
    sparse = config.attention_type == "block_sparse"
    return {
        "encoder_attention": "sparse" if sparse else "full",
        "sparse_block_size": config.block_size,
        "sparse_random_blocks": config.num_random_blocks,
        "classifier_activation": config.hidden_act,
    }


def _big_bird_attention_back(config: Any) -> dict[str, Any]:
    kinds = set(config.layer_attention("encoder"))
    return {
        "attention_type": "block_sparse" if kinds == {"sparse"} else "original_full",
        "block_size": config.sparse_block_size,
        "num_random_blocks": config.sparse_random_blocks,
    }


BIG_BIRD = Format(
    name="big_bird",
    config_class=BigBirdConfig,
    our_config_class=VaswaniEncoderConfig,
    # BigBirdForQuestionAnswering has other layers.
    classes={
        f"BigBird{suffix}": ours for suffix, ours in CLASSES.items() if suffix != "ForQuestionAnswering"
    },
    fields={**FIELDS, "use_bias": "attention_bias", "rescale_embeddings": "scale_embedding"},
    theirs={"is_decoder": False, "add_cross_attention": False},
    ours={**OURS, "pooler": True},
    rules=_big_bird_rules,
    derived=_big_bird_attention,
    derived_back=_big_bird_attention_back,
)


def _distilbert_rules(class_name: str) -> tuple[Rule, ...]:
    layer = "transformer.layer.{}"
    encoder = (
        Move("embeddings.word_embeddings.weight", "encoder.embed_tokens.weight"),
        Move("embeddings.position_embeddings.weight", "encoder.embed_positions.weight"),
        *linear("embeddings.LayerNorm", "encoder.embed_norm"),
        *linear(f"{layer}.attention.q_lin", f"{LAYER}.self_attn.q_proj"),
        *linear(f"{layer}.attention.k_lin", f"{LAYER}.self_attn.k_proj"),
        *linear(f"{layer}.attention.v_lin", f"{LAYER}.self_attn.v_proj"),
        *linear(f"{layer}.attention.out_lin", f"{LAYER}.self_attn.out_proj"),
        *linear(f"{layer}.sa_layer_norm", f"{LAYER}.self_attn_layer_norm"),
        *linear(f"{layer}.ffn.lin1", f"{LAYER}.fc1"),
        *linear(f"{layer}.ffn.lin2", f"{LAYER}.fc2"),
        *linear(f"{layer}.output_layer_norm", f"{LAYER}.final_layer_norm"),
    )
    if class_name == "DistilBertModel":
        return encoder
    return (
        *under("distilbert.", "model.", encoder),
        *linear("vocab_transform", "mlm_transform.dense"),
        *linear("vocab_layer_norm", "mlm_transform.layer_norm"),
        *linear("vocab_projector", "lm_head"),
        *linear("pre_classifier", "pre_classifier"),
        *linear("classifier", "classifier"),
        *linear("qa_outputs", "qa_outputs"),
    )


def _distilbert_dropout(config: Any, class_name: str) -> dict[str, Any]:
    """Return the dropout of a head; each has a field of its own."""
    if class_name == "DistilBertForTokenClassification":
        return {"classifier_dropout": config.dropout}
    if class_name == "DistilBertForQuestionAnswering":
        return {"classifier_dropout": config.qa_dropout}
    return {"classifier_dropout": config.seq_classif_dropout}


def _distilbert_dropout_back(config: Any) -> dict[str, Any]:
    dropout = config.dropout if config.classifier_dropout is None else config.classifier_dropout
    return {"seq_classif_dropout": dropout, "qa_dropout": dropout}


DISTILBERT = Format(
    name="distilbert",
    config_class=DistilBertConfig,
    our_config_class=VaswaniEncoderConfig,
    classes={f"DistilBert{suffix}": ours for suffix, ours in CLASSES.items() if suffix != "ForPreTraining"},
    fields={
        "vocab_size": "vocab_size",
        "dim": "d_model",
        "n_layers": "encoder_layers",
        "n_heads": "encoder_attention_heads",
        "hidden_dim": "encoder_ffn_dim",
        "activation": "activation_function",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
    },
    ours={
        **OURS,
        "layer_norm_eps": 1e-12,
        "attention_bias": True,
        "scale_embedding": False,
        "encoder_attention": "full",
        "token_type_vocab_size": 0,
        "pooler": False,
        "classifier_activation": "relu",
    },
    rules=_distilbert_rules,
    derived=_distilbert_dropout,
    derived_back=_distilbert_dropout_back,
)
