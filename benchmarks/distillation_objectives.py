r"""Compare distillation objectives: the same student, trained in different ways.

Trains the student of the configuration distill_multi30k_small once for each way and seed, from the same
random weights and for the same number of updates, and compares all on the test split: BLEU, and gains over
the student trained on labels alone, with half of the 95 % interval. The intervals combine resamples of the
rows, the same for both students, and seeds. There is no peer.

    python benchmarks/distillation_objectives.py --data path/to/multi30k --teacher runs/multi30k_teacher \
        --seeds 1 2

Fields of the configuration can follow, such as --bf16. Finished students are not trained again.
`--only NAME ...` trains some of them, so that several processes can share the work; a call that finds all
students prints the table.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from pathlib import Path
from statistics import mean, stdev
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


@dataclass(frozen=True)
class Gain:
    """The gain of one way of training over labels alone.

    Args:
        bleu: BLEU of each seed.
        chrf: chrF2 of each seed.
        gains: difference in BLEU to labels alone, for each seed.
        row_error: standard error of the mean gain over the rows.
    """

    bleu: list[float]
    chrf: list[float]
    gains: list[float]
    row_error: float

    @property
    def half_interval(self) -> float:
        """Half of the 95 % interval of the mean gain, over rows and seeds."""
        count = len(self.gains)
        over_seeds = stdev(self.gains) / sqrt(count) if count > 1 else 0.0
        return side_by_side.HALF_INTERVAL * hypot(self.row_error, over_seeds)


def main() -> None:
    """Train the requested students that are missing; compare once all exist."""
    args, more = parse_arguments()
    side_by_side.quiet()
    options = {name: str(getattr(args, name)) for name in ("data", "teacher", "max_steps", "quick")}
    side_by_side.check_options(args.output, {**options, "flags": more})
    for seed in args.seeds:
        for name in args.only or WAYS:
            if not is_done(args.output / f"{seed}" / name):
                train(name, seed, args, more)
    if all(is_done(args.output / f"{seed}" / name) for seed in args.seeds for name in WAYS):
        report([compare_ways(args, seed) for seed in args.seeds], args)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; also return the remaining flags, which belong to the configuration."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--data", required=True, help="folder of Multi30k, or its name on the Hub")
    parser.add_argument("--teacher", type=Path, required=True, help="folder of the teacher")
    parser.add_argument("--output", type=Path, default=Path("runs/distillation_objectives"))
    parser.add_argument("--max_steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="seeds of the trainings")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), help="train these, unless they are there")
    return side_by_side.parse_with_flags(parser)


def is_done(folder: Path) -> bool:
    """Return whether a student, and its baseline if it has one, is trained."""
    needed = [folder, folder / BASELINE] if folder.name == ALL_CACHED else [folder]
    return all((each / SAFE_WEIGHTS_NAME).is_file() for each in needed)


def train(name: str, seed: int, args: argparse.Namespace, more: list[str]) -> None:
    """Train one student, or resume its training, in the folder of its name."""
    folder = args.output / f"{seed}" / name
    is_of_references = WAYS[name]["targets"] == "references"
    fields = {
        "output_dir": folder,
        "dataset": args.data,
        "teacher": args.teacher,
        # Cached distributions are valid only for their own targets; translations are shared by all ways.
        "teacher_cache": args.output / ("of_references" if is_of_references else "of_translations"),
        "max_steps": 2 if args.quick else args.max_steps,
        "seed": seed,
        "eval_strategy": "no",
        "resume_from_checkpoint": str((folder / "training_config.yaml").is_file()).lower(),
    }
    flags = [f"--{field}={value}" for field, value in fields.items()]
    config = load_config(CONFIG, [*flags, *more], DistillationConfig)
    for field, value in WAYS[name].items():
        setattr(config.distillation, field, value)
    if not (folder / SAFE_WEIGHTS_NAME).is_file():
        DistillationRun(config).train_and_evaluate()
    if name == ALL_CACHED:
        train_unless_done(BaselineRun(config))


def compare_ways(args: argparse.Namespace, seed: int) -> Comparison:
    """The teacher, the students of a seed and the student of labels alone, on the test split."""
    place = args.output / f"{seed}"
    folders = [args.teacher, *(place / name for name in WAYS), place / ALL_CACHED / BASELINE]
    teacher, *taught, baseline = load_candidates([str(folder) for folder in folders])
    rows = load_corpus(CorpusSpec(args.data, source_field="en", target_field="de"), ["test"]).split("test")
    return compare(teacher, taught, rows, data="test", baseline=baseline)


def gains_of(comparisons: Sequence[Comparison]) -> dict[str, Gain]:
    """Return the scores and gains of each way, over all seeds."""
    found = {}
    for place, name in enumerate(WAYS):
        students = [comparison.students[place] for comparison in comparisons]
        gains = [student.gain for student in students if student.gain is not None]
        errors = [(gain.high - gain.low) / (2 * side_by_side.HALF_INTERVAL) for gain in gains]
        found[name] = Gain(
            [student.scores["bleu"].value for student in students],
            [student.scores["chrf"].value for student in students],
            [gain.value for gain in gains],
            mean(errors),  # all seeds are scored on the same rows
        )
    return found


def report(comparisons: Sequence[Comparison], args: argparse.Namespace) -> None:
    """Print a row for each model."""
    first, updates = comparisons[0], 2 if args.quick else args.max_steps
    print(f"{first.rows:,} rows, 4 beams; {updates:,} updates each; {versions(first)}\n")
    found, table = gains_of(comparisons), []
    for role in ("teacher", "baseline"):
        models = [next(each for each in one.models if each.role == role) for one in comparisons]
        models = models[:1] if role == "teacher" else models
        scores = [[model.scores[metric].value for model in models] for metric in ("bleu", "chrf")]
        name = "labels alone" if role == "baseline" else role
        table.append((name, listed(scores[0]), f"{mean(scores[0]):.2f}", f"{mean(scores[1]):.2f}", "–"))
    for name, gain in found.items():
        shown = f"{mean(gain.gains):+.2f} ± {gain.half_interval:.2f}"
        table.append((name, listed(gain.bleu), f"{mean(gain.bleu):.2f}", f"{mean(gain.chrf):.2f}", shown))
    columns = ("taught by", "BLEU of each seed", "BLEU", "chrF2", "gain over labels alone, BLEU")
    side_by_side.print_table(columns, table)
    if args.json:
        print(json.dumps({"gain": {name: mean(gain.gains) for name, gain in found.items()}}))


def listed(values: Sequence[float]) -> str:
    """Numbers with two decimals."""
    return ", ".join(f"{value:.2f}" for value in values)


def versions(comparison: Comparison) -> str:
    """The metric's signature ends with sacreBLEU's version; the machine's part names torch's."""
    machine = comparison.machine
    return f"{comparison.signatures['bleu']}; {machine['device']}, torch {machine['torch']}"


if __name__ == "__main__":
    main()
