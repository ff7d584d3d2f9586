"""The steps that all pre-trainings share, and the output of their scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.columns import integer_column
from vaswani.data.evenly_spread import limit_rows
from vaswani.data.sources.corpus import Corpus
from vaswani.data.text.sequences import SegmentPairs, SequenceBuilder, boundary_token_ids, make_sequences
from vaswani.data.text_codec import Tokenizers
from vaswani.data.tokenization import Purpose, check_vocab_size
from vaswani.errors import UserError
from vaswani.evaluation.estimates import Estimate, resampled_rows
from vaswani.evaluation.final import evaluate_finished, metric_entries, record
from vaswani.training.config.pretraining_arguments import ContinuedModelArguments, PretrainingConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.checks import check_attention_kernel
from vaswani.training.runs.models import (
    Pretrained,
    named_tokenizers,
    new_model,
    open_pretrained,
    pretrained_model,
)
from vaswani.training.trainer.pretraining import PretrainingTrainer

SCORE_NAMES = {
    "loss": "Loss (nats)",
    "perplexity": "Perplexity",
    "accuracy": "Accuracy (%)",
    "bits_per_byte": "Bits per byte",
    "next_sentence_accuracy": "Next-sentence accuracy (%)",
}


class PretrainingRun(BaseRun):
    """Base class for pre-training runs of all objectives."""

    config: PretrainingConfig
    purpose: Purpose
    trainer_class: ClassVar[type[PretrainingTrainer]] = PretrainingTrainer

    @cached_property
    def pretrained(self) -> Pretrained | None:
        """The model that the run continues; None if it starts from new weights."""
        arguments = self.config.model
        if not isinstance(arguments, ContinuedModelArguments):
            return None
        return open_pretrained(str(arguments.model), self.auto_class)

    # ----------------------------------------------------------------------------------- before the corpus

    def check(self) -> None:
        budget, max_length = self.config.training.max_tokens_per_batch, self.config.data.max_length
        if self.pretrained is None:
            self._check_new()
        else:
            self._check_pretrained(self.pretrained)
        if max_length > budget:
            raise UserError(
                f"max_tokens_per_batch={budget} is too small for a sequence of max_length={max_length}; "
                "raise it"
            )

    def _check_new(self) -> None:
        """Raise `UserError` unless the shape is valid and has positions for the sequences."""
        data = self.config.data
        if self.given_tokenizer is None and data.tokenizer_kind != "byte":
            check_vocab_size(data.vocab_size, self.purpose, self.markers, data.tokenizer_kind)
        shape = self.model_config(self.given_tokenizer)
        check_attention_kernel(self.auto_class, shape, self.config.model.attn_implementation)
        self.config.training.resolve_learning_rate(shape.hidden_size)
        self.check_positions("max_length", data.max_length)

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        """Raise `UserError` unless the model suits the objective and has positions for the sequences."""
        check_attention_kernel(self.auto_class, pretrained.config, self.config.model.attn_implementation)
        self.config.training.resolve_learning_rate(pretrained.config.hidden_size)
        pretrained.check_length(self.config.data.max_length)
        self.check_tokenizer(pretrained.tokenizer, pretrained.folder)

    @cached_property
    def given_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer that the configuration of a new model names; None if one is trained."""
        name = self.config.data.tokenizer
        if name is None:
            return None
        tokenizer = named_tokenizers(name, self.config.data.tokenizer_kind)[0]
        if tokenizer.pad_token_id is None:
            raise UserError(f"the tokenizer {name} has no padding token, which batches need; give it one")
        self.check_tokenizer(tokenizer, name)
        return tokenizer

    # --------------------------------------------------------------------- steps that depend on the objective

    @property
    def metrics(self) -> Sequence[str]:
        return ["perplexity", "accuracy"]

    @property
    @abstractmethod
    def auto_class(self) -> Any:
        """The Auto class of the model, with the heads that are trained."""

    @property
    def markers(self) -> Sequence[str]:
        """The special tokens for removed text that a trained vocabulary gets."""
        return ()

    @abstractmethod
    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` unless the objective can be trained with a tokenizer that was given.

        Args:
            tokenizer: a given tokenizer, or that of a given model.
            name: its name, for the message.
        """

    @abstractmethod
    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedConfig:
        """The configuration of a new model; None stands for a tokenizer that will be trained."""

    def tokenizer_fields(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, int | None]:
        """The fields of a new model's configuration that the tokenizer decides."""
        if tokenizer is None:
            return {"vocab_size": self.config.data.vocab_size}
        begin, end = boundary_token_ids(tokenizer)
        special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": begin, "eos_token_id": end}
        return {"vocab_size": len(tokenizer), **special}

    @property
    @abstractmethod
    def sequence_builder(self) -> SequenceBuilder:
        """Builds sequences from documents."""

    @abstractmethod
    def collators(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, Any]:
        """The collators of sequences, as arguments of the trainer."""

    # ---------------------------------------------------------------------------- tokenizer, rows and model

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The tokenizer of the given model; for a new one, the given tokenizer or a newly trained one."""
        tokenizer = self._new_tokenizer(corpus) if self.pretrained is None else self.pretrained.tokenizer
        return tokenizer, tokenizer

    def _new_tokenizer(self, corpus: Corpus) -> PreTrainedTokenizerBase:
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        pairs = isinstance(self.sequence_builder, SegmentPairs)
        options = {"purpose": self.purpose, "token_types": pairs, "markers": self.markers}
        return self.new_tokenizer(corpus, ["text"], **options)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with the heads that are trained, or the model that the run continues."""
        if self.pretrained is None:
            return new_model(self.config, self.auto_class, self.model_config(tokenizers[0]))
        return pretrained_model(self.config, self.pretrained, self.auto_class, {})

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The sequences of each split."""
        splits: dict[str, Any] = {}
        for name, texts in corpus.splits.items():
            if name != "train" and isinstance(texts, IterableDataset):
                texts = Dataset.from_list(list(texts))
            rows = self.usable(name, make_sequences(texts, tokenizers[0], self.sequence_builder))
            splits[name] = limit_rows(
                rows, self.config.data.max_validation_rows if name == "validation" else None
            )
        return splits

    def usable(self, split: str, rows: Any) -> Any:
        """The sequences of a split that the objective can learn from: by default, all."""
        return rows

    def describe_used_rows(self, split: str, rows: Dataset, kept: int) -> str:
        """Describe the sequences that the documents make."""
        return f": {len(rows):,} sequences of {integer_column(rows, 'length').sum():,} tokens"

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> PretrainingTrainer:
        return self.trainer_class(
            processing_class=tokenizers[0],
            **self.trainer_options(splits, model),
            **self.collators(tokenizers[0], model),
        )

    def evaluate(
        self, trainer: PretrainingTrainer, splits: dict[str, Any], tokenizers: Tokenizers
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""
        return evaluate_finished(trainer, splits, lambda split, rows, _: report_scores(trainer, split, rows))


# ----------------------------------------------------------------------------------- output of the evaluation


def report_scores(trainer: PretrainingTrainer, split: str, rows: Dataset) -> dict[str, Any]:
    """Print the scores; return what `evaluation.json` holds of them."""
    metrics = show_estimates(trainer, split, rows, unit="sequences")
    return record(split, len(rows), metrics, unit="sequences")


def show_estimates(
    trainer: PretrainingTrainer,
    split: str,
    rows: Dataset,
    *,
    unit: str,
    names: Mapping[str, str] = SCORE_NAMES,
) -> dict[str, Any]:
    """Print the scores of the latest evaluation with their intervals; return the `metrics` of `record`."""
    metrics = metric_entries(names, estimates(trainer))
    print(f"\n{split} ({len(rows):,} {unit}), with 95 % intervals:")
    for score in metrics.values():
        print(f"{score['name']} {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})")
    return metrics


def scores_with_resamples(trainer: PretrainingTrainer) -> dict[str, tuple[float, np.ndarray]]:
    """The scores of the latest evaluation, each with its values on bootstrap resamples of the rows [R]."""
    sums = trainer.sums
    resampled = [trainer.scores_of(sums[rows].sum(0)) for rows in resampled_rows(len(sums))]
    return {
        name: (value, np.array([scores[name] for scores in resampled]))
        for name, value in trainer.scores_of(sums.sum(0)).items()
    }


def estimates(trainer: PretrainingTrainer) -> dict[str, Estimate]:
    """The scores of the latest evaluation with their 95 % intervals."""
    scores = scores_with_resamples(trainer)
    return {name: Estimate.from_resamples(*score) for name, score in scores.items()}
