"""transformers' model tests on this project's encoder-decoder."""

from collections.abc import Iterator
from typing import ClassVar
from unittest.mock import patch

import pytest
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration, VaswaniModel

from . import harness, test_peers


@pytest.fixture(scope="module", autouse=True)
def _listed_among_the_library_models() -> Iterator[None]:
    """Many checks pass over classes that are not in the library's own lists: put ours there for the while."""
    base = {VaswaniConfig.model_type: VaswaniModel.__name__}
    head = {VaswaniConfig.model_type: VaswaniForConditionalGeneration.__name__}
    with (
        patch.dict(MODEL_MAPPING_NAMES, base),
        patch.dict(MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, head),
    ):
        yield


class VaswaniTest(harness.Seq2SeqSuite):
    """The paper's model."""

    config_class = VaswaniConfig
    all_model_classes = (VaswaniModel, VaswaniForConditionalGeneration)
    peers = (test_peers.MarianTest, test_peers.BartTest)


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
