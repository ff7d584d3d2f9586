"""The original Transformer (Vaswani et al., 2017, arXiv:1706.03762) as a Hugging Face model plugin.

Importing the package registers its models with transformers' Auto classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

from vaswani.interop.sparsify import sparsify
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.modeling_vaswani import (
    VaswaniForConditionalGeneration,
    VaswaniModel,
    VaswaniPreTrainedModel,
)

if TYPE_CHECKING:
    from vaswani.distillation.arguments import DistillationObjectives
    from vaswani.distillation.trainer import DistillationTrainer
    from vaswani.inference.translation import Translator
    from vaswani.training.arguments import TrainingArguments
    from vaswani.training.trainer import Trainer

__version__ = "0.1.0"

__all__ = [
    "DistillationObjectives",
    "DistillationTrainer",
    "Trainer",
    "TrainingArguments",
    "Translator",
    "VaswaniConfig",
    "VaswaniForConditionalGeneration",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "sparsify",
]

AutoConfig.register(VaswaniConfig.model_type, VaswaniConfig)
AutoModel.register(VaswaniConfig, VaswaniModel)
AutoModelForSeq2SeqLM.register(VaswaniConfig, VaswaniForConditionalGeneration)

# Imported when first asked for, so that loading a model does not wait for what trains it.
_LATE = {
    "DistillationObjectives": "vaswani.distillation.arguments",
    "DistillationTrainer": "vaswani.distillation.trainer",
    "Trainer": "vaswani.training.trainer",
    "TrainingArguments": "vaswani.training.arguments",
    "Translator": "vaswani.inference.translation",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
