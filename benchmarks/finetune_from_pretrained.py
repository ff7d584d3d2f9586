"""What pre-training is worth: one encoder fine-tuned from its checkpoint and from scratch, with some seeds.

Trains the classifier of the configuration finetune_reviews from the weights of a pre-trained folder, and one
of the same shape, with the same tokenizer and options, from new weights; the two take turns, seed by seed.
The accuracies are of the test split, or else of the validation split, by which nothing was chosen; those
on the way, after each epoch, are of the validation split. There is no peer.

    python benchmarks/finetune_from_pretrained.py --model runs/mlm --data path/to/movie_reviews

Fields of the configuration can follow, such as --num_train_epochs 3. What is there is not trained again.
"""

import argparse
import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean, stdev

import torch
from transformers.utils import SAFE_WEIGHTS_NAME

import side_by_side
from vaswani.files.run_files import EVALUATION_FILE
from vaswani.insight.curves import read_history
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.finetuning import finetune

CONFIG = "finetune_reviews"
BEGINNINGS = {"pre-trained": False, "from scratch": True}
SECONDS_FILE = "seconds.json"


def main() -> None:
    """Train what is missing, and print one table."""
    args, more = parse_arguments()
    side_by_side.quiet()
    for seed in range(args.seeds):
        for name, from_scratch in BEGINNINGS.items():
            train(args, folder_of(args, name, seed), from_scratch, seed, more)
    report(args)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Flags of the command line, and those of the configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--model", type=Path, required=True, help="folder of a pre-trained encoder")
    parser.add_argument(
        "--data", required=True, help="folder of the labelled texts, or their name on the Hub"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/finetune_from_pretrained"))
    return parser.parse_known_args()


def folder_of(args: argparse.Namespace, name: str, seed: int) -> Path:
    """Where a run lies."""
    return args.output / f"{name.replace(' ', '_')}-{seed}"


def train(args: argparse.Namespace, folder: Path, from_scratch: bool, seed: int, more: list[str]) -> None:
    """One classifier with its scores and the seconds that it took, unless it is there."""
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        return
    fields = {
        "model": args.model,
        "from_scratch": from_scratch,
        "dataset": args.data,
        "output_dir": folder,
        "seed": seed,
        "save_strategy": "no",
        **({"max_steps": 2} if args.quick else {}),
    }
    config = load_config(
        CONFIG, [*(f"--{name}={value}" for name, value in fields.items()), *more], FinetuningConfig
    )
    start = time.perf_counter()
    with redirect_stdout(sys.stderr):
        finetune(config)
    (folder / SECONDS_FILE).write_text(json.dumps(time.perf_counter() - start))


def report(args: argparse.Namespace) -> None:
    """A row for each way to begin."""
    table, accuracies = [], {}
    for name in BEGINNINGS:
        folders = [folder_of(args, name, seed) for seed in range(args.seeds)]
        records = [json.loads((folder / EVALUATION_FILE).read_text()) for folder in folders]
        accuracies[name] = [record["metrics"]["accuracy"]["value"] for record in records]
        seconds = mean(json.loads((folder / SECONDS_FILE).read_text()) for folder in folders)
        table.append((name, *summary(accuracies[name]), on_the_way(folders), f"{seconds:.0f}"))
    setting = side_by_side.describe_setting(Path(args.data).name, [torch.get_num_threads()])
    print(f"{setting} · {records[0]['rows']:,} rows of {records[0]['split']}\n")
    side_by_side.print_table(
        (
            "begins",
            "accuracy of each seed, %",
            "mean",
            "deviation",
            "means after each epoch",
            "seconds of a run",
        ),
        table,
    )
    if args.json:
        gain = mean(accuracies["pre-trained"]) - mean(accuracies["from scratch"])
        print(json.dumps({"gain": gain, "accuracies": accuracies}))


def summary(accuracies: list[float]) -> tuple[str, str, str]:
    """Each accuracy, their mean and their deviation."""
    deviation = stdev(accuracies) if len(accuracies) > 1 else 0.0
    each = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies)
    return each, f"{mean(accuracies):.2f}", f"{deviation:.2f}"


def on_the_way(folders: list[Path]) -> str:
    """The mean accuracy of some runs after each epoch, on the validation split."""
    runs = [
        [entry["eval_accuracy"] for entry in read_history(folder) if "eval_accuracy" in entry]
        for folder in folders
    ]
    return ", ".join(f"{mean(after):.1f}" for after in zip(*runs, strict=True))


if __name__ == "__main__":
    main()
