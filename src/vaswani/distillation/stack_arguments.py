"""Arguments for distilling a model of one stack (encoder or decoder): a language model, or one for a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vaswani.distillation.arguments import FROM_TEACHER, TeacherArguments
from vaswani.errors import UserError
from vaswani.training.config.arguments import CardArguments, FamilyArguments
from vaswani.training.config.finetuning_arguments import (
    LabelledDataArguments,
    LabelsConfig,
    LabelTrainingArguments,
    PretrainedModelArguments,
)
from vaswani.training.config.options import BaseConfig, Section, field_with_default, option
from vaswani.training.config.pretraining_arguments import (
    CausalLMConfig,
    CausalObjective,
    MaskedObjective,
    PretrainingConfig,
    TextArguments,
)
from vaswani.training.config.training_arguments import BaseTrainingArguments, FinetuningDefaults


@dataclass
class StackDistillationArguments(TeacherArguments):
    """The teacher, what the student learns from it, and how the student starts.

    The defaults are DistilBERT's (Sanh et al., 2019, arXiv:1910.01108, section 3).

    Raises:
        UserError: the fields contradict each other.
    """

    label_weight: float = field_with_default(TeacherArguments, "label_weight", 2.0)
    soft_target_weight: float = field_with_default(TeacherArguments, "soft_target_weight", 5.0)
    temperature: float = field_with_default(TeacherArguments, "temperature", 2.0)
    cosine_weight: float = option(
        None,
        "Weight of 1 - cosine similarity of the last hidden states; the student's states are projected if "
        "the widths differ. Default: 1, or with several teachers, whose states cannot be averaged, 0.",
        at_least=0,
    )
    student: str = option(
        FROM_TEACHER,
        "Initial student: teacher, student_layers of the teacher's layers; random, new weights in that "
        "shape; or a folder.",
    )
    student_layers: str | None = option(
        None,
        'Layers of the teacher to keep: a number, evenly spaced ("6"), or a list ("0,2,5"). Default: half.',
    )

    @property
    def uses_texts(self) -> bool:
        """True if the student is trained on texts that the teacher writes."""
        return False

    def __post_init__(self) -> None:
        if self.cosine_weight is None:
            self.cosine_weight = 0.0 if len(self.teacher) > 1 else 1.0
        super().__post_init__()
        if not (self.uses_distributions or self.uses_states or self.uses_texts):
            raise UserError(
                "nothing would be taken from the teacher; set soft_target_weight, cosine_weight or "
                "relation_weight above 0"
            )


@dataclass
class MaskedDistillationArguments(StackDistillationArguments):
    """As `StackDistillationArguments`, for a masked language model."""

    soft_target_tokens: Literal["all", "masked"] = option(
        "all",
        "Compare the distributions of all tokens, as DistilBERT does, or only of masked tokens, which is "
        "faster.",
    )

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        tokens = {} if self.uses_distributions else {"soft_target_tokens": "soft_target_weight=0"}
        return super().unused() | tokens


@dataclass
class CausalDistillationArguments(StackDistillationArguments):
    """As `StackDistillationArguments`, for a causal language model, which can learn from its teacher's texts.

    Raises:
        UserError: the fields contradict each other.
    """

    targets: Literal["references", "teacher", "both"] = option(
        "references",
        "Texts to train on: those of the corpus, their beginnings with the teacher's continuations "
        "(sequence-level distillation, arXiv:1606.07947), or both.",
    )
    prompt_tokens: int = option(
        16,
        "Number of first tokens of each text that the teacher continues, up to the length of the text.",
        at_least=0,
    )
    generation_temperature: float = option(
        1.0,
        "Sampling temperature of the teacher; 1 keeps its own distribution, 0 is greedy search.",
        at_least=0,
    )
    generation_top_p: float = option(
        1.0,
        "Draw from the likeliest tokens that together have this probability (arXiv:1904.09751).",
        above=0,
        at_most=1,
    )
    teacher_cache: str | None = option(
        None, "Folder for the teacher's texts. Default: teacher_cache in output_dir."
    )

    @property
    def uses_texts(self) -> bool:
        """True if the student is trained on texts that the teacher writes."""
        return self.targets != "references"

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found = super().unused()
        if not self.uses_texts:
            of_texts = ("prompt_tokens", "generation_temperature", "generation_top_p", "teacher_cache")
            found |= dict.fromkeys(of_texts, "targets=references")
        elif not self.generation_temperature:
            found["generation_top_p"] = "generation_temperature=0"
        return found

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses_texts and len(self.teacher) > 1:
            raise UserError(
                f"targets={self.targets} takes texts of one teacher, and {len(self.teacher)} were given; "
                "give one, or set targets=references"
            )


@dataclass
class TaskDistillationArguments(StackDistillationArguments):
    """As `StackDistillationArguments`, for a model that predicts labels."""

    unlabelled_file: list[str] = option(
        [], "Texts without labels, in the formats of train_file; the teacher's soft labels are their targets."
    )


@dataclass
class StudentModelArguments(Section):
    """The student's attention kernel; its shape comes from the teacher or from its folder."""

    attn_implementation: str | None = field_with_default(FamilyArguments, "attn_implementation", None)


@dataclass
class StudentClassifierArguments(StudentModelArguments):
    """As `StudentModelArguments`, for a model that classifies texts."""

    classifier_pooling: Literal["cls", "mean"] | None = field_with_default(
        PretrainedModelArguments, "classifier_pooling", None
    )


@dataclass
class StackTrainingArguments(FinetuningDefaults, BaseTrainingArguments):  # type: ignore[misc]  # learning_rate is not optional here
    """As `BaseTrainingArguments`, with the usual defaults of fine-tuning."""


PURPOSE = "Train a small {} to imitate a large one, and report its quality."


@dataclass
class MaskedDistillationConfig(PretrainingConfig):
    """The resolved arguments of one distillation of a masked language model, as in DistilBERT."""

    model: StudentModelArguments
    data: TextArguments
    task: MaskedObjective
    distillation: MaskedDistillationArguments
    training: StackTrainingArguments
    card: CardArguments

    command: ClassVar[str] = "distill"
    purpose: ClassVar[str] = PURPOSE.format("masked language model")
    scores: ClassVar[Sequence[str]] = PretrainingConfig.scores

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return this class."""
        return cls


@dataclass
class CausalDistillationConfig(MaskedDistillationConfig):
    """The resolved arguments of one distillation of a causal language model."""

    task: CausalObjective  # type: ignore[assignment]
    distillation: CausalDistillationArguments  # type: ignore[assignment]

    purpose: ClassVar[str] = PURPOSE.format("causal language model")
    scores: ClassVar[Sequence[str]] = CausalLMConfig.scores


@dataclass
class TaskDistillationConfig(LabelsConfig):
    """The resolved arguments of one distillation of a model that predicts labels."""

    model: StudentClassifierArguments  # type: ignore[assignment]
    data: LabelledDataArguments
    distillation: TaskDistillationArguments
    training: LabelTrainingArguments
    card: CardArguments

    command: ClassVar[str] = "distill"
    purpose: ClassVar[str] = PURPOSE.format("classifier, tagger or regressor")

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        of_distributions = ("divergence", "temperature") if self.data.task == "regression" else ()
        return super().unused() | dict.fromkeys(of_distributions, "task=regression (squared error)")


CONFIG_OF_OBJECTIVE: dict[str, type[BaseConfig]] = {
    "masked": MaskedDistillationConfig,
    "causal": CausalDistillationConfig,
}
