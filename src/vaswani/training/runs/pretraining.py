"""A whole pre-training: from texts to a masked or causal language model and its scores."""

from __future__ import annotations

from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

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

from vaswani.data.evenly_spread import evenly_spread
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
    byte_tokenizer,
    check_vocab_size,
    is_byte_level,
    load_tokenizers,
    save_tokenizers,
    train_tokenizer,
)
from vaswani.errors import UserError
from vaswani.model.configuration_vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.training.config.pretraining_arguments import (
    ContinuedModelArguments,
    MaskedObjective,
    PretrainingConfig,
)
from vaswani.training.config.rehearsal import check_kernel
from vaswani.training.runs.base import (
    BaseRun,
    check_devices,
    check_metric,
    check_stream,
    config_from,
    new_model,
    owned_output,
    pretrained_model,
    publish,
)
from vaswani.training.runs.pretrained import DECODERS, Pretrained, open_pretrained
from vaswani.training.runs.pretraining_evaluation import evaluate_language_model
from vaswani.training.trainer.pretraining import PretrainingTrainer


def pretrain(config: PretrainingConfig) -> dict[str, float]:
    """Train a language model on texts, new or given, save it in `output_dir`, evaluate it and write its card.

    Returns:
        The scores on the test split, or else on the validation split; empty without either.

    Raises:
        UserError: for a configuration, a model or a corpus that cannot work.
    """
    kind = MaskedLMRun if isinstance(config.task, MaskedObjective) else CausalLMRun
    with owned_output(config):
        scores = kind(config).run()
        publish(config)
    return scores


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

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        args, data = self.config.training, self.config.data
        check_devices(args)
        check_stream(self.config)
        if self.pretrained is None:
            self._check_new()
        else:
            self._check_pretrained(self.pretrained)
        if data.max_length > args.max_tokens_per_batch:
            raise UserError(
                f"max_tokens_per_batch={args.max_tokens_per_batch} is too small for a sequence of "
                f"max_length={data.max_length}; raise it"
            )
        check_metric(args.metric_for_best_model, self.scores)

    def _check_new(self) -> None:
        """Whether the shape that is given can be one, and has positions for the sequences."""
        data, model = self.config.data, self.config.model
        if data.tokenizer == "bpe":
            check_vocab_size(data.vocab_size, self.purpose)
        shape = self.model_config(data.vocab_size)
        check_kernel(self.auto_class, shape, model.attn_implementation)
        self.config.training.resolve_learning_rate(shape.hidden_size)
        if model.position_embedding == "learned" and data.max_length > model.max_position_embeddings:
            raise UserError(
                f"max_length={data.max_length} is longer than max_position_embeddings="
                f"{model.max_position_embeddings}; lower the one or raise the other"
            )

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        """Whether the model has what the objective needs, and positions for the sequences."""
        check_kernel(self.auto_class, pretrained.config, self.config.model.attn_implementation)
        self.config.training.resolve_learning_rate(pretrained.config.hidden_size)
        pretrained.check_length(self.config.data.max_length)

    # ----------------------------------------------------------------------------- what the objective decides

    @property
    def scores(self) -> list[str]:
        """What an evaluation computes by which models can be ranked."""
        return ["loss", "accuracy"]

    @property
    def auto_class(self) -> Any:
        """Of the model, with the heads that are trained."""
        raise NotImplementedError

    def model_config(self, vocab_size: int) -> PreTrainedConfig:
        """A new model's configuration."""
        raise NotImplementedError

    @property
    def recipe(self) -> SequenceBuilder:
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
        """A vocabulary learned from the texts of training, or that of all bytes; or that of the model."""
        if self.pretrained is not None:
            return self.pretrained.tokenizer
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

    # ---------------------------------------------------------------------------------------------- the model

    def build_model(self, tokenizers: PreTrainedTokenizerBase) -> PreTrainedModel:
        """A new model with the heads that are trained, or the one that the run goes on with."""
        if self.pretrained is None:
            return new_model(self.config, self.auto_class, self.model_config(len(tokenizers)))
        return pretrained_model(self.config, self.pretrained, self.auto_class, {})

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

    purpose = "masked"

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        super()._check_pretrained(pretrained)
        boundary_token_ids(pretrained.tokenizer)
        if pretrained.tokenizer.mask_token_id is None:
            raise UserError(
                f"the tokenizer in {pretrained.folder} has no mask; give a masked language model, or set "
                "objective=causal for a decoder"
            )
        if self.config.task.next_sentence and not _tells_next_sentences(pretrained.config):
            raise UserError(
                f"next_sentence needs a model with token types and a head for it, and {pretrained.folder} "
                "has none; leave it out"
            )

    @property
    def scores(self) -> list[str]:
        """What an evaluation computes by which models can be ranked."""
        return [*super().scores, *(["next_sentence_accuracy"] if self.config.task.next_sentence else [])]

    @property
    def auto_class(self) -> Any:
        """With a head for masked tokens, and one for next sentences where they are told."""
        return AutoModelForPreTraining if self.config.task.next_sentence else AutoModelForMaskedLM

    def model_config(self, vocab_size: int) -> VaswaniEncoderConfig:
        """A new model's configuration; with token types where there are two segments."""
        token_types = 2 if self.config.task.next_sentence else 0
        return config_from(
            VaswaniEncoderConfig,
            self.config.model,
            vocab_size=vocab_size,
            token_type_vocab_size=token_types,
        )

    @property
    def recipe(self) -> SequenceBuilder:
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


def _tells_next_sentences(config: PreTrainedConfig) -> bool:
    """Whether the model has a head for next sentences, and can be told the segments apart."""
    types = getattr(config, "token_type_vocab_size", getattr(config, "type_vocab_size", None)) or 0
    model_class: Any = AutoModelForPreTraining._model_mapping[type(config)]
    return types > 1 and "next_sentence_label" in signature(model_class.forward).parameters


class CausalLMRun(PretrainingRun):
    """Trains a decoder to tell each token from those before it."""

    purpose = "causal"
    auto_class: ClassVar[Any] = AutoModelForCausalLM

    def _check_new(self) -> None:
        super()._check_new()
        self._check_packing(self.model_config(self.config.data.vocab_size))

    def _check_pretrained(self, pretrained: Pretrained) -> None:
        super()._check_pretrained(pretrained)
        if not isinstance(pretrained.config, VaswaniDecoderConfig):
            raise UserError(
                f"{pretrained.folder} holds a model of type {pretrained.config.model_type!r}; expected "
                f"{DECODERS} (vaswani convert makes one of 'gpt2' and 'openai-gpt')"
            )
        self._check_packing(pretrained.config)
        if not is_byte_level(pretrained.tokenizer):
            raise UserError(
                f"the tokenizer in {pretrained.folder} is not one of bytes, in which a causal language model "
                "is measured; give a model with one, such as GPT-2's or that of vaswani pretrain"
            )
        begin, end = boundary_token_ids(pretrained.tokenizer)
        if self.config.task.pack and begin == end:
            raise UserError(
                f"the tokenizer in {pretrained.folder} begins and ends documents with the same token, so "
                "packed ones cannot be told apart; set pack=false"
            )

    def _check_packing(self, shape: PreTrainedConfig) -> None:
        if self.config.task.pack and "sparse" in shape.decoder_attention:
            raise UserError(
                "sparse attention does not tell packed documents apart; set pack=false, or "
                "decoder_attention=full"
            )

    def model_config(self, vocab_size: int) -> VaswaniDecoderConfig:
        """A new model's configuration."""
        return config_from(VaswaniDecoderConfig, self.config.model, vocab_size=vocab_size)

    def build_model(self, tokenizers: PreTrainedTokenizerBase) -> PreTrainedModel:
        """A decoder, whose plain calls of `generate` do not stop after the library's 20 tokens."""
        model = super().build_model(tokenizers)
        model.generation_config.max_length = self.config.data.max_length
        return model

    @property
    def recipe(self) -> SequenceBuilder:
        """Packed blocks, or parts of documents."""
        length = self.config.data.max_length
        return PackedBlocks(length) if self.config.task.pack else DocumentParts(length)

    def collators(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Batches of blocks, or of parts with an attention mask."""
        padding, begin = int(tokenizer.pad_token_id), int(tokenizer.bos_token_id)
        pack = self.config.task.pack
        return {"data_collator": PackingCollator(padding, begin) if pack else DocumentCollator(padding)}
