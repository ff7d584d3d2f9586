"""The `distillation` section of the arguments: the teacher, the losses and the initial student."""

from dataclasses import dataclass
from typing import Literal

from vaswani.bounds import MAX_BEAMS
from vaswani.distillation.losses import DIVERGENCES
from vaswani.errors import UserError
from vaswani.evaluation.text_metrics import METRICS
from vaswani.training.config.arguments import VOCABULARY_FIELDS, LanguageArguments
from vaswani.training.config.options import Section, option


@dataclass
class DistillationObjectives(Section):
    """The loss of a student: a weighted sum of losses, each in nats per token.

    DistilBERT (arXiv:1910.01108, section 3) has soft_target_weight=5, label_weight=2, cosine_weight=1 at
    temperature=2.

    Raises:
        UserError: a weight is negative or none is positive, or another field has an impossible value.
    """

    label_weight: float = option(
        1.0,
        "Weight of the cross-entropy with the labels (smoothed as in training).",
        at_least=0,
    )
    soft_target_weight: float = option(
        1.0,
        "Weight of the divergence from the teacher's distributions, times temperature squared.",
        at_least=0,
    )
    divergence: str = option(
        "forward_kl", "Divergence of student and teacher: forward_kl, reverse_kl or jensen_shannon."
    )
    temperature: float = option(
        1.0,
        "Divides the logits of student and teacher before the comparison; 1 changes nothing.",
        above=0,
    )
    cosine_weight: float = option(
        0.0,
        "Weight of 1 - cosine similarity of the last hidden states of each stack; the student's states are "
        "projected if the widths differ.",
        at_least=0,
    )
    relation_weight: float = option(
        0.0,
        "Weight of MiniLM's loss on query-key and value relations in the last self-attention of each stack.",
        at_least=0,
    )
    relation_heads: int = option(
        8, "Number of relation heads; must divide the widths of student and teacher.", at_least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not any(getattr(self, name) for name in WEIGHTS):
            raise UserError(
                f"nothing to train for: all of {', '.join(WEIGHTS)} are 0; give one a positive number"
            )
        if self.divergence not in DIVERGENCES:
            raise UserError(
                f"divergence={self.divergence} is unknown; choose one of {', '.join(DIVERGENCES)}"
            )

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found: dict[str, str] = {}
        if not self.uses_distributions:
            found |= dict.fromkeys(("divergence", "temperature"), "soft_target_weight=0")
        if not self.relation_weight:
            found["relation_heads"] = "relation_weight=0"
        return found

    @property
    def uses_distributions(self) -> bool:
        """True if a loss needs the teacher's distributions over the next token."""
        return self.soft_target_weight > 0

    @property
    def uses_states(self) -> bool:
        """True if a loss needs the teacher's hidden states or projections."""
        return self.cosine_weight > 0 or self.relation_weight > 0


RANDOM, FROM_TEACHER = "random", "teacher"  # values of `student` other than a folder
WEIGHTS = ("label_weight", "soft_target_weight", "cosine_weight", "relation_weight")


@dataclass
class TeacherArguments(DistillationObjectives):
    """The teacher, and the loss of a student of any kind.

    Raises:
        UserError: no teacher was given, or several that cannot be averaged.
    """

    teacher: list[str] = option(
        [], "Folder or Hub name of the teacher; several are averaged by their probabilities."
    )
    teacher_dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "Type of the teacher's weights. Default: as saved."
    )
    baseline: bool = option(
        True, "Also train the same student without the teacher, in output_dir/baseline, for the report."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.teacher:
            raise UserError("no teacher was given; set teacher to the folder of a trained model")
        if self.uses_states and len(self.teacher) > 1:
            raise UserError(
                f"hidden states of {len(self.teacher)} teachers cannot be averaged; give one teacher, or set "
                "cosine_weight and relation_weight to 0"
            )


@dataclass
class DistillationArguments(LanguageArguments, TeacherArguments):
    """The teacher, its languages, what the student learns from it, and how the student starts.

    Raises:
        UserError: the fields contradict each other.
    """

    teacher: list[str] = option(
        [],
        "Folder or Hub name of any encoder-decoder; several are averaged. A configuration (.yaml) is "
        "trained first, unless its model exists.",
    )
    targets: Literal["references", "teacher", "both"] = option(
        "teacher",
        "Targets to train on: the references of the corpus, the teacher's translations of its sources "
        "(sequence-level distillation, arXiv:1606.07947), or both.",
    )
    unlabelled_file: list[str] = option(
        [],
        "Sources without targets, in the formats of train_file, or lines of plain text; the teacher "
        "translates them (targets: teacher or both). With them, the corpus needs no training split.",
    )
    teacher_num_beams: int = option(
        5, "Beams of the search for the teacher's translations.", at_least=1, at_most=MAX_BEAMS
    )
    teacher_top_k: int | None = option(
        None,
        "Store the k likeliest tokens of each distribution of the teacher on disk, instead of computing them "
        "in every epoch.",
        at_least=1,
    )
    teacher_cache: str | None = option(
        None, "Folder for the teacher's translations and distributions. Default: teacher_cache in output_dir."
    )
    student: str = option(
        RANDOM,
        "Initial student: random, new weights in the shape of the model's fields; teacher, encoder_layers "
        "and decoder_layers of the teacher's layers, evenly spaced; or a folder (see vaswani student).",
    )
    vocabulary: Literal["teacher", "own"] = option(
        "teacher",
        "Vocabulary of the student: the teacher's, or its own, trained on the corpus (vocab_size; only for "
        "sequence-level distillation).",
    )
    retention_metric: str | None = option(
        None, f"Metric of the report: {', '.join(METRICS)}; default: the first of the task."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.retention_metric not in (None, *METRICS):
            raise UserError(
                f"retention_metric={self.retention_metric} is unknown; choose one of {', '.join(METRICS)}"
            )
        if self.targets == "references" and not (self.uses_distributions or self.uses_states):
            raise UserError(
                "nothing would be taken from the teacher; set targets=teacher, or one of "
                f"{', '.join(WEIGHTS[1:])} above 0"
            )
        if self.unlabelled_file and self.targets == "references":
            raise UserError(
                f"unlabelled_file={self.unlabelled_file[0]} has no targets but the teacher's; set targets to "
                "teacher or both, or leave it out"
            )
        if self.vocabulary == "own":
            self._check_own_vocabulary()
        if self.teacher_top_k is not None and self.uses_states:
            raise UserError(
                "teacher_top_k keeps distributions alone; leave it out, or set cosine_weight and "
                "relation_weight to 0"
            )

    def unused(self) -> dict[str, str]:
        """Return the fields that have no effect with the given values, and why."""
        found = super().unused()
        if self.targets == "references":
            found["teacher_num_beams"] = "targets=references"
        if not self.uses_distributions:
            found["teacher_top_k"] = "soft_target_weight=0"
        if self.targets == "references" and (self.teacher_top_k is None or not self.uses_distributions):
            found["teacher_cache"] = "targets=references without teacher_top_k, which keep nothing"
        if self.vocabulary == "teacher":
            found |= dict.fromkeys(
                (*VOCABULARY_FIELDS, "shared_vocab", "tokenizer_kind"), "vocabulary=teacher"
            )
        return found

    def _check_own_vocabulary(self) -> None:
        if self.student != RANDOM:
            raise UserError(
                f"vocabulary=own needs student=random, not {self.student}, which has a vocabulary"
            )
        if self.uses_distributions or self.uses_states:
            raise UserError(
                "vocabulary=own has other tokens than the teacher, so only its translations can be learned: "
                "set targets=teacher, and soft_target_weight, cosine_weight and relation_weight to 0"
            )
