"""A pre-training: from texts to a masked or causal language model and its scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.auto_classes import models_of
from vaswani.data.evenly_spread import at_most
from vaswani.data.sources.corpus import Corpus
from vaswani.data.text.masking import MaskingCollator
from vaswani.data.text.packing import DocumentCollator, PackingCollator
from vaswani.data.text.sequences import (
    DocumentParts,
    PackedBlocks,
    SegmentPairs,
    SentenceSequences,
    SequenceBuilder,
    boundary_token_ids,
    make_sequences,
)
from vaswani.data.tokenization import (
    Purpose,
    check_vocab_size,
    is_byte_level,
    train_tokenizer,
)
from vaswani.errors import UserError
from vaswani.evaluation.confidence import Estimate, resampled_rows
from vaswani.evaluation.final import evaluate_finished, metric_entries, record
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.training.config.pretraining_arguments import (
    ContinuedModelArguments,
    MaskedObjective,
    PretrainingConfig,
)
from vaswani.training.runs.base import BaseRun, Tokenizers
from vaswani.training.runs.checks import check_attention_kernel
from vaswani.training.runs.models import (
    DECODERS,
    Pretrained,
    config_from,
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


def pretrain(config: PretrainingConfig) -> dict[str, float]:
    """Train a language model on texts, new or given (see `BaseRun.run`)."""
    run_class = MaskedLMRun if isinstance(config.task, MaskedObjective) else CausalLMRun
    return run_class(config).run()


class PretrainingRun(BaseRun):
    """What pre-trainings of encoders and of decoders have in common."""

    config: PretrainingConfig
    purpose: Purpose

    @cached_property
    def pretrained(self) -> Pretrained | None:
        """What the run goes on with; None where it begins with new weights."""
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
        """Raise `UserError` unless the shape makes a model that has positions for the sequences."""
        data = self.config.data
        if self.given_tokenizer is None and data.tokenizer_kind != "byte":
            check_vocab_size(data.vocab_size, self.purpose)
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
        """The tokenizer that the configuration of a new model names; None where one is trained."""
        name = self.config.data.tokenizer
        if name is None:
            return None
        tokenizer = named_tokenizers(name)[0]
        if tokenizer.pad_token_id is None:
            raise UserError(f"the tokenizer {name} has no padding token, which batches need; give it one")
        self.check_tokenizer(tokenizer, name)
        return tokenizer

    # ----------------------------------------------------------------------------- what the objective decides

    @property
    def metrics(self) -> Sequence[str]:
        return ["accuracy"]

    @property
    @abstractmethod
    def auto_class(self) -> Any:
        """The Auto class of the model, with the heads that are trained."""

    @abstractmethod
    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` unless the objective can be trained with a tokenizer that was given.

        Args:
            tokenizer: that was given, or a given model's.
            name: for the message.
        """

    @abstractmethod
    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> PreTrainedConfig:
        """A new model's configuration; without a tokenizer, for one that will be trained."""

    def of_tokenizer(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, int | None]:
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
    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """The collators of sequences, as arguments of the trainer."""

    # ---------------------------------------------------------------------------- tokenizer, rows and model

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """A vocabulary learned from the texts of training, or that of all bytes; or that of the model."""
        tokenizer = self._new_tokenizer(corpus) if self.pretrained is None else self.pretrained.tokenizer
        return tokenizer, tokenizer

    def _new_tokenizer(self, corpus: Corpus) -> PreTrainedTokenizerBase:
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        data = self.config.data
        options: dict[str, Any] = {
            "purpose": self.purpose,
            "token_types": isinstance(self.sequence_builder, SegmentPairs),
            "model_max_length": self.positions,
        }
        texts = self.vocabulary_texts(corpus, ["text"])
        return train_tokenizer(texts, data.vocab_size, kind=data.tokenizer_kind, **options)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with the heads that are trained, or the one that the run goes on with."""
        if self.pretrained is None:
            return new_model(self.config, self.auto_class, self.model_config(tokenizers[0]))
        return pretrained_model(self.config, self.pretrained, self.auto_class, {})

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The sequences of each split."""
        splits: dict[str, Any] = {}
        for name, texts in corpus.splits.items():
            if name != "train" and isinstance(texts, IterableDataset):
                texts = Dataset.from_list(list(texts))
            rows = make_sequences(texts, tokenizers[0], self.sequence_builder)
            splits[name] = at_most(
                rows, self.config.data.max_validation_rows if name == "validation" else None
            )
        return splits

    def what_is_used(self, rows: Dataset, kept: int) -> str:
        """The sequences that the documents make, in words."""
        return f": {len(rows):,} sequences of {sum(rows['length'][:]):,} tokens"

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> PretrainingTrainer:
        return PretrainingTrainer(
            processing_class=tokenizers[0],
            **self.trainer_options(splits, model),
            **self.collators(tokenizers[0]),
        )

    def evaluate(
        self, trainer: PretrainingTrainer, splits: dict[str, Any], tokenizers: Tokenizers
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""
        return evaluate_finished(trainer, splits, lambda split, rows, _: tell_scores(trainer, split, rows))


class MaskedLMRun(PretrainingRun):
    """Trains an encoder to find masked tokens, and perhaps to tell whether segments follow each other."""

    purpose = "masked"

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        if self.config.task.next_sentence and not _tells_next_sentences(pretrained.config):
            raise UserError(
                f"next_sentence needs a model with token types and a head for it, and {pretrained.folder} "
                "has none; leave it out"
            )
        super()._check_pretrained(pretrained)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` for one without a mask, or without token types where they are needed."""
        boundary_token_ids(tokenizer)
        if tokenizer.mask_token_id is None:
            raise UserError(
                f"the tokenizer in {name} has no mask; give a masked language model's, or set "
                "objective=causal for a decoder"
            )
        if self.config.task.next_sentence and "token_type_ids" not in tokenizer.model_input_names:
            raise UserError(
                f"next_sentence needs token types, which the tokenizer in {name} does not give; leave it out"
            )

    @property
    def metrics(self) -> Sequence[str]:
        """With the accuracy on next sentences where they are told."""
        return [*super().metrics, *(["next_sentence_accuracy"] if self.config.task.next_sentence else [])]

    @property
    def auto_class(self) -> Any:
        """With a head for masked tokens, and one for next sentences where they are told."""
        return AutoModelForPreTraining if self.config.task.next_sentence else AutoModelForMaskedLM

    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> VaswaniEncoderConfig:
        token_types = 2 if self.config.task.next_sentence else 0  # of the two segments
        fields = {"token_type_vocab_size": token_types, **self.of_tokenizer(tokenizer)}
        return config_from(VaswaniEncoderConfig, self.config.model, **fields)

    @property
    def sequence_builder(self) -> SequenceBuilder:
        length = self.config.data.max_length
        if self.config.task.next_sentence:
            return SegmentPairs(length, seed=self.config.training.seed)
        return SentenceSequences(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Masks are drawn anew in each epoch of training; in evaluation they are always the same."""
        task, seed = self.config.task, self.config.training.seed
        return {
            name: MaskingCollator(tokenizer, task.mask_probability, task.whole_word_masking, seed)
            for name in ("data_collator", "train_data_collator")
        }


def _tells_next_sentences(config: PreTrainedConfig) -> bool:
    """Whether the model has a head for next sentences, and can be told the segments apart."""
    types = getattr(config, "token_type_vocab_size", getattr(config, "type_vocab_size", None)) or 0
    model_class: Any = models_of(AutoModelForPreTraining)[type(config)]
    return types > 1 and "next_sentence_label" in signature(model_class.forward).parameters


class CausalLMRun(PretrainingRun):
    """Trains a decoder to tell each token from those before it."""

    purpose = "causal"
    auto_class: ClassVar[Any] = AutoModelForCausalLM

    def _check_new(self) -> None:
        super()._check_new()
        self._check_packing(self.model_config(None))

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        super()._check_pretrained(pretrained)
        if not isinstance(pretrained.config, VaswaniDecoderConfig):
            raise UserError(
                f"{pretrained.folder} holds a model of type {pretrained.config.model_type!r}; expected "
                f"{DECODERS} (vaswani convert makes one of 'gpt2' and 'openai-gpt')"
            )
        self._check_packing(pretrained.config)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` for one that is not of bytes, or that cannot tell packed documents apart."""
        if not is_byte_level(tokenizer):
            raise UserError(
                f"the tokenizer in {name} is not one of bytes, in which a causal language model is measured; "
                "give one such as GPT-2's or that of vaswani pretrain"
            )
        begin, end = boundary_token_ids(tokenizer)
        if self.config.task.pack and begin == end:
            raise UserError(
                f"the tokenizer in {name} begins and ends documents with the same token, so "
                "packed ones cannot be told apart; set pack=false"
            )

    def _check_packing(self, shape: PreTrainedConfig) -> None:
        if self.config.task.pack and "sparse" in shape.decoder_attention:
            raise UserError(
                "sparse attention does not tell packed documents apart; set pack=false, or "
                "decoder_attention=full"
            )

    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> VaswaniDecoderConfig:
        return config_from(VaswaniDecoderConfig, self.config.model, **self.of_tokenizer(tokenizer))

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A decoder, whose plain calls of `generate` do not stop after the library's 20 tokens."""
        model = super().build_model(tokenizers)
        model.generation_config.max_length = self.config.data.max_length
        return model

    @property
    def sequence_builder(self) -> SequenceBuilder:
        length = self.config.data.max_length
        return PackedBlocks(length) if self.config.task.pack else DocumentParts(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Batches of blocks, or of parts with an attention mask."""
        padding, begin = int(tokenizer.pad_token_id), boundary_token_ids(tokenizer)[0]
        pack = self.config.task.pack
        return {"data_collator": PackingCollator(padding, begin) if pack else DocumentCollator(padding)}


# ---------------------------------------------------------------------------------- what the evaluation tells


def tell_scores(trainer: PretrainingTrainer, split: str, rows: Dataset) -> dict[str, Any]:
    """Print the scores; return what `evaluation.json` holds of them."""
    return record(split, rows, show_estimates(trainer, split, rows, of="sequences"), of="sequences")


def show_estimates(
    trainer: PretrainingTrainer, split: str, rows: Dataset, *, of: str, names: Mapping[str, str] = SCORE_NAMES
) -> dict[str, Any]:
    """Print the scores of the latest evaluation with their intervals; return the `metrics` of `record`."""
    metrics = metric_entries(names, estimates(trainer))
    print(f"\n{split} ({len(rows):,} {of}), with 95 % intervals:")
    for score in metrics.values():
        print(f"{score['name']} {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})")
    return metrics


def scores_with_resamples(trainer: PretrainingTrainer) -> dict[str, tuple[float, np.ndarray]]:
    """The scores of the latest evaluation, each with those of bootstrap resamples of its rows [R]."""
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
