"""Which of the objectives makes a student better: the same student, taught in different ways.

Trains the small Multi30k student once for each way, from the same random weights and for as many updates, and
compares all on the test split: gains over the student that saw the labels alone, with paired 95 % intervals.

    python benchmarks/distillation_objectives.py --data path/to/multi30k --teacher runs/multi30k_teacher

A student that is there is not trained again. `--only NAME ...` trains some of them, so that several processes
can share the work; the table is printed by a call that finds all.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils import SAFE_WEIGHTS_NAME

import vaswani
from vaswani.data.corpus import CorpusSpec, load_corpus
from vaswani.distillation.arguments import DistillationConfig
from vaswani.distillation.comparison import Comparison, compare, load_candidates
from vaswani.distillation.run import BASELINE, BaselineRun, DistillationRun
from vaswani.training.config_file import load_config

CONFIG = "configs/distill_multi30k_small.yaml"
BATCHES_OF_LABELS: dict[str, Any] = {"label_weight": 1, "soft_target_weight": 0, "teacher_top_k": 16}
SOFT_TARGETS: dict[str, Any] = {"label_weight": 0.5, "soft_target_weight": 1, "teacher_top_k": 16}
WITH_STATES: dict[str, Any] = {**SOFT_TARGETS, "targets": "both", "teacher_top_k": None}
ALL_CACHED = "labels, translations, soft targets"  # its baseline is the student of labels alone
WAYS: dict[str, dict[str, Any]] = {
    "translations": {**BATCHES_OF_LABELS, "targets": "teacher"},
    "labels, translations": {**BATCHES_OF_LABELS, "targets": "both"},
    "labels, soft targets": {**SOFT_TARGETS, "targets": "references"},
    ALL_CACHED: {**SOFT_TARGETS, "targets": "both"},
    "these and cosine": {**WITH_STATES, "cosine_weight": 1},
    "these and relations": {**WITH_STATES, "relation_weight": 1, "relation_heads": 8},
}


def main() -> None:
    """Train what is missing of what is asked for, and compare once all are there."""
    options = parse_arguments()
    for name in options.only or WAYS:
        if not is_done(options.output / name):
            train(name, options)
    if all(is_done(options.output / name) for name in WAYS):
        labels_alone = options.output / ALL_CACHED / BASELINE
        students = [options.output / name for name in WAYS]
        candidates = load_candidates([str(path) for path in (options.teacher, *students, labels_alone)])
        rows = load_corpus(CorpusSpec(options.data, source_field="en", target_field="de"), ["test"]).split(
            "test"
        )
        teacher, *taught, baseline = candidates
        print_table(compare(teacher, taught, rows, data="test", baseline=baseline))


def parse_arguments() -> argparse.Namespace:
    """Flags of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="Folder of Multi30k, or its name on the Hub.")
    parser.add_argument("--teacher", type=Path, required=True, help="Folder of the teacher.")
    parser.add_argument("--output", type=Path, default=Path("runs/distillation_objectives"))
    parser.add_argument("--max_steps", type=int, default=1200)
    parser.add_argument("--only", nargs="+", choices=list(WAYS), help="Train these, unless they are there.")
    return parser.parse_args()


def is_done(folder: Path) -> bool:
    """Whether a student is there, and where it has one its baseline too."""
    needed = [folder, folder / BASELINE] if folder.name == ALL_CACHED else [folder]
    return all((each / SAFE_WEIGHTS_NAME).is_file() for each in needed)


def train(name: str, options: argparse.Namespace) -> None:
    """One student in a folder of its name, from where it stopped if it was begun."""
    folder = options.output / name
    is_of_references = WAYS[name]["targets"] == "references"
    fields = {
        "output_dir": folder,
        "dataset": options.data,
        "teacher": options.teacher,
        # Distributions belong to the targets that they are of; translations serve all.
        "teacher_cache": options.output / ("of_references" if is_of_references else "of_translations"),
        "max_steps": options.max_steps,
        "eval_strategy": "no",
        "resume_from_checkpoint": str((folder / "training_config.yaml").is_file()).lower(),
    }
    config = load_config(
        CONFIG, [f"--{field}={value}" for field, value in fields.items()], DistillationConfig
    )
    for field, value in WAYS[name].items():
        setattr(config.distillation, field, value)
    if not (folder / SAFE_WEIGHTS_NAME).is_file():
        DistillationRun(config).run()
    if name == ALL_CACHED:
        BaselineRun(config).run_unless_done()


def print_table(comparison: Comparison) -> None:
    """A row for each model."""
    print(
        f"\n{comparison.rows:,} rows, 4 beams; vaswani {vaswani.__version__}, torch {torch.__version__}, ",
        end="",
    )
    print(f"transformers {transformers.__version__}\n")
    print("| taught by | BLEU | chrF2 | gain over labels alone, BLEU |\n|---|---:|---:|---:|")
    for model in comparison.models:
        bleu, chrf, gain = model.scores["bleu"], model.scores["chrf"], model.gain
        interval = f"{bleu.value:.2f} [{bleu.low:.2f}, {bleu.high:.2f}]"
        shown = f"{gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]" if gain else ""
        print(f"| {model.name} | {interval} | {chrf.value:.2f} | {shown} |")


if __name__ == "__main__":
    main()
