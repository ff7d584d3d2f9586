"""What a finished pre-training says of its model: scores with confidence."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset

from vaswani.evaluation.confidence import RESAMPLES, Estimate
from vaswani.evaluation.final import evaluate_finished, record
from vaswani.training.trainer.pretraining import PretrainingTrainer

SCORE_NAMES = {
    "loss": "Loss (nats)",
    "perplexity": "Perplexity",
    "accuracy": "Accuracy (%)",
    "bits_per_byte": "Bits per byte",
    "next_sentence_accuracy": "Next-sentence accuracy (%)",
}


def evaluate_language_model(trainer: PretrainingTrainer, splits: dict[str, Any]) -> dict[str, float]:
    """Evaluate the final model by how it tells tokens (see `evaluate_finished`)."""
    return evaluate_finished(trainer, splits, partial(_tell, trainer))


def _tell(trainer: PretrainingTrainer, split: str, rows: Dataset, scores: dict[str, float]) -> dict[str, Any]:
    metrics = {
        name: {"name": SCORE_NAMES[name], **vars(estimate), "signature": None}
        for name, estimate in estimates(trainer).items()
    }
    print(f"\n{split} ({len(rows):,} sequences), with 95 % intervals:")
    for score in metrics.values():
        print(f"{score['name']} {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})")
    return record(split, rows, metrics, of="sequences")


def estimates(trainer: PretrainingTrainer) -> dict[str, Estimate]:
    """The scores of the latest evaluation with their 95 % intervals, from bootstrap resamples of its rows."""
    generator, sums = np.random.default_rng(0), trainer.sums
    draws = (generator.integers(len(sums), size=len(sums)) for _ in range(RESAMPLES))
    resampled = [trainer.scores_of(sums[rows].sum(0)) for rows in draws]
    return {
        name: Estimate.from_resamples(value, np.array([scores[name] for scores in resampled]))
        for name, value in trainer.scores_of(sums.sum(0)).items()
    }
