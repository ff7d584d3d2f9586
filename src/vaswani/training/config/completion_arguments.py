"""The arguments of a fine-tuning on completions: the causal language model, the rows and the training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from vaswani.data.text.completions import ChatSpec, CompletionSpec
from vaswani.training.config.arguments import (
    AdapterArguments,
    CardArguments,
    CorpusArguments,
    FamilyArguments,
    GivenModelArguments,
)
from vaswani.training.config.options import FIELDS_WITHOUT_EFFECT, BaseConfig, field_with_default, option
from vaswani.training.config.training_arguments import FinetuningTrainingArguments


@dataclass
class CausalModelArguments(GivenModelArguments):
    """The causal language model that a fine-tuning on completions starts from."""

    kind: ClassVar[str] = "a causal language model"

    model: str | None = option(
        None, "Folder or Hub name of a causal language model (see vaswani pretrain); required."
    )
    freeze: list[Literal["embeddings"]] = option(
        [], "Parts whose weights do not change: embeddings (of tokens)."
    )
    attn_implementation: str | None = field_with_default(FamilyArguments, "attn_implementation", None)


@dataclass
class CompletionDataArguments(CorpusArguments):
    """The rows of prompts and completions, or of chats, and the limit on their length."""

    task: Literal["completion"] = option(
        "completion", "Continue prompts; see the page of vaswani finetune for other tasks."
    )
    train_file: list[str] = option(
        [],
        "Training files: tables (JSONL, JSON, CSV, TSV, Parquet), several of which are read one after the "
        "other, or two text files, prompts and completions, line by line.",
    )
    prompt_field: str = option("prompt", "Column of the prompt, which does not count in the loss.")
    completion_field: str = option(
        "completion", "Column of the completion, which follows the prompt as it is, spaces included."
    )
    messages_field: str | None = option(
        None,
        "Column of chats, lists of messages with role and content, in place of prompts and completions; only "
        "the assistant's answers count in the loss.",
    )
    max_length: int = option(
        512, "Most tokens of a row; longer rows lose the beginning of the prompt.", at_least=2
    )

    @property
    def corpus(self) -> CompletionSpec | ChatSpec:
        """Location and columns of the rows."""
        return self.part(CompletionSpec) if self.messages_field is None else self.part(ChatSpec)


@dataclass
class CompletionConfig(BaseConfig):
    """The resolved arguments of one fine-tuning on completions, a section each."""

    model: CausalModelArguments
    data: CompletionDataArguments
    training: FinetuningTrainingArguments
    card: CardArguments
    adapter: AdapterArguments

    command: ClassVar[str] = "finetune"
    purpose: ClassVar[str] = (
        "Finetune a causal language model on completions of prompts, or on answers in chats."
    )
    scores: ClassVar[Sequence[str]] = ("loss", "perplexity", "accuracy")
    without_effect: ClassVar[dict[str, str]] = {
        **FIELDS_WITHOUT_EFFECT,
        "label_smoothing_factor": "a language model is trained and evaluated by its likelihood",
        "prediction_loss_only": "an evaluation computes all scores at once",
    }
