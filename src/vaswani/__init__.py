"""The original Transformer (Vaswani et al., 2017, arXiv:1706.03762) as a Hugging Face model plugin.

Importing the package registers its models with transformers' Auto classes. It imports neither torch nor
transformers: the names below are imported when they are first used.
"""

from vaswani import bootstrap  # noqa: F401  # first: removes the current folder from the path

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vaswani.model.kernel_slots import prepare_kernels
from vaswani.registration import register_auto_classes

if TYPE_CHECKING:
    from vaswani.distillation.arguments import DistillationObjectives
    from vaswani.distillation.trainer import DistillationTrainer
    from vaswani.inference.align.aligner import Aligner
    from vaswani.inference.answer.answering import QuestionAnswerer
    from vaswani.inference.classify.classification import Classifier
    from vaswani.inference.embed.embedding import Embedder
    from vaswani.inference.embed.scalar_mix import ScalarMix
    from vaswani.inference.generate.generation import TextGenerator
    from vaswani.inference.prompt.prompting import Prompter
    from vaswani.inference.score.scorer import Scorer
    from vaswani.inference.translate.translation import Translator
    from vaswani.interop.sparsify import sparsify
    from vaswani.model.configuration_vaswani import (
        VaswaniConfig,
        VaswaniDecoderConfig,
        VaswaniEncoderConfig,
    )
    from vaswani.model.modeling_vaswani import (
        VaswaniForConditionalGeneration,
        VaswaniModel,
    )
    from vaswani.model.modeling_vaswani_decoder import (
        VaswaniDecoderForQuestionAnswering,
        VaswaniDecoderForSequenceClassification,
        VaswaniDecoderForTokenClassification,
        VaswaniDecoderModel,
        VaswaniForCausalLM,
    )
    from vaswani.model.modeling_vaswani_encoder import (
        VaswaniEncoderModel,
        VaswaniForMaskedLM,
        VaswaniForMultipleChoice,
        VaswaniForNextSentencePrediction,
        VaswaniForPreTraining,
        VaswaniForQuestionAnswering,
        VaswaniForSequenceClassification,
        VaswaniForTokenClassification,
    )
    from vaswani.model.stacks import VaswaniPreTrainedModel
    from vaswani.training.config.training_arguments import TrainingArguments
    from vaswani.training.trainer.seq2seq import Trainer

__version__ = "0.1.0"

__all__ = [
    "Aligner",
    "Classifier",
    "DistillationObjectives",
    "DistillationTrainer",
    "Embedder",
    "Prompter",
    "QuestionAnswerer",
    "ScalarMix",
    "Scorer",
    "TextGenerator",
    "Trainer",
    "TrainingArguments",
    "Translator",
    "VaswaniConfig",
    "VaswaniDecoderConfig",
    "VaswaniDecoderForQuestionAnswering",
    "VaswaniDecoderForSequenceClassification",
    "VaswaniDecoderForTokenClassification",
    "VaswaniDecoderModel",
    "VaswaniEncoderConfig",
    "VaswaniEncoderModel",
    "VaswaniForCausalLM",
    "VaswaniForConditionalGeneration",
    "VaswaniForMaskedLM",
    "VaswaniForMultipleChoice",
    "VaswaniForNextSentencePrediction",
    "VaswaniForPreTraining",
    "VaswaniForQuestionAnswering",
    "VaswaniForSequenceClassification",
    "VaswaniForTokenClassification",
    "VaswaniModel",
    "VaswaniPreTrainedModel",
    "sparsify",
]

_MODULES = {
    "distillation.arguments": ["DistillationObjectives"],
    "distillation.trainer": ["DistillationTrainer"],
    "inference.align.aligner": ["Aligner"],
    "inference.answer.answering": ["QuestionAnswerer"],
    "inference.classify.classification": ["Classifier"],
    "inference.embed.embedding": ["Embedder"],
    "inference.generate.generation": ["TextGenerator"],
    "inference.prompt.prompting": ["Prompter"],
    "inference.score.scorer": ["Scorer"],
    "inference.translate.translation": ["Translator"],
    "interop.sparsify": ["sparsify"],
    "model.configuration_vaswani": ["VaswaniConfig", "VaswaniDecoderConfig", "VaswaniEncoderConfig"],
    "model.modeling_vaswani": ["VaswaniForConditionalGeneration", "VaswaniModel"],
    "model.modeling_vaswani_decoder": [
        "VaswaniDecoderForQuestionAnswering",
        "VaswaniDecoderForSequenceClassification",
        "VaswaniDecoderForTokenClassification",
        "VaswaniDecoderModel",
        "VaswaniForCausalLM",
    ],
    "model.modeling_vaswani_encoder": [
        "VaswaniEncoderModel",
        "VaswaniForMaskedLM",
        "VaswaniForMultipleChoice",
        "VaswaniForNextSentencePrediction",
        "VaswaniForPreTraining",
        "VaswaniForQuestionAnswering",
        "VaswaniForSequenceClassification",
        "VaswaniForTokenClassification",
    ],
    "inference.embed.scalar_mix": ["ScalarMix"],
    "model.stacks": ["VaswaniPreTrainedModel"],
    "training.config.training_arguments": ["TrainingArguments"],
    "training.trainer.seq2seq": ["Trainer"],
}
_PLACES = {name: f"vaswani.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _prepare_models() -> None:
    """Give our models the plugin's kernels and model cards, when the first model is built."""
    import_module("vaswani.kernels.registry").hook_in_kernels()
    import_module("vaswani.hub.plain_card").hook_in()


prepare_kernels.kernel = _prepare_models
register_auto_classes()
