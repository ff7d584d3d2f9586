"""The public model mapping of each Auto class of transformers."""

from importlib import import_module
from typing import Any

MODELING_AUTO = "transformers.models.auto.modeling_auto"

MAPPINGS = {  # for text models: Auto class → its mapping in `MODELING_AUTO`
    "AutoModel": "MODEL_MAPPING",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING",
    "AutoModelForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING",
    "AutoModelForNextSentencePrediction": "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING",
    "AutoModelForPreTraining": "MODEL_FOR_PRETRAINING_MAPPING",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    "AutoModelForTextEncoding": "MODEL_FOR_TEXT_ENCODING_MAPPING",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
}


def models_of(auto_class: Any) -> Any:
    """Return the mapping of an Auto class: configuration class → model class, or several model classes.

    `auto_class.register` adds to it.
    """
    return getattr(import_module(MODELING_AUTO), MAPPINGS[auto_class.__name__])
