"""The original Transformer (Vaswani et al., 2017, arXiv:1706.03762) as a Hugging Face model plugin.

Importing the package registers its models with transformers' Auto classes.
"""

from vaswani import bootstrap, startup  # noqa: F401  # first: where this is the command, they prepare its imports

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

import transformers

from vaswani.interop.sparsify import sparsify
from vaswani.model.configuration_vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.model.kernel_slots import prepare_kernels
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration, VaswaniModel
from vaswani.model.modeling_vaswani_decoder import VaswaniDecoderModel, VaswaniForCausalLM
from vaswani.model.modeling_vaswani_encoder import (
    VaswaniEncoderModel,
    VaswaniForMaskedLM,
    VaswaniForPreTraining,
    VaswaniForQuestionAnswering,
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
)
from vaswani.model.stacks import VaswaniPreTrainedModel

if TYPE_CHECKING:
    from vaswani.distillation.arguments import DistillationObjectives
    from vaswani.distillation.trainer import DistillationTrainer
    from vaswani.inference.embed.embedding import Embedder
    from vaswani.inference.prompt.prompting import Prompter
    from vaswani.inference.translate.translation import Translator
    from vaswani.model.scalar_mix import ScalarMix
    from vaswani.training.config.arguments import TrainingArguments
    from vaswani.training.trainer.seq2seq import Trainer

__version__ = "0.1.0"

__all__ = [
    "DistillationObjectives",
    "DistillationTrainer",
    "Embedder",
    "Prompter",
    "ScalarMix",
    "Trainer",
    "TrainingArguments",
    "Translator",
    "VaswaniConfig",
    "VaswaniDecoderConfig",
    "VaswaniDecoderModel",
    "VaswaniEncoderConfig",
    "VaswaniEncoderModel",
    "VaswaniForCausalLM",
    "VaswaniForConditionalGeneration",
    "VaswaniForMaskedLM",
    "VaswaniForPreTraining",
    "VaswaniForQuestionAnswering",
    "VaswaniForSequenceClassification",
    "VaswaniForTokenClassification",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "sparsify",
]

for _config_class in (VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig):
    for _auto_class, _place in _config_class.auto_classes.items():
        if _auto_class == "AutoConfig":
            transformers.AutoConfig.register(_config_class.model_type, _config_class)
        else:
            _model_class = globals()[_place.rpartition(".")[2]]
            getattr(transformers, _auto_class).register(_config_class, _model_class)


def _hook_in_kernels() -> None:
    """Put the plugin's kernels into our models, when the first model is built."""
    import_module("vaswani.kernels.registry").hook_in_kernels()


prepare_kernels.kernel = _hook_in_kernels

# Imported when first asked for, so that loading a model does not wait for what trains it.
_LATE = {
    "DistillationObjectives": "vaswani.distillation.arguments",
    "DistillationTrainer": "vaswani.distillation.trainer",
    "Embedder": "vaswani.inference.embed.embedding",
    "Prompter": "vaswani.inference.prompt.prompting",
    "ScalarMix": "vaswani.model.scalar_mix",
    "Trainer": "vaswani.training.trainer.seq2seq",
    "TrainingArguments": "vaswani.training.config.arguments",
    "Translator": "vaswani.inference.translate.translation",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
