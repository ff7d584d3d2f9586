"""The library's own encoder-decoders through the same harness: what they pass, it may ask of ours."""

import pytest
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    MarianConfig,
    MarianModel,
    MarianMTModel,
)

from . import harness

pytestmark = pytest.mark.slow

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
