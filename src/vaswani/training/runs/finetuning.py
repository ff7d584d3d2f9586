"""A whole fine-tuning: from a pre-trained encoder and labelled texts to a model of a task and its scores."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.labels.labelled import load_labelled
from vaswani.data.labels.labelled_tokens import LabelCollator, check_room, tokenize_labelled
from vaswani.data.sources.corpus import Corpus
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.errors import UserError
from vaswani.evaluation.spans import mark_spans
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.rehearsal import check_kernel
from vaswani.training.runs.base import (
    BaseRun,
    check_devices,
    check_metric,
    kernel_options,
    owned_output,
    pretrained_model,
    publish,
    seed_everything,
)
from vaswani.training.runs.label_evaluation import LabelScores, evaluate_labels
from vaswani.training.runs.pretrained import Pretrained, new_with_head, open_pretrained
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import TASKS, LabelTask, Tagging


def finetune(config: FinetuningConfig) -> dict[str, float]:
    """Train a pre-trained encoder on labelled texts, save it in `output_dir`, evaluate it and write its card.

    Returns:
        The scores on the test split, or else on the validation split; empty without either.

    Raises:
        UserError: for a configuration, a model or a corpus that cannot work.
    """
    with owned_output(config):
        scores = FinetuningRun(config).run()
        publish(config)
    return scores


class FinetuningRun(BaseRun):
    """A training run that begins with a pre-trained encoder, and gives it a head for its task."""

    config: FinetuningConfig
    task: LabelTask  # known once the labels have been read

    @cached_property
    def scores(self) -> LabelScores:
        """What the trainer computes its metrics with."""
        return LabelScores(self.task)

    @cached_property
    def pretrained(self) -> Pretrained:
        """What the run begins with."""
        return open_pretrained(str(self.config.model.model), TASKS[self.config.data.task].auto_class)

    def check(self) -> None:
        """Find what would fail only after the rows were read, or at the first evaluation."""
        args, data = self.config.training, self.config.data
        task = TASKS[data.task]
        check_devices(args)
        check_metric(args.metric_for_best_model, ["loss", *task.metric.names])
        if args.label_smoothing_factor and not task.smooths:
            raise UserError(f"label_smoothing_factor has no meaning for task={data.task}; leave it out")
        self.pretrained.check_length(data.max_length)
        check_room(self.pretrained.tokenizer, data.max_length, pairs=data.text_pair_field is not None)
        check_kernel(task.auto_class, self.pretrained.config, self.config.model.attn_implementation)
        self._check_pooling()

    def _check_pooling(self) -> None:
        pooling, config = self.config.model.classifier_pooling, self.pretrained.config
        if pooling is None:
            return
        if self.config.data.task == "tagging":
            raise UserError("classifier_pooling has no meaning for task=tagging; leave it out")
        if not hasattr(config, "classifier_pooling"):
            raise UserError(
                f"classifier_pooling={pooling} cannot be had from a model of type {config.model_type!r}, "
                "whose classifier has a pooling of its own; leave it out"
            )

    # ---------------------------------------------------------------------------------- rows and their labels

    def load(self) -> Corpus:
        """The labelled texts, of which the labels of training are those of the task."""
        corpus = load_labelled(self.config.data.corpus)
        self.check_splits(corpus)
        kind = TASKS[self.config.data.task]
        labels = corpus.split("train")["label"][:]
        self.task = kind(self._in_the_models_order(kind.names_in(labels)))
        for split, rows in corpus.splits.items():
            self.task.check_known(rows["label"][:], split)
        if isinstance(self.task, Tagging) and not mark_spans(self.task.names):  # then none are scored
            check_metric(self.config.training.metric_for_best_model, ["loss", "token_accuracy"])
        return corpus

    def _in_the_models_order(self, names: list[str]) -> list[str]:
        """A model that tells these labels apart already keeps the numbers that it knows them by."""
        known = list((self.pretrained.config.id2label or {}).values())
        return known if sorted(known) == sorted(names) else names

    def tokenize(self, corpus: Corpus, tokenizers: PreTrainedTokenizerBase) -> dict[str, Dataset]:
        """Rows as token ids; of tagging, whose scores are of every word, only those of training are cut."""
        splits = {}
        for split, rows in corpus.splits.items():
            cuts = split == "train" or self.config.data.task != "tagging"
            limit = self.config.data.max_length if cuts else self.pretrained.longest
            report = corpus.reports[split]
            splits[split] = tokenize_labelled(
                rows, tokenizers, self.task.target, limit, report, truncate=cuts
            )
            self._check_budget(splits[split], split)
        return splits

    def _check_budget(self, rows: Dataset, split: str) -> None:
        longest, budget = max(rows["length"][:]), self.config.training.max_tokens_per_batch
        if longest > budget:
            raise UserError(
                f"max_tokens_per_batch={budget} is too small: {split} has a row of {longest} tokens; raise "
                "it, or lower max_length"
            )

    # ---------------------------------------------------------------------------------------------- the model

    def load_tokenizers(self, checkpoint: Path) -> PreTrainedTokenizerBase:
        """The tokenizer of a checkpoint."""
        return load_tokenizers(checkpoint)[0]

    def build_tokenizers(self, corpus: Corpus) -> PreTrainedTokenizerBase:
        """The tokenizer of the pre-trained model."""
        return self.pretrained.tokenizer

    def save_tokenizers(self, tokenizers: PreTrainedTokenizerBase, folder: Path) -> None:
        """Write it into a folder."""
        save_tokenizers(tokenizers, tokenizers, folder)

    def build_model(self, tokenizers: PreTrainedTokenizerBase) -> PreTrainedModel:
        """The pre-trained model with a head for the task, or one of its shape with new weights."""
        fields = self.task.config_fields()
        if pooling := self.config.model.classifier_pooling:
            fields["classifier_pooling"] = pooling
        parts = self.pretrained, self.task.auto_class, fields
        if not self.config.model.from_scratch:
            return pretrained_model(self.config, *parts)
        seed_everything(self.config)
        return new_with_head(*parts, **kernel_options(self.config))

    def build_trainer(
        self, splits: dict[str, Dataset], tokenizers: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> FinetuningTrainer:
        """A trainer for the tokenized rows."""
        args = self.config.training
        patience = args.early_stopping_patience
        return FinetuningTrainer(
            task=self.task,
            model=model,
            args=args,
            train_dataset=splits["train"],
            eval_dataset=splits.get("validation"),
            data_collator=LabelCollator(int(tokenizers.pad_token_id)),
            processing_class=tokenizers,
            compute_metrics=self.scores,
            callbacks=[] if patience is None else [EarlyStoppingCallback(patience)],
        )

    def evaluate(
        self, trainer: FinetuningTrainer, splits: dict[str, Dataset], tokenizers: PreTrainedTokenizerBase
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""
        return evaluate_labels(trainer, self.scores, splits)
