"""Training of an encoder-decoder on pairs of texts, from new weights or from a given model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, IterableDataset
from transformers import (
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from vaswani.data.bpe_dropout import BpeDropout, PairSplitter, check_bpe_dropout
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.evenly_spread import evenly_spread, limit_rows
from vaswani.data.given_tokenizers import prepare_for_pairs, special_tokens, vocabulary_size
from vaswani.data.pair_tokens import NoRowFitsError, token_lengths, tokenize_corpus, unknown_share
from vaswani.data.sources.corpus import Corpus
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import (
    Side,
    TextCodec,
    Tokenizers,
    for_languages,
    has_one_vocabulary,
    with_source_tags,
)
from vaswani.data.tokenization import check_tags, check_vocab_size, load_tokenizers
from vaswani.errors import UserError
from vaswani.evaluation import score_names
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.final import (
    NUM_EXAMPLES,
    evaluate_finished,
    metric_entries,
    record,
    shortened,
    show_example,
)
from vaswani.evaluation.resampling import resampled_scores
from vaswani.evaluation.text_metrics import (
    METRICS,
    METRICS_OF_TASK,
    SCORING_PACKAGE,
    TextMetrics,
    check_task,
)
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.run_metadata import read_config
from vaswani.inference.position_limits import position_limit
from vaswani.interop.conversion import FORMATS, convert
from vaswani.interop.marian_fsmt import FSMT, MARIAN
from vaswani.model.configuration_vaswani import VaswaniConfig
from vaswani.model.modeling_vaswani import VaswaniForConditionalGeneration
from vaswani.training.config.arguments import ContinuedRunConfig, ModelArguments, RunConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.checks import check_attention_kernel
from vaswani.training.runs.models import (
    Pretrained,
    config_from,
    named_tokenizers,
    new_model,
    open_pretrained,
    seed_everything,
)
from vaswani.training.runs.source_tags import (
    all_begin_with_tags,
    check_all_have_rows,
    check_has_tags,
    warn_of_untagged,
    with_tags_of_directions,
    without_unused_tags,
)
from vaswani.training.runs.trained_parts import check_trainable, only_trained_parts
from vaswani.training.trainer.consistency import check_passes_differ
from vaswani.training.trainer.seq2seq import Trainer

logger = logging.getLogger(__name__)

ROWS_TO_DECODE = 100  # training rows to check that targets decode to themselves


def train(config: RunConfig) -> dict[str, float]:
    """Train a model, save it in `output_dir`, evaluate it and write its card (see `BaseRun.run`)."""
    run_class = ContinuedRun if isinstance(config, ContinuedRunConfig) else TrainingRun
    return run_class(config).run()


class TrainingRun(BaseRun):
    """A training on pairs of texts."""

    config: RunConfig
    trainer_class: ClassVar[type[Trainer]] = Trainer

    # ----------------------------------------------------------------------------------- before the corpus

    def check(self) -> None:
        data = self.config.data
        self.check_model()
        self._check_lengths()
        if data.truncate and data.bpe_dropout > 0:
            raise UserError(
                "truncate=true and bpe_dropout exclude each other; set one of them to its default"
            )
        check_task(data.task)

    def check_model(self) -> None:
        """Raise `UserError` unless the settings of the model and its vocabulary are valid together."""
        data, model = self.config.data, self.config.model
        sizes = (data.vocab_size, data.vocab_size)
        if self.given_tokenizers is not None:
            source, target = self.given_tokenizers
            sizes = (vocabulary_size(source, "source"), vocabulary_size(target, "target"))
            if data.directions:
                check_has_tags(source, data.tags)
            if data.bpe_dropout:
                check_bpe_dropout(source, data.bpe_dropout)
        elif data.bpe_dropout and data.tokenizer_kind in ("byte", "unigram"):
            raise UserError(
                f"bpe_dropout={data.bpe_dropout} skips merges, and tokenizer_kind={data.tokenizer_kind} "
                "has none; leave one of them out"
            )
        elif data.tokenizer_kind != "byte":
            check_vocab_size(data.vocab_size, "translation", data.tags, data.tokenizer_kind)
        check_tags(data.tags)
        shape = model_config(model, *sizes, one_vocabulary=self.expects_one_vocabulary)
        check_attention_kernel(AutoModelForSeq2SeqLM, shape, model.attn_implementation)
        check_passes_differ(self.config.training.consistency_weight, shape)
        self.config.training.resolve_learning_rate(model.d_model)

    @property
    def target_positions(self) -> int | None:
        """The number of positions of the model for a target; None if there is no limit."""
        return self.positions

    @property
    def expects_one_vocabulary(self) -> bool:
        """True if sources and targets will have one vocabulary, according to the configuration."""
        if self.given_tokenizers is not None:
            return has_one_vocabulary(*self.given_tokenizers)
        return self.config.data.shared_vocab

    @cached_property
    def given_tokenizers(self) -> Tokenizers | None:
        """The tokenizers that the configuration names, ready for use; None if they are trained."""
        name, target_name = self.config.data.tokenizer, self.config.data.target_tokenizer
        if name is None:
            if target_name is not None:
                raise UserError(f"target_tokenizer={target_name} needs tokenizer, for the sources")
            return None
        kind = self.config.data.tokenizer_kind
        of_source, of_target = named_tokenizers(name, kind)
        if target_name is not None:
            of_target = named_tokenizers(target_name, kind)[1]
        source = prepare_for_pairs(of_source, name)
        target = source if of_target is of_source else prepare_for_pairs(of_target, target_name or name)
        special_tokens(source, target)  # raises if they do not agree
        if not self.config.data.shared_vocab and has_one_vocabulary(source, target):
            raise UserError(
                f"shared_vocab=false trains two vocabularies, and tokenizer={name} gives one for both sides; "
                "give another target_tokenizer, or leave it out"
            )
        return source, target

    @property
    def metrics(self) -> Sequence[str]:
        """The metrics of the task; empty if evaluation does not decode."""
        decodes = self.config.training.predict_with_generate
        return list(METRICS_OF_TASK[self.config.data.task]) if decodes else []

    def _check_lengths(self) -> None:
        """Raise `UserError` if the longest training rows fit no batch or exceed the model's positions."""
        data, budget = self.config.data, self.config.training.max_tokens_per_batch
        for name in ("max_source_length", "max_target_length"):
            self.check_positions(name, getattr(data, name))
        if data.streaming and data.max_source_length + data.max_target_length > budget:
            raise UserError(
                f"max_tokens_per_batch={budget} is too small for a row of max_source_length="
                f"{data.max_source_length} and max_target_length={data.max_target_length} tokens; raise it, "
                "or lower these"
            )

    # ---------------------------------------------------------------------------- tokenizers, rows and model

    def check_splits(self, corpus: Corpus) -> None:
        """As in `BaseRun`; each direction also needs rows to train on, which a stream does not tell."""
        super().check_splits(corpus)
        rows = corpus.split("train")
        if isinstance(rows, Dataset) and "direction" in rows.column_names:
            check_all_have_rows(self.config.data.directions, rows)

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        """The source and the target tokenizer: one object when the vocabulary is shared."""
        data = self.config.data
        if self.given_tokenizers is not None:
            return self.fit_tags(self.given_tokenizers, corpus)
        has_tags = bool(data.directions) or (
            bool(data.tags) and all_begin_with_tags(self.vocabulary_rows(corpus), data.tags)
        )
        columns = ["source", "target"] if data.shared_vocab else ["source"]
        of_source = self.new_tokenizer(corpus, columns, tags=data.tags)
        if has_tags:
            of_source = with_source_tags(of_source, data.tags)
        return of_source, of_source if data.shared_vocab else self.new_tokenizer(corpus, ["target"])

    def fit_tags(self, given: Tokenizers, corpus: Corpus) -> Tokenizers:
        """Return given tokenizers that state the tags which the sources of the training begin with."""
        if self.config.data.directions:
            return with_tags_of_directions(given, self.config.data.tags)
        return without_unused_tags(given, corpus)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        source, target = tokenizers
        one_vocabulary = has_one_vocabulary(source, target)
        shape = model_config(
            self.config.model,
            vocabulary_size(source, "source"),
            vocabulary_size(target, "target"),
            one_vocabulary=one_vocabulary,
            **special_tokens(source, target),
        )
        if self._shared_before() and not one_vocabulary:
            logger.warning(
                "This run was begun with one embedding for two vocabularies, as an earlier version did when "
                "their sizes were equal, and keeps it; a new training gives each vocabulary its own."
            )
            shape.share_encoder_decoder_embeddings = True
            return new_model(self.config, AutoModelForSeq2SeqLM, shape)
        return self.new_model(shape)

    def new_model(self, shape: PreTrainedConfig) -> PreTrainedModel:
        """Return a model with new weights, and record in the settings whether its embeddings are shared."""
        shares = shape.share_encoder_decoder_embeddings
        self.config.model = replace(self.config.model, share_encoder_decoder_embeddings=shares)
        return new_model(self.config, AutoModelForSeq2SeqLM, shape)

    def _shared_before(self) -> bool:
        """Return True if the checkpoint to resume shares one embedding and the settings do not decide it."""
        if self.checkpoint is None or self.config.model.share_encoder_decoder_embeddings is not None:
            return False
        return getattr(read_config(self.checkpoint), "share_encoder_decoder_embeddings", False)

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Any]:
        """The rows of each split as token ids; warns about targets that do not decode to themselves."""
        splits = {name: self._tokenized(corpus, tokenizers, name) for name in corpus.splits}
        warn_of_untagged(corpus, TextCodec(tokenizers[0]))
        if PartialState().is_main_process:
            _warn_of_lost_targets(corpus.split("train"), TextCodec(tokenizers[1], "target"))
        return splits

    def origin(self, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, Any]:
        """As in `BaseRun`, with the share of unknown tokens of each side, which is also printed."""
        unknown = _report_unknown_shares(splits["train"], tokenizers)
        return {**super().origin(splits, tokenizers), **({"unknown_tokens": unknown} if unknown else {})}

    def _tokenized(self, corpus: Corpus, tokenizers: Tokenizers, split: str) -> Dataset | IterableDataset:
        """The rows of a split as token ids.

        Training leaves out rows beyond the length limits or, with `truncate`, truncates them. Evaluation
        scores the whole split, so it leaves out only rows whose source the model has no positions for. With
        `truncate`, it truncates sources. The loss of a target is that of the tokens that have positions; the
        scores compare with its whole text.
        """
        data = self.config.data
        rows, report = corpus.splits[split], corpus.reports[split]
        limits: tuple[int | None, int | None] = (data.max_source_length, data.max_target_length)
        truncated = ["source", "target"] if data.truncate else []
        if split != "train":
            longest = data.max_source_length if data.truncate else self.positions
            limits, truncated = (longest, self.target_positions), truncated or ["target"]
            rows = Dataset.from_list(list(rows)) if isinstance(rows, IterableDataset) else rows
        try:
            tokenized = tokenize_corpus(
                rows, *tokenizers, *limits, report, truncated, is_evaluation=split != "train"
            )
        except NoRowFitsError as error:
            if split == "train" or self.positions is None:
                raise
            raise UserError(
                f"none of {len(rows):,} rows of the {split} split fits the model, which has positions for "
                f"{self.positions:,} tokens of a source; give shorter texts, or a model with more positions"
            ) from error
        if isinstance(tokenized, IterableDataset):
            return tokenized
        if split != "train":
            self._warn_of_unread_sources(split, report)
            tokenized = self.limit_evaluated(split, tokenized)
        cut = "set truncate=true, which cuts longer sources off at max_source_length"
        lower = "lower max_source_length" if data.truncate or split == "train" else cut
        self.check_budget(split, int(np.add(*token_lengths(tokenized)).max()), lower)
        return tokenized

    def _warn_of_unread_sources(self, split: str, report: RowReport) -> None:
        """Warn about rows of an evaluated split that are left out, and so count in no score."""
        if report.over_long and PartialState().is_main_process:
            logger.warning(
                "%d of %d rows of the %s split have a source of more tokens than the model has positions "
                "(%d) and count in no score; vaswani evaluate counts their outputs as empty. truncate=true "
                "cuts such sources off.",
                *(report.over_long, report.rows, split, self.positions),
            )

    def limit_evaluated(self, split: str, rows: Dataset) -> Dataset:
        """Return at most `max_validation_rows` or `max_test_rows` rows of a split that is evaluated."""
        is_validation = split == "validation"
        data, training = self.config.data, self.config.training
        return limit_rows(rows, data.max_validation_rows if is_validation else training.max_test_rows)

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel, **options: Any
    ) -> Trainer:
        """A trainer for the tokenized splits; `options` are passed to `trainer_class`."""
        args, data = self.config.training, self.config.data
        source, target = tokenizers
        collator = Seq2SeqCollator(model.config.pad_token_id, model.config.decoder_start_token_id)
        if data.bpe_dropout > 0:
            options["splitter"] = PairSplitter(
                BpeDropout(source, data.bpe_dropout, "source"),
                BpeDropout(target, data.bpe_dropout, "target"),
                max_source_length=data.max_source_length,
                max_target_length=data.max_target_length,
                max_tokens=args.max_tokens_per_batch,
            )
        # Without a limit, `generate` stops after 20 tokens by default. The decoder's start token counts.
        longest = 1 + data.max_target_length
        generation: Any = model.generation_config
        generation.max_length = min(longest, position_limit(model) or longest)
        generation.max_source_length = data.max_source_length  # the default of `Translator`
        generation.update(**TextCodec(target, "target").start_options())
        return self.trainer_class(
            data_collator=collator,
            processing_class=source,
            target_processing_class=target,
            compute_metrics=TextMetrics(target, data.task) if args.predict_with_generate else None,
            **self.trainer_options(splits, model),
            **options,
        )

    def evaluate(self, trainer: Trainer, splits: dict[str, Any], tokenizers: Tokenizers) -> dict[str, float]:
        """Translate the test split, or else the validation split; print and save the scores."""

        def show(split: str, rows: Dataset, scores: dict[str, float]) -> dict[str, Any] | None:
            return _show_scores(trainer, TextCodec(tokenizers[0], "source"), split, rows, scores)

        return evaluate_finished(trainer, splits, show)


class ContinuedRun(TrainingRun):
    """Continues the training of an encoder-decoder of vaswani or of transformers."""

    config: ContinuedRunConfig

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model that the run starts from."""
        return open_pretrained(str(self.config.model.model), AutoModelForSeq2SeqLM)

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The model's tokenizers, set to the languages of the run."""
        source, target = load_tokenizers(self.pretrained.folder)
        return for_languages(source, target, **self.config.data.languages)

    def check_model(self) -> None:
        """Raise `UserError` unless the model suits the settings, and knows the languages or the tags."""
        arguments = self.config.model
        check_attention_kernel(AutoModelForSeq2SeqLM, self._shape(), arguments.attn_implementation)
        if not self.config.adapter.lora_dropout:
            check_passes_differ(self.config.training.consistency_weight, self._shape())
        self._check_conversion()
        check_trainable(
            self.config, self.pretrained, AutoModelForSeq2SeqLM, self._shape(), may_be_adapter=True
        )
        check_has_tags(self.tokenizers[0], self.config.data.tags)

    def _check_conversion(self) -> None:
        """Raise `UserError` if an adapter would be trained on a converted model, which is not saved."""
        arguments = self.config.model
        if arguments.convert and self.config.adapter.lora_rank is not None:
            raise UserError(
                f"convert=true with lora_rank would adapt a model that is not saved; first convert it: "
                f"vaswani convert {arguments.model} OUTPUT"
            )

    def _shape(self) -> PreTrainedConfig:
        """The configuration of the model that is trained, after its conversion."""
        shape, folder = self.pretrained.config, self.pretrained.folder
        if not self.config.model.convert:
            return shape
        if shape.model_type not in (MARIAN.name, FSMT.name):
            raise UserError(
                f"convert=true converts Marian and FSMT models, and {folder} holds one of type "
                f"{shape.model_type!r}; leave it out: the model is trained as it is"
            )
        theirs = FORMATS[shape.model_type]
        whole = VaswaniForConditionalGeneration.__name__
        class_name = next(name for name, ours in theirs.classes.items() if ours == whole)
        return theirs.to_ours(shape, class_name)

    @property
    def positions(self) -> int | None:
        return self.pretrained.longest

    @property
    def target_positions(self) -> int | None:
        return self.pretrained.longest_target

    def check_positions(self, name: str, length: int) -> None:
        self.pretrained.check_length(length, name)

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        return self.fit_tags(self.tokenizers, corpus)

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The model with its trained weights, in float32; converted and partly frozen if requested."""
        arguments = self.config.model
        seed_everything(self.config)
        model: Any = load_checkpoint(self.pretrained.folder, self.config.training.device, torch.float32)[0]
        if arguments.convert:
            model = convert(model)
        if arguments.attn_implementation is not None:
            model.set_attn_implementation(arguments.attn_implementation)
        fill_in_special_tokens(model, self.pretrained.tokenizer)
        use_start_token_of_tokenizer(model, tokenizers[1])
        return only_trained_parts(model, self.config)


def use_start_token_of_tokenizer(model: PreTrainedModel, target_tokenizer: PreTrainedTokenizerBase) -> None:
    """Let targets begin with the same token in training as in translation: for mBART, their language."""
    start = TextCodec(target_tokenizer, "target").start_options().get("decoder_start_token_id")
    if start is not None:
        model.config.decoder_start_token_id = start


def fill_in_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Fill in the decoder's start token and the padding token if the model's configuration lacks them.

    They come from the generation configuration and from the tokenizer.

    Raises:
        UserError: no file of the model says which token begins a target.
    """
    config: Any = model.config
    generation: Any = model.generation_config
    if config.decoder_start_token_id is None:
        config.decoder_start_token_id = generation.decoder_start_token_id
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if config.decoder_start_token_id is None:
        raise UserError(
            f"{model.name_or_path} does not say which token begins a target; add decoder_start_token_id to "
            "its config.json"
        )


def model_config(
    arguments: ModelArguments,
    vocab_size: int,
    decoder_vocab_size: int,
    *,
    one_vocabulary: bool,
    **tokens: Any,
) -> VaswaniConfig:
    """Return the model's configuration.

    Args:
        arguments: the fields that the run was given.
        vocab_size: number of source tokens.
        decoder_vocab_size: number of target tokens.
        one_vocabulary: whether a token id means the same in sources and in targets.
        tokens: ids of special tokens, by default those of our own tokenizers.

    Raises:
        UserError: the values are invalid; for example, the heads do not divide the width, or two
            vocabularies share one embedding.
    """
    sizes: dict[str, Any] = {"vocab_size": vocab_size, "decoder_vocab_size": decoder_vocab_size}
    if arguments.share_encoder_decoder_embeddings is None:
        shares = one_vocabulary and vocab_size == decoder_vocab_size
        arguments = replace(arguments, share_encoder_decoder_embeddings=shares)
    if arguments.share_encoder_decoder_embeddings and not one_vocabulary:
        raise UserError(
            "share_encoder_decoder_embeddings=true needs one vocabulary, and here a token id means one thing "
            "in sources and another in targets; leave share_encoder_decoder_embeddings out, or set "
            "shared_vocab=true to train one vocabulary"
        )
    return config_from(VaswaniConfig, arguments, **sizes, **tokens)


def _warn_of_lost_targets(rows: Dataset | IterableDataset, targets: TextCodec) -> None:
    """Warn about targets that a model cannot write because their tokens do not decode to them."""
    if isinstance(rows, IterableDataset):
        texts = [row["target"] for row in rows.take(ROWS_TO_DECODE)]
    else:
        texts = rows[evenly_spread(len(rows), ROWS_TO_DECODE)]["target"]
    if lost := targets.texts_changed_by_tokens(texts):
        text, back = map(shortened, lost[0])
        logger.warning(
            "%d of %d targets change when they are encoded and decoded: %r becomes %r.",
            *(len(lost), len(texts), text, back),
        )


def _report_unknown_shares(rows: Dataset | IterableDataset, tokenizers: Tokenizers) -> dict[str, float]:
    """Print and return the share of unknown tokens of each side that has one; empty for a stream."""
    if isinstance(rows, IterableDataset):
        return {}
    sides: tuple[tuple[Side, str], ...] = (("source", "input_ids"), ("target", "labels"))
    shares = {
        side: unknown_share(rows, column, TextCodec(tokenizer, side))
        for (side, column), tokenizer in zip(sides, tokenizers, strict=True)
    }
    known = {side: share for side, share in shares.items() if share is not None}
    if known:
        shares_text = ", ".join(f"{side} {share:.2%}" for side, share in known.items())
        print(f"unknown tokens: {shares_text}", flush=True)
    return {str(side): share for side, share in known.items()}


# ----------------------------------------------------------------------------------- output of the evaluation


def _show_scores(
    trainer: Trainer, sources: TextCodec, split: str, rows: Dataset, scores: dict[str, float]
) -> dict[str, Any] | None:
    """Print the scores and some translations; return what `evaluation.json` holds of them."""
    named = [(name, scores.get(f"{split}_{name}")) for name in ("loss", *METRICS)]
    shown = ", ".join(f"{name} {score:.2f}" for name, score in named if score is not None)
    print(f"\n{split} ({len(rows):,} rows): {shown}")
    metrics = trainer.compute_metrics
    if not isinstance(metrics, TextMetrics) or trainer.args.prediction_loss_only:
        return None
    for name, score in metrics.of_directions.items():
        print(f"{name} {score:.2f}", *filter(None, [metrics.signatures_of_directions.get(name)]))
    print(*dict.fromkeys(metrics.signatures.values()), sep="\n", end="\n\n")
    chosen = evenly_spread(len(rows), NUM_EXAMPLES)
    examples = [
        {"source": source, "translation": metrics.predictions[row], "reference": metrics.references[row]}
        for row, source in zip(chosen, sources.decode(rows[chosen]["input_ids"]), strict=True)
    ]
    for example in examples:
        show_example([example["source"]], example["translation"], example["reference"])
    entries = metric_entries(score_names.TEXTS, _estimates(metrics), metrics.signatures)
    more: dict[str, Any] = {"search": _search(trainer), "examples": examples}
    if metrics.of_directions:
        more["directions"] = metrics.of_directions
    if metrics.signatures_of_directions:
        more["signatures_of_directions"] = metrics.signatures_of_directions
    return record(split, len(rows), entries, extra_package=SCORING_PACKAGE[metrics.task], **more)


def _search(trainer: Trainer) -> dict[str, Any]:
    num_beams = trainer.args.generation_num_beams or 1
    penalty = {"length_penalty": trainer.args.generation_length_penalty} if num_beams > 1 else {}
    return {"num_beams": num_beams, **penalty}


def _estimates(metrics: TextMetrics) -> dict[str, Estimate]:
    """Each score with its 95 % interval."""
    resamples = resampled_scores(metrics.predictions, metrics.references, metrics.task)
    return {
        metric: Estimate.from_resamples(metrics.scores[metric], resampled)
        for metric, resampled in resamples.items()
    }
