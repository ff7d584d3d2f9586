"""Everything that a fine-tuning can be told: the model that it begins with, the rows and the training."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

from transformers.trainer_utils import SchedulerType

from vaswani.data.labels.labelled import LabelledSpec
from vaswani.errors import UserError
from vaswani.training.config.arguments import BaseTrainingArguments, CardArguments
from vaswani.training.config.options import Section, option
from vaswani.training.config.run_config import FIELDS_WITHOUT_EFFECT, BaseConfig
from vaswani.training.trainer.labels import TASKS


@dataclass
class PretrainedModelArguments(Section):
    """The model that a fine-tuning begins with.

    Raises:
        UserError: none was given.
    """

    model: str | None = option(
        None, "Folder of a pre-trained encoder (vaswani pretrain), or its name on the Hub; required."
    )
    from_scratch: bool = option(
        False, "Take its configuration and its tokenizer alone, and begin with new weights: to compare."
    )
    classifier_pooling: Literal["cls", "mean"] | None = option(
        None,
        "A text is told by the state of its first token (cls), or by the mean of all (mean); as the model "
        "has it if not given.",
    )
    attn_implementation: str | None = option(
        None, "Attention kernel (eager, sdpa, ...); changes the speed, not the model."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None:
            raise UserError(
                "no model was given; set model to the folder of a pre-trained encoder, or its name on the Hub"
            )


@dataclass
class LabelledDataArguments(Section):
    """The task, the labelled rows and the limit on their length.

    Raises:
        UserError: the fields contradict each other.
    """

    task: Literal["classification", "multi_label", "regression", "tagging"] = option(
        "classification",
        "One label for each text, any number of them, a number, or a tag for each word.",
    )
    dataset: str | None = option(None, "A data set's folder, or its name on the Hub.")
    dataset_config: str | None = option(None, "Configuration name of the data set.")
    train_file: list[str] = option(
        [],
        "Training file (JSONL, CSV, TSV, Parquet; for tagging also CoNLL's columns), or two text files: "
        "texts and labels, line by line.",
    )
    validation_file: list[str] = option([], "Validation file(s), likewise.")
    test_file: list[str] = option([], "Test file(s), likewise.")
    text_field: str = option(
        "text", "Column of the text, for tagging of its words; a dot reaches into nested columns."
    )
    text_pair_field: str | None = option(None, "Column of a second text, for tasks on pairs of texts.")
    label_field: str = option("label", "Column of the label, the labels, the number, or the tags.")
    label_separator: str = option(
        ",", "Of the labels of a row where they are one text, and not a list.", may_be_blank=True
    )
    max_length: int = option(
        512, "Longer rows are cut off after so many tokens; those of tagging in training alone.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "tagging" and self.text_pair_field is not None:
            raise UserError("text_pair_field has no meaning for task=tagging; leave it out")

    @property
    def corpus(self) -> LabelledSpec:
        """Where the rows lie, and what their fields are."""
        names = {field.name for field in fields(LabelledSpec)} & {field.name for field in fields(self)}
        return LabelledSpec(**{name: getattr(self, name) for name in names})


@dataclass
class FinetuningTrainingArguments(BaseTrainingArguments):
    """Those of any training, with the usual defaults of fine-tuning (Devlin et al., 2019, appendix A.3).

    Raises:
        UserError: for a combination that cannot work, before any work is done.
    """

    learning_rate: float = option(5e-5, "Peak learning rate.", above=0)
    lr_scheduler_type: SchedulerType | str = field(
        default=SchedulerType.LINEAR,
        metadata={"help": "linear, to zero at the end; or inverse_sqrt or another that exists."},
    )
    warmup_steps: float = option(0.1, "Warm-up updates; below 1, a fraction of all updates.", at_least=0)
    adam_beta2: float = option(0.999, "Adam's beta2.", at_least=0, below=1)
    adam_epsilon: float = option(1e-8, "Adam's epsilon.", above=0, at_most=1)
    label_smoothing_factor: float = option(
        0.0, "Label smoothing epsilon, of classification and tagging.", at_least=0, below=1
    )
    max_tokens_per_batch: int = option(
        4096,
        "Tokens of one batch on one device, padding included; for training and evaluation.",
        at_least=1,
    )

    def __post_init__(self) -> None:
        if self.greater_is_better is None and self.metric_for_best_model in ("mse", "eval_mse"):
            self.greater_is_better = False  # the library knows it of losses alone
        super().__post_init__()


@dataclass
class FinetuningConfig(BaseConfig):
    """The resolved arguments of one fine-tuning, a section each."""

    model: PretrainedModelArguments
    data: LabelledDataArguments
    training: FinetuningTrainingArguments
    card: CardArguments

    command: ClassVar[str] = "finetune"
    purpose: ClassVar[str] = "Train a pre-trained encoder on labelled texts."
    example: ClassVar[str] = "finetune_reviews"
    scores: ClassVar[Sequence[str]] = (
        "loss",
        *dict.fromkeys(name for task in TASKS.values() for name in task.metric.names),
    )
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        "prediction_loss_only": "a fine-tuning is measured by what it predicts",
    }
