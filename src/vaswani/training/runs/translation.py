"""A whole training of an encoder-decoder: from a resolved configuration to a saved model and its scores."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from datasets import Dataset, IterableDataset
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.batching import Seq2SeqCollator, tokenize_corpus
from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.sources.corpus import Corpus
from vaswani.data.text_codec import TextCodec, has_one_vocabulary
from vaswani.data.tokenization import check_vocab_size, load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.errors import UserError
from vaswani.evaluation.final import shortened
from vaswani.evaluation.text_metrics import METRICS_OF_TASK, TextMetrics, check_task
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.decoding import position_limit
from vaswani.training.config.arguments import ModelArguments
from vaswani.training.config.rehearsal import check_kernel
from vaswani.training.config.run_config import RunConfig
from vaswani.training.runs.base import (
    BaseRun,
    check_devices,
    check_metric,
    check_stream,
    config_from,
    new_model,
    owned_output,
    publish,
)
from vaswani.training.runs.translation_evaluation import evaluate_translator
from vaswani.training.trainer.bpe_dropout import BpeDropoutCollator
from vaswani.training.trainer.seq2seq import Trainer

logger = logging.getLogger(__name__)

Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]
ROWS_TO_DECODE = 100  # of training, to see whether their targets come back from their tokens


def train(config: RunConfig) -> dict[str, float]:
    """Train a model, save it in `output_dir`, evaluate it and write its card (see `TrainingRun`)."""
    with owned_output(config):
        scores = TrainingRun(config).run()
        publish(config)
    return scores


class TrainingRun(BaseRun):
    """A training run on pairs; a run of another kind replaces some of its steps."""

    config: RunConfig
    resumed_shape: PreTrainedConfig | None = None  # of the checkpoint that the run goes on from

    def check(self) -> None:
        """Find what would fail only after the corpus was read, or at the first evaluation."""
        check_config(self.config)
        check_sharing(self.config.model, self.config.data.shared_vocab)

    def load_tokenizers(self, checkpoint: Path) -> Tokenizers:
        """The source and the target tokenizer of a checkpoint."""
        self.resumed_shape = AutoConfig.from_pretrained(checkpoint)
        return load_tokenizers(checkpoint)

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The source and the target tokenizer: one object when the vocabulary is shared."""
        return build_tokenizers(corpus, self.config)

    def save_tokenizers(self, tokenizers: Tokenizers, folder: Path) -> None:
        """Write both, or the one."""
        save_tokenizers(*tokenizers, folder)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The model as it is before training."""
        source, target = tokenizers
        one_vocabulary = has_one_vocabulary(source, target)
        shape = model_config(self.config.model, len(source), len(target), one_vocabulary=one_vocabulary)
        if self._shared_before() and not one_vocabulary:
            logger.warning(
                "This run was begun with one embedding for two vocabularies, as an earlier version did when "
                "their sizes were equal, and goes on so; a new training gives each vocabulary its own."
            )
            shape.share_encoder_decoder_embeddings = True
            return build_model(self.config, shape)
        return self.new_model(shape)

    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        """A model with fresh weights; the run's settings then say what its embeddings share."""
        shares = shape.share_encoder_decoder_embeddings
        self.config.model = replace(self.config.model, share_encoder_decoder_embeddings=shares)
        return build_model(self.config, shape)

    def _shared_before(self) -> bool:
        """Whether the checkpoint to go on from has one embedding, and nothing else was asked for."""
        asked = self.config.model.share_encoder_decoder_embeddings
        return asked is None and getattr(self.resumed_shape, "share_encoder_decoder_embeddings", False)

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The rows of each split as token ids; warns of targets that these do not hold whole."""
        splits = {name: _tokenized(self.config, corpus, tokenizers, name) for name in corpus.splits}
        if PartialState().is_main_process:
            _warn_of_lost_targets(corpus.split("train"), TextCodec(tokenizers[1], "target"))
        return splits

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> Trainer:
        """A trainer for the tokenized splits."""
        return build_trainer(self.config, splits, tokenizers, model)

    def evaluate(self, trainer: Trainer, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, float]:
        """Translate the test split, or else the validation split; print and save the scores."""
        return evaluate_translator(trainer, splits, tokenizers[0])


def model_config(
    arguments: ModelArguments,
    vocab_size: int,
    decoder_vocab_size: int,
    *,
    one_vocabulary: bool,
    **special_tokens: Any,
) -> VaswaniConfig:
    """The model's configuration.

    Args:
        arguments: its fields as the run was given them.
        vocab_size: tokens of the source.
        decoder_vocab_size: tokens of the target.
        one_vocabulary: whether a token id means the same in sources and in targets.
        special_tokens: ids of special tokens, by default those of our own tokenizers.

    Raises:
        UserError: for values that make no model, such as heads that do not divide the width, or one
            embedding for two vocabularies.
    """
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "decoder_vocab_size": decoder_vocab_size}
    if arguments.share_encoder_decoder_embeddings is None:
        shares = one_vocabulary and vocab_size == decoder_vocab_size
        arguments = replace(arguments, share_encoder_decoder_embeddings=shares)
    check_sharing(arguments, one_vocabulary)
    return config_from(VaswaniConfig, arguments, **sizes, **special_tokens)


def check_sharing(arguments: ModelArguments, one_vocabulary: bool) -> None:
    """Raise a UserError if one embedding was asked for and there are two vocabularies."""
    if arguments.share_encoder_decoder_embeddings and not one_vocabulary:
        raise UserError(
            "share_encoder_decoder_embeddings=true needs one vocabulary, and here a token id means one thing "
            "in sources and another in targets; leave share_encoder_decoder_embeddings out, or set "
            "shared_vocab=true to train one vocabulary"
        )


def build_model(config: RunConfig, shape: PreTrainedConfig) -> PreTrainedModel:
    """A model of this shape with fresh weights, drawn from the seed."""
    return new_model(config, AutoModelForSeq2SeqLM, shape)


def build_tokenizers(corpus: Corpus, config: RunConfig) -> Tokenizers:
    """The source and target tokenizers: one object when the vocabulary is shared."""
    data = config.data
    learned = config.model.position_embedding == "learned"
    max_length = config.model.max_position_embeddings if learned else None
    rows = corpus.split("train")
    if data.tokenizer_rows is not None:
        rows = rows.take(data.tokenizer_rows)
    sides = [("source", "target")] if data.shared_vocab else [("source",), ("target",)]
    trained = [
        train_tokenizer(_texts(rows, names), data.vocab_size, model_max_length=max_length) for names in sides
    ]
    return trained[0], trained[-1]


def _texts(rows: Dataset | IterableDataset, names: Sequence[str]) -> Iterator[list[str]]:
    for batch in rows.iter(batch_size=1000):
        yield from (batch[name] for name in names)


def build_trainer(
    config: RunConfig,
    splits: dict[str, Any],
    tokenizers: Tokenizers,
    model: PreTrainedModel,
    kind: type[Trainer] = Trainer,
    **options: Any,
) -> Trainer:
    """A trainer for tokenized splits: `train`, and `validation` if there is one; with options of its kind."""
    args, data = config.training, config.data
    source, target = tokenizers
    collator = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
    if data.bpe_dropout > 0:
        options["train_data_collator"] = BpeDropoutCollator(
            collator,
            source,
            target,
            max_source_length=data.max_source_length,
            max_target_length=data.max_target_length,
            p=data.bpe_dropout,
        )
    # Without it, plain calls of `generate` stop after 20 tokens. The decoder's start token counts.
    longest = 1 + data.max_target_length
    generation: Any = model.generation_config
    generation.max_length = min(longest, position_limit(model) or longest)
    generation.max_source_length = data.max_source_length  # where `Translator` stops by default
    generation.update(**TextCodec(target, "target").start_options())
    patience = args.early_stopping_patience
    return kind(
        model=model,
        args=args,
        train_dataset=splits["train"],
        eval_dataset=splits.get("validation"),
        data_collator=collator,
        processing_class=source,
        target_processing_class=target,
        compute_metrics=TextMetrics(target, data.task) if args.predict_with_generate else None,
        callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
        **options,
    )


def check_config(config: RunConfig) -> None:
    """Find what would fail only after the corpus was read, or at the first evaluation."""
    args, data = config.training, config.data
    check_devices(args)
    check_stream(config)
    check_vocab_size(data.vocab_size, "translation")
    shape = model_config(config.model, data.vocab_size, data.vocab_size, one_vocabulary=True)
    check_kernel(AutoModelForSeq2SeqLM, shape, config.model.attn_implementation)
    _check_lengths(config)
    args.resolve_learning_rate(config.model.d_model)
    if data.truncate and data.bpe_dropout > 0:
        raise UserError("truncate=true and bpe_dropout exclude each other; set one of them to its default")
    check_task(data.task)
    scored = METRICS_OF_TASK[data.task] if args.predict_with_generate else ()
    check_metric(args.metric_for_best_model, ["loss", *scored])


def _check_lengths(config: RunConfig) -> None:
    """Raise `UserError` where the longest rows that training accepts fit no batch, or lack positions."""
    data, model, budget = config.data, config.model, config.training.max_tokens_per_batch
    for name in ("max_source_length", "max_target_length"):
        length = getattr(data, name)
        if model.position_embedding == "learned" and length > model.max_position_embeddings:
            raise UserError(
                f"{name}={length} is longer than max_position_embeddings={model.max_position_embeddings}; "
                "lower the one or raise the other"
            )
    if data.streaming and data.max_source_length + data.max_target_length > budget:
        raise UserError(
            f"max_tokens_per_batch={budget} is too small for a row of max_source_length="
            f"{data.max_source_length} and max_target_length={data.max_target_length} tokens; raise it, or "
            "lower these"
        )


def _tokenized(
    config: RunConfig, corpus: Corpus, tokenizers: Tokenizers, split: str
) -> Dataset | IterableDataset:
    """The rows of a split as token ids.

    Training leaves out rows beyond the length limits, or cuts them off. Evaluation keeps them all, for the
    score is that of the whole split, unless the model has no positions for them; it cuts sources alone.
    """
    data, rows, report = config.data, corpus.splits[split], corpus.reports[split]
    limits: tuple[int | None, int | None] = (data.max_source_length, data.max_target_length)
    truncated = ["source", "target"] if data.truncate else []
    if split != "train":
        learned = config.model.position_embedding == "learned"
        limits = (config.model.max_position_embeddings,) * 2 if learned else (None, None)
        if data.truncate:
            limits, truncated = (data.max_source_length, limits[1]), ["source"]
        rows = Dataset.from_list(list(rows)) if isinstance(rows, IterableDataset) else rows
    tokenized = tokenize_corpus(rows, *tokenizers, *limits, report, truncated)
    if isinstance(tokenized, IterableDataset):
        return tokenized
    _check_budget(tokenized, split, config.training.max_tokens_per_batch)
    if split == "validation" and data.max_validation_rows is not None:
        tokenized = tokenized.select(evenly_spread(len(tokenized), data.max_validation_rows))
    return tokenized


def _warn_of_lost_targets(rows: Dataset | IterableDataset, targets: TextCodec) -> None:
    """Say which targets a model cannot write, because they do not come back from their tokens."""
    if isinstance(rows, IterableDataset):
        texts = [row["target"] for row in rows.take(ROWS_TO_DECODE)]
    else:
        texts = rows[evenly_spread(len(rows), ROWS_TO_DECODE)]["target"]
    if lost := targets.lost_in_tokens(texts):
        text, back = map(shortened, lost[0])
        logger.warning(
            "%d of %d targets do not come back from their tokens: %r becomes %r.",
            *(len(lost), len(texts), text, back),
        )


def _check_budget(tokenized: Dataset, split: str, max_tokens: int) -> None:
    lengths = [np.array(tokenized[name][:]) for name in ("source_length", "target_length")]
    longest = int(np.add(*lengths).max())
    if longest > max_tokens:
        raise UserError(
            f"max_tokens_per_batch={max_tokens} is too small: {split} has a row of {longest} tokens; raise it"
            + (", or lower max_source_length and max_target_length" if split == "train" else "")
        )
