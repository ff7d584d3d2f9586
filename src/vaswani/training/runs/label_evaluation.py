"""What a finished fine-tuning says of its model: scores with confidence, and some of what it predicts."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import EvalPrediction

from vaswani.data.evenly_spread import evenly_spread
from vaswani.evaluation.confidence import Estimate
from vaswani.evaluation.final import NUM_EXAMPLES, evaluate_finished, record, shortened
from vaswani.evaluation.label_metrics import TaggingMetric, scores_by_type
from vaswani.evaluation.spans import OUTSIDE, mark_spans
from vaswani.training.trainer.finetuning import FinetuningTrainer
from vaswani.training.trainer.labels import LabelTask


class LabelScores:
    """The `compute_metrics` of a fine-tuning; holds the latest scores with what they were computed from."""

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
        table = self.metric.table(self.predictions, self.references)
        self.scores = self.metric.scores(table, np.ones(len(table)))
        return self.scores

    def estimates(self) -> dict[str, Estimate]:
        """Each score with its 95 % confidence interval, from bootstrap resamples of the rows."""
        table = self.metric.table(self.predictions, self.references)
        resampled = self.metric.resampled_scores(table)
        return {name: Estimate.from_resamples(score, resampled[name]) for name, score in self.scores.items()}


def evaluate_labels(
    trainer: FinetuningTrainer, label_scores: LabelScores, splits: dict[str, Dataset]
) -> dict[str, float]:
    """Evaluate the final model by the labels that it gives (see `evaluate_finished`).

    Args:
        trainer: that has ended.
        label_scores: what it computes its metrics with.
        splits: tokenized rows.
    """
    return evaluate_finished(trainer, splits, partial(_tell, label_scores))


def _tell(label_scores: LabelScores, split: str, rows: Dataset, scores: dict[str, float]) -> dict[str, Any]:
    names = label_scores.metric.names
    metrics = {
        metric: {"name": names[metric], **vars(estimate), "signature": None}
        for metric, estimate in label_scores.estimates().items()
    }
    more: dict[str, Any] = {"examples": _examples(label_scores, rows)}
    if isinstance(label_scores.metric, TaggingMetric) and mark_spans(label_scores.task.names):
        more["types"] = scores_by_type(label_scores.predictions, label_scores.references)
    told = record(split, rows, metrics, **more)
    _show(told, scores[f"{split}_loss"])
    return told


def _examples(scores: LabelScores, rows: Dataset) -> list[dict[str, Any]]:
    """Some rows, evenly spread: their texts, predictions and references."""
    chosen = evenly_spread(len(rows), NUM_EXAMPLES)
    texts = rows.select_columns([name for name in ("text", "text_pair") if name in rows.column_names])
    return [
        {**texts[row], "prediction": scores.predictions[row], "reference": scores.references[row]}
        for row in chosen
    ]


def _show(told: dict[str, Any], loss: float) -> None:
    print(f"\n{told['split']} ({told['rows']:,} rows): loss {loss:.3f}")
    for score in told["metrics"].values():
        interval = f"(95 % interval {score['low']:.2f} to {score['high']:.2f})"
        print(f"{score['name']} {score['value']:.2f} {interval}")
    for kind, of_type in told.get("types", {}).items():
        precision, recall, f1 = (f"{of_type[name]:.2f}" for name in ("precision", "recall", "f1"))
        print(f"{kind}: precision {precision}, recall {recall}, F1 {f1} ({of_type['spans']:,} spans)")
    print()
    for example in told["examples"]:
        _show_example(**example)


def _show_example(text: Any, prediction: Any, reference: Any, text_pair: str | None = None) -> None:
    """A text and its label, or tagged words; and what is right, if that is something else."""
    wrong = "" if prediction == reference else f"  (reference: {_shown(text, reference)})"
    if isinstance(text, list):
        print(f"{_shown(text, prediction)}{wrong}")
    else:
        texts = "  |  ".join(shortened(part) for part in (text, text_pair) if part is not None)
        print(f"{' '.join(texts.split())}  →  {_shown(text, prediction)}{wrong}")


def _shown(text: Any, label: Any) -> str:
    if isinstance(text, list):
        words = (word if tag == OUTSIDE else f"{word}/{tag}" for word, tag in zip(text, label, strict=True))
        return shortened(" ".join(words))
    if isinstance(label, list):
        return ", ".join(label) or "none"
    return f"{label:.3g}" if isinstance(label, float) else label
