"""The arguments of a fine-tuning on extractive question answering."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vaswani.data.questions.question_rows import QuestionSpec
from vaswani.data.questions.windows import WindowLengths
from vaswani.evaluation.answer_metrics import AnswerMetric
from vaswani.training.config.arguments import (
    AdapterArguments,
    CardArguments,
    CorpusArguments,
    FamilyArguments,
    GivenModelArguments,
)
from vaswani.training.config.options import (
    FIELDS_WITHOUT_EFFECT,
    BaseConfig,
    Section,
    field_with_default,
    option,
)
from vaswani.training.config.training_arguments import FinetuningTrainingArguments


@dataclass
class QuestionModelArguments(GivenModelArguments):
    """As `GivenModelArguments`; with `from_scratch`, only the model's shape and tokenizer are used."""

    from_scratch: bool = option(
        False, "Use only the model's configuration and tokenizer, with new weights, for comparison."
    )
    freeze: list[Literal["encoder", "embeddings"]] = option(
        [],
        "Parts whose weights do not change: embeddings (of tokens), or encoder, the whole pretrained model "
        "except a pooler, so that only the head is trained.",
    )
    attn_implementation: str | None = field_with_default(FamilyArguments, "attn_implementation", None)


@dataclass
class QuestionDataArguments(CorpusArguments):
    """The questions with their texts, and how the texts are cut into windows."""

    task: Literal["question_answering"] = option(
        "question_answering",
        "Answer questions by parts of a text; see the page of vaswani finetune for other tasks.",
    )
    train_file: list[str] = option(
        [],
        "Training files: SQuAD's JSON (v1.1 or v2.0), or rows in JSONL, JSON, CSV, TSV or Parquet; several "
        "are read one after the other.",
    )
    id_field: str = option("id", "Column of a name for each row; without it, rows are numbered.")
    context_field: str = option("context", "Column of the text; a dot reaches into nested columns.")
    question_field: str = option("question", "Column of the question.")
    answers_field: str = option(
        "answers",
        "Column of the answers: lists text and answer_start, empty for no answer; JSON in CSV.",
    )
    answer_start_field: str | None = option(
        None, "Column of the character where an answer starts, if answers_field holds only its text."
    )
    max_length: int = option(
        WindowLengths.max_length, "Most tokens of a window: the question and a part of the text.", at_least=1
    )
    doc_stride: int = option(
        WindowLengths.doc_stride, "Tokens that a window shares with the one before it.", at_least=0
    )
    max_question_length: int = option(
        WindowLengths.max_question_length, "Longer questions are cut after this many tokens.", at_least=1
    )

    @property
    def corpus(self) -> QuestionSpec:
        """Location and columns of the questions."""
        return self.part(QuestionSpec)

    @property
    def windows(self) -> WindowLengths:
        """The lengths of the windows that texts are cut into."""
        return WindowLengths(self.max_length, self.doc_stride, self.max_question_length)


@dataclass
class AnswerArguments(Section):
    """Options for choosing answers, in evaluations and by the trained model."""

    max_answer_length: int = option(30, "Most tokens of an answer.", at_least=1)
    n_best: int = option(20, "Answers to each question that nbest_predictions.json lists.", at_least=1)
    null_score_diff_threshold: float | None = option(
        None,
        "Give no answer if the score of no answer exceeds that of the best answer by more than this. "
        "Default: the threshold with the best F1 on the validation split, if some of its questions have no "
        "answer.",
    )


@dataclass
class QuestionAnsweringConfig(BaseConfig):
    """The resolved arguments of one fine-tuning on questions, a section each."""

    model: QuestionModelArguments
    data: QuestionDataArguments
    answers: AnswerArguments
    training: FinetuningTrainingArguments
    card: CardArguments
    adapter: AdapterArguments

    command: ClassVar[str] = "finetune"
    purpose: ClassVar[str] = (
        "Finetune a pretrained model to answer questions by parts of a text, as in SQuAD."
    )
    scores: ClassVar[Sequence[str]] = ("loss", *AnswerMetric.names)
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        "prediction_loss_only": "a fine-tuning is evaluated by its predictions",
        **dict.fromkeys(
            (
                *("label_smoothing_factor", "classifier_pooling", "text_field", "text_pair_field"),
                *("label_field", "label_separator"),
            ),
            "an answer is a part of a text, not a label",
        ),
    }
