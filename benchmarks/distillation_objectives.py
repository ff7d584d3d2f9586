"""Which of the objectives makes a student better: the same student, taught in different ways.

Trains the student of the configuration distill_multi30k_small once for each way, from the same random weights
and for as many updates, and compares all on the test split: BLEU, and gains over the student that saw the
labels alone, with 95 % intervals from the same resamples of the rows. There is no peer.

    python benchmarks/distillation_objectives.py --data path/to/multi30k --teacher runs/multi30k_teacher

A student that is there is not trained again. `--only NAME ...` trains some of them, so that several processes
can share the work; the table is printed by a call that finds all.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from transformers.utils import SAFE_WEIGHTS_NAME

import side_by_side
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.distillation.baseline import BASELINE, train_unless_done
from vaswani.distillation.comparison import Comparison, compare, load_candidates
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import BaselineRun, DistillationRun
from vaswani.training.config.config_file import load_config

CONFIG = "distill_multi30k_small"
NO_TEACHER: dict[str, Any] = {"label_weight": 1, "soft_target_weight": 0, "teacher_top_k": 16}
SOFT_TARGETS: dict[str, Any] = {"label_weight": 0.5, "soft_target_weight": 1, "teacher_top_k": 16}
WITH_STATES: dict[str, Any] = {**SOFT_TARGETS, "targets": "both", "teacher_top_k": None}
ALL_CACHED = "labels, translations, soft targets"  # its baseline is the student of labels alone
WAYS: dict[str, dict[str, Any]] = {
    "translations": {**NO_TEACHER, "targets": "teacher"},
    "labels, translations": {**NO_TEACHER, "targets": "both"},
    "labels, soft targets": {**SOFT_TARGETS, "targets": "references"},
    ALL_CACHED: {**SOFT_TARGETS, "targets": "both"},
    "these and cosine": {**WITH_STATES, "cosine_weight": 1},
    "these and relations": {**WITH_STATES, "relation_weight": 1, "relation_heads": 8},
}


def main() -> None:
    """Train what is missing of what is asked for, and compare once all are there."""
    args = parse_arguments()
    side_by_side.quiet()
    for name in args.only or WAYS:
        if not is_done(args.output / name):
            train(name, args)
    if all(is_done(args.output / name) for name in WAYS):
        labels_alone = args.output / ALL_CACHED / BASELINE
        folders = [args.teacher, *(args.output / name for name in WAYS), labels_alone]
        teacher, *taught, baseline = load_candidates([str(folder) for folder in folders])
        rows = load_corpus(CorpusSpec(args.data, source_field="en", target_field="de"), ["test"]).split(
            "test"
        )
        report(compare(teacher, taught, rows, data="test", baseline=baseline), args)


def parse_arguments() -> argparse.Namespace:
    """Flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--data", required=True, help="folder of Multi30k, or its name on the Hub")
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the teacher")
    parser.add_argument("--output", type=Path, default=Path("runs/distillation_objectives"))
    parser.add_argument("--max_steps", type=int, default=1200)
    parser.add_argument("--only", nargs="+", choices=list(WAYS), help="train these, unless they are there")
    return parser.parse_args()


def is_done(folder: Path) -> bool:
    """Whether a student is there, and where it has one its baseline too."""
    needed = [folder, folder / BASELINE] if folder.name == ALL_CACHED else [folder]
    return all((each / SAFE_WEIGHTS_NAME).is_file() for each in needed)


def train(name: str, args: argparse.Namespace) -> None:
    """One student in a folder of its name, from where it stopped if it was begun."""
    folder = args.output / name
    is_of_references = WAYS[name]["targets"] == "references"
    fields = {
        "output_dir": folder,
        "dataset": args.data,
        "teacher": args.teacher,
        # Distributions belong to the targets that they are of; translations serve all.
        "teacher_cache": args.output / ("of_references" if is_of_references else "of_translations"),
        "max_steps": 2 if args.quick else args.max_steps,
        "eval_strategy": "no",
        "resume_from_checkpoint": str((folder / "training_config.yaml").is_file()).lower(),
    }
    config = load_config(
        CONFIG, [f"--{field}={value}" for field, value in fields.items()], DistillationConfig
    )
    for field, value in WAYS[name].items():
        setattr(config.distillation, field, value)
    if not (folder / SAFE_WEIGHTS_NAME).is_file():
        DistillationRun(config).train_and_evaluate()
    if name == ALL_CACHED:
        train_unless_done(BaselineRun(config))


def report(comparison: Comparison, args: argparse.Namespace) -> None:
    """A row for each model."""
    updates = 2 if args.quick else args.max_steps
    print(f"{comparison.rows:,} rows, 4 beams; {updates:,} updates each; {versions(comparison)}\n")
    table = []
    for model in comparison.models:
        bleu, chrf, gain = model.scores["bleu"], model.scores["chrf"], model.gain
        name = (
            model.name
            if model.role == "student"
            else {"baseline": "labels alone"}.get(model.role, model.role)
        )
        interval = f"{bleu.value:.2f} [{bleu.low:.2f}, {bleu.high:.2f}]"
        shown = f"{gain.value:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]" if gain else "–"
        table.append((name, model.role, interval, f"{chrf.value:.2f}", shown))
    side_by_side.print_table(("taught by", "role", "BLEU", "chrF2", "gain over labels alone, BLEU"), table)
    if args.json:
        gains = {model.name: model.gain.value for model in comparison.students if model.gain}
        print(json.dumps({"gain": gains}))


def versions(comparison: Comparison) -> str:
    """The metric's signature ends with sacreBLEU's version; the machine's part names torch's."""
    machine = comparison.machine
    return f"{comparison.signatures['bleu']}; {machine['device']}, torch {machine['torch']}"


if __name__ == "__main__":
    main()
