"""Evaluate the model of a finished training, and save the scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, Trainer

from vaswani.evaluation.estimates import RESAMPLES, Estimate
from vaswani.files.atomic_files import write_json
from vaswani.files.run_files import EVALUATION_FILE

NUM_EXAMPLES = 8
VERSIONS_OF = ("vaswani", "transformers", "torch", "tokenizers")


def evaluate_finished(
    trainer: Trainer,
    splits: dict[str, Any],
    report: Callable[[str, Dataset, dict[str, float]], dict[str, Any] | None],
) -> dict[str, float]:
    """Evaluate the final model on the test split, else on the validation split; save and show the scores.

    Writes transformers' `<split>_results.json`, and `evaluation.json` for the model card.

    Args:
        trainer: the trainer after training.
        splits: tokenized rows of each split.
        report: is called with the split's name, its rows and the scores. It shows the scores and returns the
            content of `evaluation.json` (see `record`), or None.

    Returns:
        The scores; empty if there is no test and no validation split.
    """
    split = "test" if "test" in splits else "validation"
    if split not in splits:
        return {}
    trainer.remove_callback(EarlyStoppingCallback)  # it expects validation scores
    scores = trainer.evaluate(splits[split], metric_key_prefix=split)
    if trainer.is_world_process_zero():
        for name in ("all", "validation", "test"):  # results from before the training was resumed
            (Path(trainer.args.output_dir or ".") / f"{name}_results.json").unlink(missing_ok=True)
    trainer.save_metrics(split, scores)
    if trainer.is_world_process_zero() and (content := report(split, splits[split], scores)) is not None:
        write_json(Path(trainer.args.output_dir or ".") / EVALUATION_FILE, content)
    return scores


def record(
    split: str,
    num_rows: int,
    metrics: dict[str, Any],
    unit: str = "rows",
    extra_package: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return the content of `evaluation.json`.

    Args:
        split: the name of the split.
        num_rows: number of rows, or of other units, scored.
        metrics: see `metric_entries`.
        unit: the unit that is scored, and resampled for the intervals, such as "rows" or "sequences".
        extra_package: another package whose version is recorded, because it computed scores.
        more: other entries, such as examples.
    """
    packages = [*VERSIONS_OF, *([extra_package] if extra_package else [])]
    return {
        "split": split,
        "rows": num_rows,
        "unit": unit,
        "metrics": metrics,
        "intervals": f"from {RESAMPLES:,} bootstrap resamples of the {unit} (Koehn, 2004), seed 0",
        **more,
        "versions": {name: version(name) for name in packages},
    }


def metric_entries(
    names: Mapping[str, str], estimates: Mapping[str, Estimate], signatures: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the `metrics` of `record`: the name, value, interval and signature of each estimate."""
    return {
        metric: {"name": names[metric], **vars(estimate), "signature": (signatures or {}).get(metric)}
        for metric, estimate in estimates.items()
    }


def show_example(texts: Iterable[str], prediction: str, reference: str) -> None:
    """Print texts with their prediction and, if it differs, the reference; each is shortened, on one line."""
    *given, predicted, right = (shortened(" ".join(text.split())) for text in (*texts, prediction, reference))
    wrong = "" if prediction == reference else f"  (reference: {right})"
    before = f"{' | '.join(given)}  →  " if given else ""
    print(f"{before}{predicted}{wrong}")


def shortened(text: str, max_characters: int = 200) -> str:
    """Return a text; if it has more than `max_characters` characters, its beginning and its length."""
    return text if len(text) <= max_characters else f"{text[:max_characters]} … ({len(text):,} characters)"
