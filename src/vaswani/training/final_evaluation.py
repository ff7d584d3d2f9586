"""What a finished training says of its model: scores with confidence, and some of what it writes."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, PreTrainedTokenizerBase

from vaswani.data.evenly_spread import evenly_spread
from vaswani.hub.run_facts import EVALUATION_FILE
from vaswani.training.confidence import RESAMPLES, Estimate, resampled_scores
from vaswani.training.metrics import METRIC_NAMES, METRICS, TranslationMetrics
from vaswani.training.trainer import Trainer
from vaswani.whole_files import write_whole

NUM_EXAMPLES = 8
VERSIONS_OF = ("vaswani", "transformers", "torch", "tokenizers", "sacrebleu")


def evaluate_finished(
    trainer: Trainer, splits: dict[str, Any], source_tokenizer: PreTrainedTokenizerBase
) -> dict[str, float]:
    """Evaluate the final model on the test split, or else on the validation split; save and show the result.

    Writes transformers' `<split>_results.json`, and `evaluation.json`, which a model card is made of.

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
        named = [(name, scores.get(f"{split}_{name}")) for name in ("loss", *METRICS)]
        shown = ", ".join(f"{name} {score:.2f}" for name, score in named if score is not None)
        print(f"\n{split} ({len(splits[split]):,} rows): {shown}")
        if isinstance(trainer.compute_metrics, TranslationMetrics):
            _record_translations(trainer, trainer.compute_metrics, split, splits[split], source_tokenizer)
    return scores


def _record_translations(
    trainer: Trainer,
    metrics: TranslationMetrics,
    split: str,
    rows: Dataset,
    source_tokenizer: PreTrainedTokenizerBase,
) -> None:
    print(*metrics.signatures.values(), sep="\n", end="\n\n")
    chosen = evenly_spread(len(rows), NUM_EXAMPLES)
    sources = source_tokenizer.batch_decode(rows[chosen]["input_ids"], skip_special_tokens=True)
    examples = [
        {"source": source, "translation": metrics.predictions[row], "reference": metrics.references[row]}
        for row, source in zip(chosen, sources, strict=True)
    ]
    for example in examples:
        _show(**example)
    record = {
        "split": split,
        "rows": len(rows),
        "search": _search(trainer),
        "metrics": _scores(metrics),
        "intervals": f"from {RESAMPLES:,} bootstrap resamples of the rows (Koehn, 2004), seed 0",
        "examples": examples,
        "versions": {name: version(name) for name in VERSIONS_OF},
    }
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_whole(Path(trainer.args.output_dir or ".") / EVALUATION_FILE, text.encode())


def _search(trainer: Trainer) -> dict[str, Any]:
    num_beams = trainer.args.generation_num_beams or 1
    penalty = {"length_penalty": trainer.args.generation_length_penalty} if num_beams > 1 else {}
    return {"num_beams": num_beams, **penalty}


def _scores(metrics: TranslationMetrics) -> dict[str, Any]:
    """Each metric with its name, its 95 % interval and, if it has one, its signature."""
    scores = {}
    for metric, resampled in resampled_scores(metrics.predictions, metrics.references).items():
        estimate = Estimate.from_resamples(metrics.scores[metric], resampled)
        signature = metrics.signatures.get(metric)
        scores[metric] = {"name": METRIC_NAMES[metric], **vars(estimate), "signature": signature}
    return scores


def _show(source: str, translation: str, reference: str) -> None:
    wrong = "" if translation == reference else f"  (reference: {shortened(reference)})"
    print(f"{shortened(source)}  →  {shortened(translation)}{wrong}")


def shortened(text: str, most: int = 200) -> str:
    """A text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
