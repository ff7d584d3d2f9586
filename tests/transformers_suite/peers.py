"""The library's own models through the same harness: what they pass, it may ask of ours."""

from typing import ClassVar

from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    MarianConfig,
    MarianModel,
    MarianMTModel,
)

from . import harness

# Both configurations force their end token by default, which no token may follow in the overfitting test.
NO_FORCED_END = {"forced_eos_token_id": None}


class MarianTest(harness.Seq2SeqSuite):
    config_class = MarianConfig
    all_model_classes = (MarianModel, MarianMTModel)
    settings = NO_FORCED_END
    training_overfit_learning_rate = (
        3e-3  # at the default its gradients are not small enough yet after 300 steps
    )


class BartTest(harness.Seq2SeqSuite):
    config_class = BartConfig
    all_model_classes = (BartModel, BartForConditionalGeneration)
    settings = NO_FORCED_END


class BertTest(harness.EncoderSuite):
    config_class = BertConfig
    all_model_classes = (
        *(BertModel, BertForPreTraining, BertForMaskedLM, BertForSequenceClassification),
        *(BertForTokenClassification, BertForQuestionAnswering),
    )
    settings: ClassVar[dict[str, object]] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 37,
        "max_position_embeddings": 64,
    }


class GPT2Test(harness.DecoderSuite):
    config_class = GPT2Config
    all_model_classes = (GPT2Model, GPT2LMHeadModel)
    settings: ClassVar[dict[str, object]] = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_inner": 37,
        "n_positions": 64,
    }
