"""BERT (Devlin et al., 2019), DistilBERT (Sanh et al., 2019) and BigBird (Zaheer et al., 2020)."""

from typing import Any

from transformers import BertConfig, BigBirdConfig, DistilBertConfig

from vaswani.errors import UserError
from vaswani.interop.formats import USUAL, Format
from vaswani.interop.weights import Rule, linear
from vaswani.model.configuration_vaswani import VaswaniEncoderConfig

# Values of our fields that all these models share.
OURS: dict[str, Any] = {
    **USUAL,
    "embedding_norm": True,
    "lm_head_bias": True,
    "activation_dropout": 0.0,
    "mlm_transform": True,
    "classifier_pooling": "cls",
}
CLASSES = {
    "Model": "VaswaniEncoderModel",
    **{
        suffix: f"Vaswani{suffix}"
        for suffix in (
            *("ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
            *("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction"),
        )
    },
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


BERT_LAYER = {
    "attention.self.query": "self_attn.q_proj",
    "attention.self.key": "self_attn.k_proj",
    "attention.self.value": "self_attn.v_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "self_attn_layer_norm",
    "intermediate.dense": "fc1",
    "output.dense": "fc2",
    "output.LayerNorm": "final_layer_norm",
}
DISTILBERT_LAYER = {
    "attention.q_lin": "self_attn.q_proj",
    "attention.k_lin": "self_attn.k_proj",
    "attention.v_lin": "self_attn.v_proj",
    "attention.out_lin": "self_attn.out_proj",
    "sa_layer_norm": "self_attn_layer_norm",
    "ffn.lin1": "fc1",
    "ffn.lin2": "fc2",
    "output_layer_norm": "final_layer_norm",
}


def _encoder(layers: str, names: dict[str, str]) -> tuple[Rule, ...]:
    """Return the rules for embeddings and for layers; `names` maps their names in a layer to ours."""
    rules = [
        Rule("embeddings.word_embeddings.weight", ("encoder.embed_tokens.weight",)),
        Rule("embeddings.position_embeddings.weight", ("encoder.embed_positions.weight",)),
        Rule("embeddings.token_type_embeddings.weight", ("embed_token_types.weight",)),
        *linear("embeddings.LayerNorm", "encoder.embed_norm"),
    ]
    for theirs, ours in names.items():
        rules += linear(f"{layers}.layer.{{}}.{theirs}", f"encoder.layers.{{}}.{ours}")
    return tuple(rules)


HEADS = (
    *linear("cls.predictions.transform.dense", "mlm_transform.dense"),
    *linear("cls.predictions.transform.LayerNorm", "mlm_transform.layer_norm"),
    *linear("cls.predictions.decoder", "lm_head"),
    Rule("cls.predictions.bias", ("lm_head.bias",)),  # tied to the decoder's
    *linear("cls.seq_relationship", "next_sentence"),
    *linear("qa_outputs", "qa_outputs"),
    *linear("classifier", "classifier"),
)

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
    base=(*_encoder("encoder", BERT_LAYER), *linear("pooler.dense", "pooler.dense")),
    prefix="bert.",
    heads=HEADS,
    # BertForQuestionAnswering has no dropout.
    derived=lambda config, class_name: (
        {"classifier_dropout": 0.0} if class_name == "BertForQuestionAnswering" else {}
    ),
)


# Fields of BigBird's pattern, which are the same in all its models.
_BIG_BIRD_PATTERN = {"sparse_window_blocks": 3, "sparse_global_blocks": 2, "sparse_global_tokens": 0}


def _big_bird_attention(config: Any, class_name: str) -> dict[str, Any]:
    """Return the fields of our sparse pattern with their block numbers (see `SparsePattern`)."""
    return {
        **_BIG_BIRD_PATTERN,
        "encoder_attention": "sparse" if config.attention_type == "block_sparse" else "full",
        "sparse_block_size": config.block_size,
        "sparse_random_blocks": config.num_random_blocks,
        "classifier_activation": None if class_name.endswith("MultipleChoice") else config.hidden_act,
    }


def _big_bird_attention_back(config: Any) -> dict[str, Any]:
    kinds = set(config.layer_attention("encoder"))
    if len(kinds) > 1:
        raise UserError(
            f"encoder_attention={config.encoder_attention} is not supported: all layers of a BigBird model "
            "have the same attention"
        )
    if kinds == {"sparse"}:
        for name, value in _BIG_BIRD_PATTERN.items():
            if (found := getattr(config, name)) != value:
                raise UserError(f"{name}={found} is not supported: big_bird models have {name}={value}")
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
        f"BigBird{suffix}": ours
        for suffix, ours in CLASSES.items()
        if suffix not in ("ForQuestionAnswering", "ForNextSentencePrediction")
    },
    fields={**FIELDS, "use_bias": "attention_bias", "rescale_embeddings": "scale_embedding"},
    theirs={"is_decoder": False, "add_cross_attention": False},
    ours={**OURS, "pooler": True},
    base=(*_encoder("encoder", BERT_LAYER), *linear("pooler", "pooler.dense")),
    prefix="bert.",
    heads=(
        *HEADS,
        *linear("classifier.dense", "pre_classifier"),
        *linear("classifier.out_proj", "classifier"),
    ),
    derived=_big_bird_attention,
    derived_back=_big_bird_attention_back,
)


def _distilbert_dropout(config: Any, class_name: str) -> dict[str, Any]:
    """Return the dropout of a head; DistilBERT has a field for each head."""
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
    classes={
        f"DistilBert{suffix}": ours
        for suffix, ours in CLASSES.items()
        if suffix not in ("ForPreTraining", "ForNextSentencePrediction")
    },
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
    base=_encoder("transformer", DISTILBERT_LAYER),
    prefix="distilbert.",
    heads=(
        *linear("vocab_transform", "mlm_transform.dense"),
        *linear("vocab_layer_norm", "mlm_transform.layer_norm"),
        *linear("vocab_projector", "lm_head"),
        *linear("pre_classifier", "pre_classifier"),
        *linear("classifier", "classifier"),
        *linear("qa_outputs", "qa_outputs"),
    ),
    derived=_distilbert_dropout,
    derived_back=_distilbert_dropout_back,
)
