"""The arguments of a fine-tuning: the pre-trained model, the labelled rows and the training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vaswani.data.labels.labelled import LabelledSpec
from vaswani.errors import UserError
from vaswani.evaluation.label_metrics import METRICS_OF_TASK
from vaswani.training.config.arguments import AdapterArguments, CardArguments, CorpusArguments
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.config.flags import check_choice
from vaswani.training.config.options import FIELDS_WITHOUT_EFFECT, BaseConfig, option
from vaswani.training.config.question_arguments import QuestionAnsweringConfig, QuestionModelArguments
from vaswani.training.config.training_arguments import FinetuningTrainingArguments

# Tasks that do not label texts or words, and have their own sections.
OTHER_TASKS: dict[str, type[BaseConfig]] = {
    "question_answering": QuestionAnsweringConfig,
    "completion": CompletionConfig,
}


@dataclass
class PretrainedModelArguments(QuestionModelArguments):
    """As `QuestionModelArguments`, with a classifier's pooling."""

    model: str | None = option(
        None, "Folder or Hub name of a pretrained encoder or decoder (see vaswani pretrain); required."
    )
    classifier_pooling: Literal["cls", "mean"] | None = option(
        None,
        "Classify a text by the state of its first token (cls) or by the mean of all states (mean); default: "
        "as the model does.",
    )


@dataclass
class LabelledDataArguments(CorpusArguments):
    """The task, the labelled rows and the limit on their length.

    Raises:
        UserError: the fields contradict each other.
    """

    task: Literal["classification", "multi_label", "regression", "tagging"] = option(
        "classification",
        "One label for each text, any number of labels, a number, or a tag for each word. Also "
        "question_answering and completion, whose options vaswani finetune --task TASK --help lists.",
    )
    train_file: list[str] = option(
        [],
        "Training files: tables (JSONL, CSV, TSV, Parquet; for tagging also CoNLL's columns), several of "
        "which are read one after the other, or two text files, texts and labels, line by line.",
    )
    text_field: str = option(
        "text", "Column of the text, or of the words for tagging; a dot reaches into nested columns."
    )
    text_pair_field: str | None = option(None, "Column of a second text, for tasks on pairs of texts.")
    label_field: str = option("label", "Column of the label, labels, number or tags.")
    label_separator: str = option(
        ",", "Separates the labels of a row that are one text instead of a list.", may_be_blank=True
    )
    max_length: int = option(
        512, "Longer rows are cut after this many tokens; for tagging, in training only.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "tagging" and self.text_pair_field is not None:
            raise UserError("text_pair_field has no meaning for task=tagging; leave it out")

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        return {} if self.task == "multi_label" else {"label_separator": f"task={self.task}"}

    @property
    def corpus(self) -> LabelledSpec:
        """Location and columns of the rows."""
        return self.part(LabelledSpec)


@dataclass
class LabelTrainingArguments(FinetuningTrainingArguments):
    """Training arguments of a fine-tuning on labels."""

    label_smoothing_factor: float = option(
        0.0, "Label smoothing epsilon, for classification and tagging.", at_least=0, below=1
    )
    lm_loss_weight: float = option(
        0.0,
        "Weight of a language-modelling loss on the texts, added to the loss of the labels (decoders only); "
        "GPT uses 0.5.",
        at_least=0,
    )


@dataclass
class LabelsConfig(BaseConfig):
    """The resolved arguments of one training on labels, a section each."""

    model: PretrainedModelArguments
    data: LabelledDataArguments
    training: LabelTrainingArguments
    card: CardArguments

    scores: ClassVar[Sequence[str]] = (
        "loss",
        *dict.fromkeys(name for metric in METRICS_OF_TASK.values() for name in metric.names),
    )
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        "prediction_loss_only": "a fine-tuning is evaluated by its predictions",
    }


@dataclass
class FinetuningConfig(LabelsConfig):
    """The resolved arguments of one fine-tuning on labels, a section each."""

    adapter: AdapterArguments

    command: ClassVar[str] = "finetune"
    purpose: ClassVar[str] = "Finetune a pretrained encoder or decoder on labelled texts."

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return the class for the task: labels, questions, or completions."""
        if (task := given.get("task")) is not None:
            check_choice("task", task, (*METRICS_OF_TASK, *OTHER_TASKS))
        return OTHER_TASKS.get(str(task), cls)
