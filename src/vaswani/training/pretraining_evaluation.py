"""What a finished pre-training says of its model: scores with confidence."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import EarlyStoppingCallback

from vaswani.hub.run_facts import EVALUATION_FILE
from vaswani.training.confidence import RESAMPLES, Estimate
from vaswani.training.pretraining_trainer import PretrainingTrainer
from vaswani.whole_files import write_whole

SCORE_NAMES = {
    "loss": "Loss (nats)",
    "perplexity": "Perplexity",
    "accuracy": "Accuracy (%)",
    "bits_per_byte": "Bits per byte",
    "next_sentence_accuracy": "Next-sentence accuracy (%)",
}
VERSIONS_OF = ("vaswani", "transformers", "torch", "tokenizers")


def evaluate_finished(trainer: PretrainingTrainer, splits: dict[str, Any]) -> dict[str, float]:
    """Evaluate the final model on the test split, or else on the validation split; save and show the result.

    Writes transformers' `<split>_results.json`, and `evaluation.json`, with intervals.

    Args:
        trainer: that has ended.
        splits: sequences of tokens.

    Returns:
        The scores; empty without either split.
    """
    split = "test" if "test" in splits else "validation"
    if split not in splits:
        return {}
    trainer.remove_callback(EarlyStoppingCallback)  # it would look for the validation scores in these
    scores = trainer.evaluate(splits[split], metric_key_prefix=split)
    trainer.save_metrics(split, scores)
    if trainer.is_world_process_zero():
        record = _record(trainer, splits[split], split)
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_whole(Path(trainer.args.output_dir or ".") / EVALUATION_FILE, text.encode())
        print(f"\n{split} ({record['rows']:,} sequences), with 95 % intervals:")
        for score in record["metrics"].values():
            print(f"{score['name']} {score['value']:.3f} ({score['low']:.3f} to {score['high']:.3f})")
    return scores


def _record(trainer: PretrainingTrainer, rows: Dataset, split: str) -> dict[str, Any]:
    """What `evaluation.json` holds."""
    return {
        "split": split,
        "rows": len(rows),
        "metrics": {
            name: {"name": SCORE_NAMES[name], **vars(estimate), "signature": None}
            for name, estimate in estimates(trainer).items()
        },
        "intervals": f"from {RESAMPLES:,} bootstrap resamples of the sequences (Koehn, 2004), seed 0",
        "versions": {name: version(name) for name in VERSIONS_OF},
    }


def estimates(trainer: PretrainingTrainer) -> dict[str, Estimate]:
    """The scores of the latest evaluation with their 95 % intervals, from bootstrap resamples of its rows."""
    generator, sums = np.random.default_rng(0), trainer.sums
    draws = (generator.integers(len(sums), size=len(sums)) for _ in range(RESAMPLES))
    resampled = [trainer.scores_of(sums[rows].sum(0)) for rows in draws]
    return {
        name: Estimate.from_resamples(value, np.array([scores[name] for scores in resampled]))
        for name, value in trainer.scores_of(sums.sum(0)).items()
    }
