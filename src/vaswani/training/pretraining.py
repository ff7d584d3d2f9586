"""A whole pre-training: from texts to a masked or causal language model and its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.corpus import Corpus
from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.masking import MaskingCollator
from vaswani.data.packing import DocumentCollator, PackingCollator
from vaswani.data.sequences import (
    DocumentParts,
    PackedBlocks,
    Recipe,
    SegmentPairs,
    SentenceSequences,
    make_sequences,
)
from vaswani.data.tokenization import (
    Purpose,
    byte_tokenizer,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from vaswani.errors import UserError
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.training.base_run import (
    BaseRun,
    check_devices,
    check_metric,
    check_stream,
    config_from,
    new_model,
    publish,
)
from vaswani.training.pretraining_arguments import CausalLMConfig, MaskedLMConfig
from vaswani.training.pretraining_evaluation import evaluate_language_model
from vaswani.training.pretraining_trainer import PretrainingTrainer


def pretrain(config: MaskedLMConfig | CausalLMConfig) -> dict[str, float]:
    """Train a language model on texts, save it in `output_dir`, evaluate it and write its card.

    Returns:
        The scores on the test split, or else on the validation split; empty without either.

    Raises:
        UserError: for a configuration or a corpus that cannot work.
    """
    kind = MaskedLMRun if isinstance(config, MaskedLMConfig) else CausalLMRun
    scores = kind(config).run()
    publish(config)
    return scores


class PretrainingRun(BaseRun):
    """What pre-trainings of encoders and of decoders have in common."""

    purpose: Purpose

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        args, data, model = self.config.training, self.config.data, self.config.model
        check_devices(args)
        check_stream(self.config)
        shape = self.model_config(data.vocab_size)
        args.resolve_learning_rate(shape.hidden_size)
        if model.position_embedding == "learned" and data.max_length > model.max_position_embeddings:
            raise UserError(
                f"max_length={data.max_length} is longer than max_position_embeddings="
                f"{model.max_position_embeddings}; lower the one or raise the other"
            )
        if data.max_length > args.max_tokens_per_batch:
            raise UserError(
                f"max_tokens_per_batch={args.max_tokens_per_batch} is too small for a sequence of "
                f"max_length={data.max_length}; raise it"
            )
        check_metric(args.metric_for_best_model, self.scores)

    # ----------------------------------------------------------------------------- what the objective decides

    @property
    def scores(self) -> list[str]:
        """What an evaluation computes by which models can be ranked."""
        return ["loss", "accuracy"]

    def model_config(self, vocab_size: int) -> PreTrainedConfig:
        """The model's configuration."""
        raise NotImplementedError

    @property
    def recipe(self) -> Recipe:
        """How sequences are made of documents."""
        raise NotImplementedError

    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """How batches are made of sequences, by the names of the trainer's arguments."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ the tokenizer

    def load_tokenizers(self, checkpoint: Path) -> PreTrainedTokenizerBase:
        """The tokenizer of a checkpoint."""
        return load_tokenizers(checkpoint)[0]

    def build_tokenizers(self, corpus: Corpus) -> PreTrainedTokenizerBase:
        """A vocabulary learned from the texts of training, or that of all bytes."""
        data, model = self.config.data, self.config.model
        learned = model.position_embedding == "learned"
        options: dict[str, Any] = {
            "purpose": self.purpose,
            "token_types": isinstance(self.recipe, SegmentPairs),
            "model_max_length": model.max_position_embeddings if learned else None,
        }
        if data.tokenizer == "bytes":
            return byte_tokenizer(**options)
        rows = corpus.split("train")
        if data.tokenizer_rows is not None:
            rows = rows.take(data.tokenizer_rows)
        texts = (batch["text"] for batch in rows.iter(batch_size=1000))
        return train_tokenizer(texts, data.vocab_size, **options)

    def save_tokenizers(self, tokenizers: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write it into a folder."""
        save_tokenizers(tokenizers, tokenizers, folder)

    # --------------------------------------------------------------------------------------- rows and trainer

    def tokenize(self, corpus: Corpus, tokenizers: PreTrainedTokenizerBase) -> dict[str, Any]:
        """The sequences of each split."""
        most = self.config.data.max_validation_rows
        splits: dict[str, Any] = {}
        for name, texts in corpus.splits.items():
            if name != "train" and isinstance(texts, IterableDataset):
                texts = Dataset.from_list(list(texts))
            rows = make_sequences(texts, tokenizers, self.recipe)
            if name == "validation" and most is not None:
                rows = rows.select(evenly_spread(len(rows), most))
            splits[name] = rows
        return splits

    def row_counts(self, corpus: Corpus, splits: dict[str, Any]) -> dict[str, str]:
        """What became of the documents of each split, in words."""
        counts = {}
        for name, rows in splits.items():
            if isinstance(rows, IterableDataset):
                counts[name] = "streamed"
            else:
                tokens = sum(rows["length"][:])
                counts[name] = f"{corpus.reports[name]}: {len(rows):,} sequences of {tokens:,} tokens"
        return counts

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> PretrainingTrainer:
        """A trainer for the sequences."""
        args = self.config.training
        patience = args.early_stopping_patience
        return PretrainingTrainer(
            model=model,
            args=args,
            train_dataset=splits["train"],
            eval_dataset=splits.get("validation"),
            processing_class=tokenizers,
            callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
            **self.collators(tokenizers),
        )

    def evaluate(
        self, trainer: PretrainingTrainer, splits: dict[str, Any], tokenizers: PreTrainedTokenizerBase
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""
        return evaluate_language_model(trainer, splits)


class MaskedLMRun(PretrainingRun):
    """Trains an encoder to find masked tokens, and perhaps to tell whether segments follow each other."""

    config: MaskedLMConfig
    purpose = "masked"

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        if not 0 < self.config.task.mask_probability <= 1:
            raise UserError(
                f"mask_probability={self.config.task.mask_probability} must be above 0 and at most 1"
            )
        super().check()

    @property
    def scores(self) -> list[str]:
        """What an evaluation computes by which models can be ranked."""
        return [*super().scores, *(["next_sentence_accuracy"] if self.config.task.next_sentence else [])]

    def model_config(self, vocab_size: int) -> VaswaniEncoderConfig:
        """The model's configuration; with token types where there are two segments."""
        token_types = 2 if self.config.task.next_sentence else 0
        return config_from(
            VaswaniEncoderConfig,
            self.config.model,
            vocab_size=vocab_size,
            token_type_vocab_size=token_types,
        )

    def build_model(self, tokenizers: PreTrainedTokenizerBase) -> PreTrainedModel:
        """A new encoder, with the heads that are trained."""
        auto_class = AutoModelForPreTraining if self.config.task.next_sentence else AutoModelForMaskedLM
        return new_model(self.config, auto_class, self.model_config(len(tokenizers)))

    @property
    def recipe(self) -> Recipe:
        """Pairs of segments, or sentences."""
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


class CausalLMRun(PretrainingRun):
    """Trains a decoder to tell each token from those before it."""

    config: CausalLMConfig
    purpose = "causal"

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        super().check()
        if self.config.task.pack and "sparse" in self.config.model.decoder_attention:
            raise UserError(
                "sparse attention does not tell packed documents apart; set pack=false, or "
                "decoder_attention=full"
            )

    def model_config(self, vocab_size: int) -> VaswaniDecoderConfig:
        """The model's configuration."""
        return config_from(VaswaniDecoderConfig, self.config.model, vocab_size=vocab_size)

    def build_model(self, tokenizers: PreTrainedTokenizerBase) -> PreTrainedModel:
        """A new decoder."""
        model = new_model(self.config, AutoModelForCausalLM, self.model_config(len(tokenizers)))
        # Without it, plain calls of `generate` stop after 20 tokens.
        model.generation_config.max_length = self.config.data.max_length
        return model

    @property
    def recipe(self) -> Recipe:
        """Packed blocks, or parts of documents."""
        length = self.config.data.max_length
        return PackedBlocks(length) if self.config.task.pack else DocumentParts(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Batches of blocks, or of parts with an attention mask."""
        padding, begin = int(tokenizer.pad_token_id), int(tokenizer.bos_token_id)
        pack = self.config.task.pack
        return {"data_collator": PackingCollator(padding, begin) if pack else DocumentCollator(padding)}
