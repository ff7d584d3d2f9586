"""Pre-training of a language model or an encoder-decoder on texts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.auto_classes import models_of
from vaswani.data.text.masking import MaskingCollator
from vaswani.data.text.packing import DocumentCollator, PackingCollator
from vaswani.data.text.sequences import (
    DocumentParts,
    PackedBlocks,
    SegmentPairs,
    SentenceSequences,
    SequenceBuilder,
    boundary_token_ids,
    splits_words,
)
from vaswani.data.text_codec import Tokenizers
from vaswani.data.tokenization import is_byte_level
from vaswani.errors import UserError
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.denoising import GapSentencesRun, SpanDenoisingRun
from vaswani.training.runs.language_modelling import PretrainingRun
from vaswani.training.runs.models import DECODERS, Pretrained, config_from

logger = logging.getLogger(__name__)


def pretrain(config: PretrainingConfig) -> dict[str, float]:
    """Train a new or given language model or encoder-decoder on texts (see `BaseRun.run`)."""
    return run_of(config).run()


def run_of(config: PretrainingConfig) -> PretrainingRun:
    """Return the run of a configuration, by its objective."""
    return RUNS[config.task.objective](config)


class MaskedLMRun(PretrainingRun):
    """Trains an encoder to predict masked tokens and, optionally, whether segments follow each other."""

    purpose = "masked"

    def _check_new(self) -> None:
        if self.config.task.whole_word_masking and self.config.data.tokenizer_kind == "char":
            raise UserError(
                "whole_word_masking has no effect with tokenizer_kind=char, of which each token is a word of "
                "its own; leave one of them out"
            )
        super()._check_new()

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        if self.config.task.next_sentence and not _predicts_next_sentences(pretrained.config):
            raise UserError(
                f"next_sentence needs a model with token types and a head for it, and {pretrained.folder} "
                "has none; leave it out"
            )
        super()._check_pretrained(pretrained)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` for a tokenizer without a mask, or without the token types or words needed."""
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
        if self.config.task.whole_word_masking and not splits_words(tokenizer):
            raise UserError(
                f"whole_word_masking has no effect with the tokenizer in {name}, of which each token is a "
                "word of its own; leave it out"
            )

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics, with the accuracy on next sentences if they are predicted."""
        return [*super().metrics, *(["next_sentence_accuracy"] if self.config.task.next_sentence else [])]

    @property
    def auto_class(self) -> Any:
        """The Auto class with a head for masked tokens and, if needed, one for next sentences."""
        return AutoModelForPreTraining if self.config.task.next_sentence else AutoModelForMaskedLM

    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> VaswaniEncoderConfig:
        token_types = 2 if self.config.task.next_sentence else 0  # one for each of the two segments
        fields = {"token_type_vocab_size": token_types, **self.tokenizer_fields(tokenizer)}
        return config_from(VaswaniEncoderConfig, self.config.model, **fields)

    @property
    def sequence_builder(self) -> SequenceBuilder:
        length = self.config.data.max_length
        if self.config.task.next_sentence:
            return SegmentPairs(length, seed=self.config.training.seed)
        return SentenceSequences(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, Any]:
        """Return collators that draw new masks in each epoch of training, but the same in all evaluations."""
        task, seed = self.config.task, self.config.training.seed
        return {
            name: MaskingCollator(tokenizer, task.mask_probability, task.whole_word_masking, seed)
            for name in ("data_collator", "train_data_collator")
        }


def _predicts_next_sentences(config: PreTrainedConfig) -> bool:
    """Return True if the model has a head for next sentences and token types for the segments."""
    types = getattr(config, "token_type_vocab_size", getattr(config, "type_vocab_size", None)) or 0
    model_class: Any = models_of(AutoModelForPreTraining)[type(config)]
    return types > 1 and "next_sentence_label" in signature(model_class.forward).parameters


class CausalLMRun(PretrainingRun):
    """Trains a decoder to predict each token from those before it."""

    purpose = "causal"
    auto_class: ClassVar[Any] = AutoModelForCausalLM

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics, with the bits per byte if the tokenizer is one of bytes, as all trained ones are."""
        given = self.given_tokenizer if self.pretrained is None else self.pretrained.tokenizer
        return [*super().metrics, *(["bits_per_byte"] if given is None or is_byte_level(given) else [])]

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
        """Raise `UserError` for a tokenizer that cannot separate packed documents."""
        begin, end = boundary_token_ids(tokenizer)
        if self.config.task.pack and begin == end:
            raise UserError(
                f"the tokenizer in {name} begins and ends documents with the same token, so "
                "packed ones cannot be told apart; set pack=false"
            )
        if not is_byte_level(tokenizer):
            logger.warning(
                f"the tokenizer in {name} is not one of bytes: perplexities are per token, and bits per byte "
                "are not measured"
            )

    def _check_packing(self, shape: PreTrainedConfig) -> None:
        if self.config.task.pack and "sparse" in shape.decoder_attention:
            raise UserError(
                "sparse attention does not separate packed documents; set pack=false, or "
                "decoder_attention=full"
            )

    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> VaswaniDecoderConfig:
        return config_from(VaswaniDecoderConfig, self.config.model, **self.tokenizer_fields(tokenizer))

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A decoder; by default, `generate` stops at `max_length`, not after the library's 20 tokens."""
        model = super().build_model(tokenizers)
        model.generation_config.max_length = self.config.data.max_length
        return model

    @property
    def sequence_builder(self) -> SequenceBuilder:
        length = self.config.data.max_length
        return PackedBlocks(length) if self.config.task.pack else DocumentParts(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, Any]:
        """Batches of blocks, or of parts with an attention mask."""
        padding, begin = int(tokenizer.pad_token_id), boundary_token_ids(tokenizer)[0]
        pack = self.config.task.pack
        return {"data_collator": PackingCollator(padding, begin) if pack else DocumentCollator(padding)}


RUNS: dict[str, type[PretrainingRun]] = {
    "masked": MaskedLMRun,
    "causal": CausalLMRun,
    "span_denoising": SpanDenoisingRun,
    "gap_sentences": GapSentencesRun,
}
