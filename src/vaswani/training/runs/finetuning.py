"""Fine-tuning of a pre-trained model on labelled texts, and its scores.

A decoder classifies a text by the state of its end token (Radford et al., 2018, "Improving Language
Understanding by Generative Pre-Training", section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction, PreTrainedModel

from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.given_tokenizers import prepare_for_classification, prepare_for_tagging
from vaswani.data.labels.labelled import load_labelled
from vaswani.data.labels.labelled_tokens import LabelCollator, check_room, tokenize_labelled
from vaswani.data.sources.corpus import Corpus
from vaswani.data.sources.corpus_spec import SPLITS
from vaswani.data.text_codec import Tokenizers
from vaswani.errors import UserError
from vaswani.evaluation.estimates import Estimate
from vaswani.evaluation.final import NUM_EXAMPLES, evaluate_finished, metric_entries, record, show_example
from vaswani.evaluation.spans import OUTSIDE, mark_spans
from vaswani.evaluation.summary import label_lines, metric_lines
from vaswani.inference.classify.classification import names_of
from vaswani.training.config.completion_arguments import CompletionConfig
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.config.question_arguments import QuestionAnsweringConfig
from vaswani.training.runs.base import BaseRun
from vaswani.training.runs.checks import check_attention_kernel, check_metric
from vaswani.training.runs.completion import CompletionRun
from vaswani.training.runs.models import (
    Pretrained,
    model_with_head,
    open_pretrained,
    untied_output_reason,
)
from vaswani.training.runs.question_answering import QuestionAnsweringRun
from vaswani.training.runs.trained_parts import check_trainable, only_trained_parts
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import TASKS, LabelTask, Tagging


def finetune(config: FinetuningConfig | QuestionAnsweringConfig | CompletionConfig) -> dict[str, float]:
    """Train a pre-trained model on labelled texts, on questions or on completions (see `BaseRun.run`)."""
    if isinstance(config, QuestionAnsweringConfig):
        return QuestionAnsweringRun(config).run()
    if isinstance(config, CompletionConfig):
        return CompletionRun(config).run()
    return FinetuningRun(config).run()


class FinetuningRun(BaseRun):
    """A training of a pre-trained encoder or decoder with a head for its task."""

    config: FinetuningConfig
    task: LabelTask  # known once the labels have been read

    @cached_property
    def scores(self) -> LabelScores:
        """The `compute_metrics` of the trainer."""
        return LabelScores(self.task)

    @cached_property
    def pretrained(self) -> Pretrained:
        """The model that the run starts from; a decoder's tokenizer ends each text to classify."""
        task = self.config.data.task
        ready = prepare_for_tagging if task == "tagging" else prepare_for_classification
        return open_pretrained(str(self.config.model.model), TASKS[task].auto_class, ready)

    # ----------------------------------------------------------------------------------- before the corpus

    @property
    def metrics(self) -> Sequence[str]:
        return list(TASKS[self.config.data.task].metric.names)

    def check(self) -> None:
        args, data = self.config.training, self.config.data
        task = TASKS[data.task]
        if args.label_smoothing_factor and not task.smooths:
            raise UserError(f"label_smoothing_factor has no meaning for task={data.task}; leave it out")
        self.pretrained.check_length(data.max_length)
        check_room(self.pretrained.tokenizer, data.max_length, pairs=data.text_pair_field is not None)
        check_attention_kernel(task.auto_class, self.pretrained.config, self.config.model.attn_implementation)
        self._check_pooling()
        self.check_given_weights()

    def check_given_weights(self) -> None:
        """Raise `UserError` unless the given weights can be trained as requested."""
        self._check_lm_loss()
        check_trainable(self.config, self.pretrained, TASKS[self.config.data.task].auto_class)

    def _check_pooling(self) -> None:
        """Raise `UserError` if `classifier_pooling` has no effect."""
        pooling, config = self.config.model.classifier_pooling, self.pretrained.config
        if pooling is None:
            return
        if self.config.data.task == "tagging":
            raise UserError("classifier_pooling has no meaning for task=tagging; leave it out")
        if not hasattr(config, "classifier_pooling"):
            raise UserError(
                f"classifier_pooling={pooling} is not supported by a model of type {config.model_type!r}, "
                "whose classifier has a pooling of its own; leave it out"
            )

    def _check_lm_loss(self) -> None:
        """Raise `UserError` if `lm_loss_weight` cannot work: its logits are states times the embedding."""
        args = self.config.training
        if not args.lm_loss_weight:
            return
        if self.config.adapter.lora_rank is not None or "encoder" in self.config.model.freeze:
            frozen = "lora_rank" if self.config.adapter.lora_rank is not None else "freeze=encoder"
            raise UserError(
                f"lm_loss_weight={args.lm_loss_weight} trains the weights that {frozen} keeps as they are; "
                "leave one of them out"
            )
        problem = untied_output_reason(self.pretrained.config)
        if problem is None and args.shards_model:
            problem = "a model whose parameters are sharded over processes"
        if problem is not None:
            raise UserError(
                f"lm_loss_weight={args.lm_loss_weight} needs a decoder whose output layer is its embedding, "
                f"whole on each device, and this is {problem}; leave it out"
            )

    # ---------------------------------------------------------------------------------- rows and their labels

    def read(self, splits: Sequence[str] = SPLITS) -> Corpus:
        return load_labelled(self.config.data.corpus, splits)

    def load(self) -> Corpus:
        """Read the labelled texts; the labels of the training split become those of the task."""
        corpus = super().load()
        task_class = TASKS[self.config.data.task]
        labels = corpus.split("train")["label"][:]
        self.task = task_class(self._in_the_models_order(task_class.names_in(labels)))
        for split, rows in corpus.splits.items():
            self.task.check_known(rows["label"][:], split)
        if isinstance(self.task, Tagging) and not mark_spans(self.task.names):  # no span scores then
            check_metric(self.config.training.metric_for_best_model, ["loss", "token_accuracy"])
        return corpus

    def labels(self) -> Sequence[str]:
        return self.task.names

    def _in_the_models_order(self, names: list[str]) -> list[str]:
        """Return the names in the model's order if it has the same labels, so that their numbers stay."""
        known = names_of(self.pretrained.config)
        return known if sorted(known) == sorted(names) else names

    def tokenize(self, corpus: Corpus, tokenizers: Tokenizers) -> dict[str, Dataset]:
        """Rows as token ids. For tagging, only training rows are truncated: scores count every word."""
        splits = {}
        for split, rows in corpus.splits.items():
            cuts = split == "train" or self.config.data.task != "tagging"
            limit = self.config.data.max_length if cuts else self.pretrained.longest
            report = corpus.reports[split]
            splits[split] = tokenize_labelled(
                rows, tokenizers[0], self.task.target, limit, report, truncate=cuts
            )
            self.check_budget(split, max(splits[split]["length"][:]))
        return splits

    # ---------------------------------------------------------------------------------------------- the model

    def build_tokenizers(self, corpus: Corpus) -> Tokenizers:
        return self.pretrained.tokenizer, self.pretrained.tokenizer

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """The pre-trained model with a head for the task, or one of its shape with new weights."""
        model = model_with_head(self.config, self.pretrained, self.task.auto_class, self.head_fields())
        return only_trained_parts(model, self.config)

    def head_fields(self) -> dict[str, Any]:
        """The fields of the model's configuration that its head depends on."""
        fields = self.task.config_fields()
        if pooling := self.config.model.classifier_pooling:
            fields["classifier_pooling"] = pooling
        return fields

    # ------------------------------------------------------------------------------- trainer and evaluation

    def build_trainer(
        self, splits: dict[str, Any], tokenizers: Tokenizers, model: PreTrainedModel
    ) -> FinetuningTrainer:
        tokenizer = tokenizers[0]
        return FinetuningTrainer(
            task=self.task,
            data_collator=LabelCollator(int(tokenizer.pad_token_id)),
            processing_class=tokenizer,
            compute_metrics=self.scores,
            **self.trainer_options(splits, model),
        )

    def evaluate(
        self, trainer: FinetuningTrainer, splits: dict[str, Any], tokenizers: Tokenizers
    ) -> dict[str, float]:
        """Scores on the test split, or else on the validation split; printed and saved."""
        return evaluate_finished(trainer, splits, partial(_show_scores, self.scores))


# ----------------------------------------------------------------------------------- output of the evaluation


class LabelScores:
    """The `compute_metrics` of a fine-tuning; holds the latest scores, predictions and references."""

    def __init__(self, task: LabelTask):
        self.task = task
        self.metric = task.metric(keep_in_memory=True)
        self.scores: dict[str, float] = {}
        self.predictions: list[Any] = []
        self.references: list[Any] = []

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Score the outputs of all rows against their targets (see `LabelTask`)."""
        outputs, labels = (np.asarray(part) for part in (prediction.predictions, prediction.label_ids))
        self.predictions = self.task.predictions(outputs, labels)
        self.references = self.task.references(labels)
        self.scores = self.metric.scores_of(self.predictions, self.references)
        return self.scores

    def resampled(self) -> dict[str, np.ndarray]:
        """Each score on bootstrap resamples of the rows: float64 [R]."""
        return self.metric.resampled_scores(self.metric.table(self.predictions, self.references))

    def estimates(self) -> dict[str, Estimate]:
        """Each score with its 95 % confidence interval, from bootstrap resamples of the rows."""
        return self.metric.estimates(self.predictions, self.references)


def _show_scores(
    label_scores: LabelScores, split: str, rows: Dataset, scores: dict[str, float]
) -> dict[str, Any]:
    metrics = metric_entries(label_scores.metric.names, label_scores.estimates())
    more: dict[str, Any] = {"examples": _examples(label_scores, rows)}
    if by_label := label_scores.metric.by_label(label_scores.predictions, label_scores.references):
        more["labels"] = by_label
    content = record(split, len(rows), metrics, **more)
    _show(content, scores[f"{split}_loss"])
    return content


def _examples(scores: LabelScores, rows: Dataset) -> list[dict[str, Any]]:
    """Some rows, evenly spread: their texts, predictions and references."""
    chosen = evenly_spread(len(rows), NUM_EXAMPLES)
    texts = rows.select_columns([name for name in ("text", "text_pair") if name in rows.column_names])
    return [
        {**texts[row], "prediction": scores.predictions[row], "reference": scores.references[row]}
        for row in chosen
    ]


def _show(content: dict[str, Any], loss: float) -> None:
    print(f"\n{content['split']} ({content['rows']:,} rows): loss {loss:.3f}")
    print(*metric_lines(content["metrics"]), *label_lines(content.get("labels", {})), sep="\n", end="\n\n")
    for example in content["examples"]:
        _show_example(**example)


def _show_example(text: Any, prediction: Any, reference: Any, text_pair: str | None = None) -> None:
    """Print a text and its label, or tagged words, and the reference if it differs."""
    texts = [] if isinstance(text, list) else [each for each in (text, text_pair) if each is not None]
    show_example(texts, _shown(text, prediction), _shown(text, reference))


def _shown(text: Any, label: Any) -> str:
    if isinstance(text, list):
        words = (word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in zip(text, label, strict=True))
        return " ".join(words)
    if isinstance(label, list):
        return ", ".join(label) or "none"
    return f"{label:.3g}" if isinstance(label, float) else label
