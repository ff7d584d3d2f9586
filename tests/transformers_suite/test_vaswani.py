"""transformers' model tests on this project's models."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import ClassVar
from unittest.mock import patch

import pytest
from transformers.models.auto import modeling_auto

from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniDecoderForQuestionAnswering,
    VaswaniDecoderForSequenceClassification,
    VaswaniDecoderForTokenClassification,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
    VaswaniForMultipleChoice,
    VaswaniForNextSentencePrediction,
    VaswaniForPreTraining,
    VaswaniForQuestionAnswering,
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
    VaswaniModel,
)

from . import harness, peers

LISTS = {
    "MODEL_MAPPING_NAMES": (VaswaniModel, VaswaniEncoderModel, VaswaniDecoderModel),
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": (VaswaniForConditionalGeneration,),
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": (VaswaniForCausalLM,),
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": (VaswaniForMaskedLM,),
    "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES": (VaswaniForMultipleChoice,),
    "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES": (VaswaniForNextSentencePrediction,),
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES": (VaswaniForPreTraining,),
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": (
        VaswaniForQuestionAnswering,
        VaswaniDecoderForQuestionAnswering,
    ),
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": (
        VaswaniForSequenceClassification,
        VaswaniDecoderForSequenceClassification,
    ),
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": (
        VaswaniForTokenClassification,
        VaswaniDecoderForTokenClassification,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _listed_among_the_library_models() -> Iterator[None]:
    """Many checks pass over classes that are not in the library's own lists: put ours there for the while."""
    with ExitStack() as stack:
        for name, classes in LISTS.items():
            names = {kind.config_class.model_type: kind.__name__ for kind in classes}
            stack.enter_context(patch.dict(getattr(modeling_auto, name), names))
        yield


class VaswaniTest(harness.Seq2SeqSuite):
    """The paper's model."""

    config_class = VaswaniConfig
    all_model_classes = (VaswaniModel, VaswaniForConditionalGeneration)
    peers = (peers.MarianTest, peers.BartTest)


class VaswaniVariantTest(VaswaniTest):
    """Every option turned the other way, save separate vocabularies: the suite takes one for granted."""

    settings: ClassVar[dict[str, object]] = {
        "norm_order": "pre",
        "position_embedding": "learned",
        "activation_function": "silu",
        "attention_bias": False,
        "ffn_bias": False,
        "scale_embedding": False,
        "tie_word_embeddings": False,
    }


class VaswaniEncoderTest(harness.EncoderSuite):
    """BERT."""

    config_class = VaswaniEncoderConfig
    all_model_classes = (
        *(VaswaniEncoderModel, VaswaniForPreTraining, VaswaniForMaskedLM, VaswaniForSequenceClassification),
        *(VaswaniForTokenClassification, VaswaniForQuestionAnswering, VaswaniForMultipleChoice),
        VaswaniForNextSentencePrediction,
    )
    peers = (peers.BertTest,)
    settings: ClassVar[dict[str, object]] = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 37,
        "max_position_embeddings": 64,
    }


class VaswaniEncoderVariantTest(VaswaniEncoderTest):
    """Every option turned the other way."""

    settings: ClassVar[dict[str, object]] = {
        **VaswaniEncoderTest.settings,
        "norm_order": "pre",
        "embedding_norm": False,
        "position_embedding": "sinusoidal",
        "activation_function": "relu",
        "attention_bias": False,
        "ffn_bias": False,
        "scale_embedding": True,
        "tie_word_embeddings": False,
        "token_type_vocab_size": 0,
        "mlm_transform": False,
        "lm_head_bias": False,
        "pooler": False,
        "classifier_activation": "relu",
        "classifier_pooling": "mean",
    }


class VaswaniDecoderTest(harness.DecoderSuite):
    """GPT-2."""

    config_class = VaswaniDecoderConfig
    all_model_classes = (
        *(VaswaniDecoderModel, VaswaniForCausalLM, VaswaniDecoderForSequenceClassification),
        *(VaswaniDecoderForTokenClassification, VaswaniDecoderForQuestionAnswering),
    )
    peers = (peers.GPT2Test,)
    settings: ClassVar[dict[str, object]] = {
        "d_model": 32,
        "decoder_layers": 2,
        "decoder_attention_heads": 4,
        "decoder_ffn_dim": 37,
        "max_position_embeddings": 64,
    }


class VaswaniDecoderVariantTest(VaswaniDecoderTest):
    """Every option turned the other way."""

    settings: ClassVar[dict[str, object]] = {
        **VaswaniDecoderTest.settings,
        "norm_order": "post",
        "embedding_norm": True,
        "position_embedding": "sinusoidal",
        "activation_function": "relu",
        "attention_bias": False,
        "ffn_bias": False,
        "scale_embedding": True,
        "tie_word_embeddings": False,
        "lm_head_bias": True,
    }
