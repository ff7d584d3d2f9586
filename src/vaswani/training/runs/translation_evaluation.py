"""What a finished training of an encoder-decoder says of it: scores, intervals, some of what it writes."""

from __future__ import annotations

from functools import partial
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from vaswani.data.evenly_spread import evenly_spread
from vaswani.data.text_codec import TextCodec
from vaswani.evaluation.confidence import Estimate, resampled_scores
from vaswani.evaluation.final import NUM_EXAMPLES, evaluate_finished, record, shortened
from vaswani.evaluation.text_metrics import METRIC_NAMES, METRICS, SCORING_PACKAGE, TextMetrics
from vaswani.training.trainer.seq2seq import Trainer


def evaluate_translator(
    trainer: Trainer, splits: dict[str, Any], source_tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Evaluate the final model by what it writes (see `evaluate_finished`)."""
    return evaluate_finished(trainer, splits, partial(_tell, trainer, source_tokenizer))


def _tell(
    trainer: Trainer,
    source_tokenizer: PreTrainedTokenizerBase,
    split: str,
    rows: Dataset,
    scores: dict[str, float],
) -> dict[str, Any] | None:
    named = [(name, scores.get(f"{split}_{name}")) for name in ("loss", *METRICS)]
    shown = ", ".join(f"{name} {score:.2f}" for name, score in named if score is not None)
    print(f"\n{split} ({len(rows):,} rows): {shown}")
    metrics = trainer.compute_metrics
    if not isinstance(metrics, TextMetrics) or trainer.args.prediction_loss_only:
        return None
    print(*dict.fromkeys(metrics.signatures.values()), sep="\n", end="\n\n")
    chosen = evenly_spread(len(rows), NUM_EXAMPLES)
    sources = TextCodec(source_tokenizer, "source").decode(rows[chosen]["input_ids"])
    examples = [
        {"source": source, "translation": metrics.predictions[row], "reference": metrics.references[row]}
        for row, source in zip(chosen, sources, strict=True)
    ]
    for example in examples:
        _show(**example)
    more: dict[str, Any] = {"search": _search(trainer), "examples": examples}
    return record(split, rows, _scores(metrics), also=SCORING_PACKAGE[metrics.task], **more)


def _search(trainer: Trainer) -> dict[str, Any]:
    num_beams = trainer.args.generation_num_beams or 1
    penalty = {"length_penalty": trainer.args.generation_length_penalty} if num_beams > 1 else {}
    return {"num_beams": num_beams, **penalty}


def _scores(metrics: TextMetrics) -> dict[str, Any]:
    """Each metric with its name, its 95 % interval and, if it has one, its signature."""
    scores = {}
    resamples = resampled_scores(metrics.predictions, metrics.references, metrics.task)
    for metric, resampled in resamples.items():
        estimate = Estimate.from_resamples(metrics.scores[metric], resampled)
        signature = metrics.signatures.get(metric)
        scores[metric] = {"name": METRIC_NAMES[metric], **vars(estimate), "signature": signature}
    return scores


def _show(source: str, translation: str, reference: str) -> None:
    wrong = "" if translation == reference else f"  (reference: {shortened(reference)})"
    print(f"{shortened(source)}  →  {shortened(translation)}{wrong}")
