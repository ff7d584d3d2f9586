"""Pre-training of encoder-decoders that learn to write the text that was removed from a source."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, IterableDataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.columns import integer_column
from vaswani.data.given_tokenizers import prepare_for_pairs, special_tokens, vocabulary_size
from vaswani.data.pair_tokens import token_lengths
from vaswani.data.sources.corpus import Corpus
from vaswani.data.text.denoising import DenoisingCollator, Noise, frames, with_markers
from vaswani.data.text.gap_sentences import GapChoice, GapPieces, GapSentences, sentence_mask
from vaswani.data.text.sequences import SequenceBuilder
from vaswani.data.text.span_denoising import (
    MIN_SENTINELS,
    SpanDenoising,
    SpanNoise,
    SpanPieces,
    sentinel_ids,
    sentinel_names,
)
from vaswani.data.text_codec import has_one_vocabulary
from vaswani.data.tokenization import MASK_TOKEN, load_tokenizers
from vaswani.errors import UserError
from vaswani.inference.position_limits import position_limit
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.training.config.pretraining_arguments import GapSentencesObjective, SpanDenoisingObjective
from vaswani.training.runs.base import Tokenizers
from vaswani.training.runs.language_modelling import PretrainingRun
from vaswani.training.runs.models import Pretrained, named_tokenizers
from vaswani.training.runs.translation import fill_in_special_tokens, model_config
from vaswani.training.trainer.denoising import DenoisingTrainer

logger = logging.getLogger(__name__)

WARNED_SHARE = 0.1  # warn if more than this share of the tokens is left out


class DenoisingRun(PretrainingRun):
    """Trains an encoder-decoder to write the text that was removed from its source.

    Tokenizers add the same special tokens as in `vaswani train`, so the model can be fine-tuned there as it
    is.
    """

    purpose = "translation"
    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    trainer_class = DenoisingTrainer

    @abstractmethod
    def noise(self, tokenizer: PreTrainedTokenizerBase) -> Noise:
        """The noise function, which removes text from a row."""

    @property
    @abstractmethod
    def longest_target(self) -> int:
        """The most tokens of a target, without the special tokens around every text."""

    # ----------------------------------------------------------------------------------- before the corpus

    def _check_new(self) -> None:
        super()._check_new()
        self._check_targets(self.positions, "max_position_embeddings", self.given_tokenizer)

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        super()._check_pretrained(pretrained)
        if not has_one_vocabulary(*load_tokenizers(pretrained.folder)):
            raise UserError(
                f"{pretrained.folder} has one vocabulary for sources and another for targets; denoising "
                "needs one for both"
            )
        self._check_targets(pretrained.longest_target, str(pretrained.folder), pretrained.tokenizer)

    def _check_targets(self, most: int | None, whose: str, tokenizer: PreTrainedTokenizerBase | None) -> None:
        """Raise `UserError` for targets with more tokens than the decoder has positions."""
        around = 1 if tokenizer is None else len(frames(tokenizer)[1])
        if most is not None and self.longest_target + around > most:
            raise UserError(
                f"max_length={self.config.data.max_length} makes targets of up to "
                f"{self.longest_target + around} tokens, and {whose} has {most} positions; lower max_length"
            )

    @cached_property
    def given_tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer that a new model's configuration names, with all markers; None if one is trained."""
        name = self.config.data.tokenizer
        if name is None:
            return None
        of_sources, of_targets = named_tokenizers(name, self.config.data.tokenizer_kind)
        if not has_one_vocabulary(of_sources, of_targets):
            raise UserError(
                f"tokenizer={name} has one vocabulary for sources and another for targets; denoising needs "
                "one for both"
            )
        return self.with_markers(prepare_for_pairs(of_sources, name))

    def with_markers(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Return the tokenizer with all markers: a copy if it lacks some."""
        return with_markers(tokenizer, self.markers)

    # ----------------------------------------------------------------------------------- model and rows

    def model_config(self, tokenizer: PreTrainedTokenizerBase | None) -> VaswaniConfig:
        size, tokens = self.config.data.vocab_size, {}
        if tokenizer is not None:
            size, tokens = vocabulary_size(tokenizer, "source"), special_tokens(tokenizer, tokenizer)
        return model_config(self.config.model, size, size, one_vocabulary=True, **tokens)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The model; by default, `generate` stops at the length of the longest targets."""
        model: Any = super().build_model(tokenizers)
        if self.pretrained is not None:
            fill_in_special_tokens(model, self.pretrained.tokenizer)
        longest = 1 + self.longest_target + len(frames(tokenizers[0])[1])  # with the decoder's start token
        model.generation_config.max_length = min(longest, position_limit(model) or longest)
        model.generation_config.max_source_length = self.config.data.max_length
        return model

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        splits = super().tokenize(corpus, tokenizers)
        for name, rows in splits.items():
            if isinstance(rows, Dataset):
                longest = np.add(*token_lengths(rows)).max()
                self.check_budget(name, int(longest))
        return splits

    def collators(self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> dict[str, Any]:
        """Return collators that draw new noise in each epoch of training, but the same in all evaluations."""
        noise, start = self.noise(tokenizer), model.config.decoder_start_token_id
        return {
            name: DenoisingCollator(tokenizer, start, noise, self.config.training.seed)
            for name in ("data_collator", "train_data_collator")
        }


class SpanDenoisingRun(DenoisingRun):
    """Removes spans of tokens, as in T5."""

    @property
    def span_noise(self) -> SpanNoise:
        """The share of removed tokens and the length of spans."""
        task: SpanDenoisingObjective = self.config.task
        return SpanNoise(task.noise_density, task.mean_noise_span_length)

    def check(self) -> None:
        span, max_length = self.config.task.mean_noise_span_length, self.config.data.max_length
        if span > max_length:
            raise UserError(
                f"mean_noise_span_length={span} is longer than max_length={max_length}; 3 is usual"
            )
        super().check()

    @property
    def num_sentinels(self) -> int:
        """The number of sentinels that the longest sequence needs."""
        return self.span_noise.num_sentinels(self.config.data.max_length)

    @property
    def markers(self) -> Sequence[str]:
        return sentinel_names(max(self.num_sentinels, MIN_SENTINELS))

    def with_markers(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Return the tokenizer if it has enough sentinels, otherwise one with all markers."""
        has_enough = len(sentinel_ids(tokenizer)) >= self.num_sentinels
        return tokenizer if has_enough else super().with_markers(tokenizer)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` for a tokenizer with too few sentinels."""
        needed, found = self.num_sentinels, len(sentinel_ids(tokenizer))
        if not found:
            raise UserError(
                f"the tokenizer in {name} has no sentinels (<extra_id_0> ...); give a model that was trained "
                "on span_denoising, or train a new one"
            )
        if found < needed:
            raise UserError(
                f"max_length={self.config.data.max_length} needs {needed} sentinels, and the tokenizer in "
                f"{name} has {found}; lower max_length, or raise mean_noise_span_length"
            )

    @property
    def longest_target(self) -> int:
        return self.span_noise.lengths(self.config.data.max_length)[1]

    @property
    def sequence_builder(self) -> SequenceBuilder:
        return SpanPieces(self.config.data.max_length, self.span_noise)

    def noise(self, tokenizer: PreTrainedTokenizerBase) -> Noise:
        return SpanDenoising(self.span_noise, sentinel_ids(tokenizer))


class GapSentencesRun(DenoisingRun):
    """Removes sentences, as in PEGASUS."""

    markers = (MASK_TOKEN,)

    @property
    def choice(self) -> GapChoice:
        """Chooses the removed sentences."""
        task: GapSentencesObjective = self.config.task
        return GapChoice(task.gap_sentence_ratio, task.gap_sentence_strategy, task.gap_sentence_kept)

    def with_markers(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Return the tokenizer if it has a mask for sentences, otherwise one with all markers."""
        return tokenizer if sentence_mask(tokenizer) is not None else super().with_markers(tokenizer)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, name: str | Path) -> None:
        """Raise `UserError` for a tokenizer without a mask for sentences."""
        if sentence_mask(tokenizer) is None:
            raise UserError(
                f"the tokenizer in {name} has no mask for a sentence; give a model that was trained on "
                "gap_sentences, or train a new one"
            )

    @property
    def longest_target(self) -> int:
        return self.config.data.max_length - 1  # all tokens but those of one short sentence

    @property
    def sequence_builder(self) -> SequenceBuilder:
        return GapPieces(self.config.data.max_length, self.choice)

    def usable(self, split: str, rows: Any) -> Any:
        """The pieces of two or more sentences, from which one can be removed."""
        if isinstance(rows, IterableDataset):
            return rows.filter(lambda row: row["source_length"] > 0)
        lengths = integer_column(rows, "length")
        has_gaps = integer_column(rows, "source_length") > 0
        left_out = f"{(~has_gaps).sum():,} pieces of one sentence, {lengths[~has_gaps].sum():,} tokens"
        remedy = (
            "sentences end at . ! ? or at the end of a line: give texts with these, raise max_length, or "
            "set objective=span_denoising, which needs none"
        )
        if not has_gaps.any():
            raise UserError(f"{split} has nothing but {left_out}, from which none can be removed; {remedy}")
        if has_gaps.all():
            return rows
        self.notes[split] = f"; left out: {left_out}"
        if (share := lengths[~has_gaps].sum() / lengths.sum()) > WARNED_SHARE:
            logger.warning(f"{share:.0%} of the tokens of {split} are left out ({left_out}); {remedy}")
        return rows.select(np.flatnonzero(has_gaps))

    def noise(self, tokenizer: PreTrainedTokenizerBase) -> Noise:
        mask = sentence_mask(tokenizer)
        assert mask is not None  # as was checked
        return GapSentences(self.choice, mask)
