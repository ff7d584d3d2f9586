r"""The gain from pre-training: a model fine-tuned from its checkpoint and from scratch, by label count.

Trains the classifier of a configuration (finetune_reviews for encoders, finetune_gpt for decoders) from the
weights of a pre-trained folder, and one of the same shape, with the same tokenizer and options, from new
weights; the two take turns. With several `--learning-rates`, seed 0 is trained with each of them, on both
sides and for each number of labels; the rate that is best on the validation split trains the other seeds. The
table has accuracies on the test split, or else on the validation split; accuracies during training are on the
validation split. There is no peer.

    python benchmarks/finetune_from_pretrained.py --model runs/mlm --data path/to/movie_reviews

    python benchmarks/finetune_from_pretrained.py --model runs/mlm --data path/to/imdb \
        --labels 250 1000 5000 23000 --epochs 10 6 4 2 --learning-rates 5e-4 1e-3 2e-3 --picture gain.png

The texts are in the field `text`, their labels in `label`. Fields of the configuration can follow, such as
--max_length 256. Finished models are not trained again, so a stopped call can be repeated, and `--only`
shares the work between two processes.
"""

import argparse
import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from itertools import cycle
from math import hypot
from pathlib import Path
from statistics import mean, stdev

import torch
from transformers.utils import SAFE_WEIGHTS_NAME

import side_by_side
from vaswani.data.labels.labelled import LabelledSpec, load_labelled
from vaswani.files.run_files import EVALUATION_FILE
from vaswani.insight.curves import read_history
from vaswani.insight.figures import check_picture, new_figure, save_figure
from vaswani.insight.themes import BLUE, DASHES, ORANGE
from vaswani.training.config.config_file import load_config
from vaswani.training.config.finetuning_arguments import FinetuningConfig
from vaswani.training.runs.finetuning import finetune

BEGINNINGS = {"pre-trained": False, "from scratch": True}
COLOURS = {"pre-trained": BLUE, "from scratch": ORANGE}
SECONDS_FILE = "seconds.json"


@dataclass(frozen=True)
class Run:
    """One training.

    Args:
        begins: a name of `BEGINNINGS`.
        labels: number of training rows.
        epochs: passes over them; None: as in the configuration.
        rate: the learning rate; None: as in the configuration.
        seed: of the weights, the order of rows and dropout; the training rows are the same for all seeds.
    """

    begins: str
    labels: int
    epochs: float | None
    rate: float | None
    seed: int

    def folder(self, output: Path) -> Path:
        """Return the folder of the training."""
        rate = "" if self.rate is None else f"-{self.rate:g}"
        return output / f"{self.labels}" / f"{self.begins.replace(' ', '_')}{rate}-{self.seed}"

    def accuracies(self, output: Path) -> list[float]:
        """Return the accuracies on the validation split, during training and at its end."""
        return [
            entry["eval_accuracy"] for entry in read_history(self.folder(output)) if "eval_accuracy" in entry
        ]

    def accuracy(self, output: Path) -> tuple[float, float]:
        """Return the accuracy on the test split, with its standard error over the rows."""
        record = json.loads((self.folder(output) / EVALUATION_FILE).read_text())["metrics"]["accuracy"]
        return record["value"], (record["high"] - record["low"]) / (2 * side_by_side.HALF_INTERVAL)


@dataclass(frozen=True)
class Result:
    """Test accuracies of all seeds at one number of labels.

    Args:
        runs: one for each seed, with the same learning rate.
        values: their accuracies.
        error: the standard error of their mean, over rows and seeds.
    """

    runs: list[Run]
    values: list[float]
    error: float


def main() -> None:
    """Train the requested models that are missing; print one table once all exist."""
    args, more = parse_arguments()
    side_by_side.quiet()
    if args.picture:
        check_picture(args.picture)
    numbers = write_subsets(args)
    epochs_of = dict(zip(numbers, args.epochs or [None] * len(numbers), strict=True))
    options = {name: str(getattr(args, name)) for name in ("model", "config", "data", "quick")}
    for labels, epochs in epochs_of.items():
        side_by_side.check_options(args.output / f"{labels}", {**options, "epochs": epochs, "flags": more})
    results = {
        (begins, labels): result(args, begins, labels, epochs, more)
        for labels, epochs in epochs_of.items()
        for begins in args.only or BEGINNINGS
    }
    if len(results) == len(BEGINNINGS) * len(numbers):
        report(args, numbers, results)


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """Parse the command line; also return the remaining flags, which belong to the configuration."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--quick", action="store_true", help="show that it runs, with two updates each")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    parser.add_argument("--model", type=Path, required=True, help="folder of a pre-trained model")
    parser.add_argument("--config", default="finetune_reviews", help="configuration of the fine-tuning")
    parser.add_argument(
        "--data", required=True, help="folder of the labelled texts, or their name on the Hub"
    )
    parser.add_argument("--labels", type=int, nargs="+", help="numbers of training rows; default: all")
    parser.add_argument("--epochs", type=float, nargs="+", help="as many, for each number of rows")
    parser.add_argument("--learning-rates", type=float, nargs="+", help="to choose from", default=[None])
    parser.add_argument("--seeds", type=side_by_side.count, default=3)
    parser.add_argument("--only", nargs="+", choices=list(BEGINNINGS), help="train these alone")
    parser.add_argument("--picture", type=Path, help="PNG or SVG file for the two curves")
    parser.add_argument("--output", type=Path, default=Path("runs/finetune_from_pretrained"))
    args, more = side_by_side.parse_with_flags(parser)
    if not args.model.is_dir():
        parser.error(f"--model {args.model}: there is no such folder")
    if args.epochs and len(args.epochs) != len(args.labels or [None]):
        parser.error(f"{len(args.epochs)} --epochs for {len(args.labels or [None])} --labels")
    return args, more


# ------------------------------------------------------------------------------------------------ training


def write_subsets(args: argparse.Namespace) -> list[int]:
    """Write the training rows of each number of labels, of which smaller ones are part of larger ones."""
    splits = load_labelled(LabelledSpec(dataset=args.data)).splits
    shuffled = splits["train"].shuffle(seed=0)
    numbers = args.labels or [len(shuffled)]
    if max(numbers) > len(shuffled):
        sys.exit(f"--labels {max(numbers):,}: {args.data} has {len(shuffled):,} training rows")
    for number in numbers:
        folder = args.output / f"{number}" / "data"
        if not folder.exists():
            for name, split in {**splits, "train": shuffled.select(range(number))}.items():
                split.to_json(folder.with_suffix(".part") / f"{name}.jsonl", force_ascii=False)
            folder.with_suffix(".part").rename(folder)
    return numbers


def result(
    args: argparse.Namespace, begins: str, labels: int, epochs: float | None, more: list[str]
) -> Result:
    """The test accuracies of all seeds with the rate that the first one chooses on the validation split."""
    searched = [Run(begins, labels, epochs, rate, seed=0) for rate in args.learning_rates]
    for run in searched:
        train(args, run, more)
    best = max(searched, key=lambda run: run.accuracies(args.output)[-1:])
    others = [Run(begins, labels, epochs, best.rate, seed) for seed in range(1, args.seeds)]
    for run in others:
        train(args, run, more)
    scores = [run.accuracy(args.output) for run in (best, *others)]
    values = [value for value, _ in scores]
    over_seeds = stdev(values) / len(values) ** 0.5 if others else 0.0
    return Result([best, *others], values, hypot(mean(error for _, error in scores), over_seeds))


def train(args: argparse.Namespace, run: Run, more: list[str]) -> None:
    """Train one classifier, and save its scores and seconds, unless that is done."""
    folder = run.folder(args.output)
    if (folder / SECONDS_FILE).is_file() and (folder / SAFE_WEIGHTS_NAME).is_file():
        return
    fields = {
        "model": args.model,
        "from_scratch": BEGINNINGS[run.begins],
        "dataset": args.output / f"{run.labels}" / "data",
        "output_dir": folder,
        "seed": run.seed,
        "save_strategy": "no",
        **({} if run.rate is None else {"learning_rate": run.rate}),
    }
    if args.quick:
        fields["max_steps"] = 2
    elif run.epochs is not None:
        fields["num_train_epochs"] = run.epochs
    config = load_config(
        args.config, [*(f"--{name}={value}" for name, value in fields.items()), *more], FinetuningConfig
    )
    start = time.perf_counter()
    with redirect_stdout(sys.stderr):
        finetune(config)
    (folder / SECONDS_FILE).write_text(json.dumps(time.perf_counter() - start))


# ------------------------------------------------------------------------------------------------- results


def report(args: argparse.Namespace, numbers: list[int], results: dict[tuple[str, int], Result]) -> None:
    """A row for each number of labels and way to begin; the picture; and JSON."""
    table = []
    for labels in numbers:
        gain, width = gain_of(results, labels)
        for begins in BEGINNINGS:
            found = results[begins, labels]
            first, seconds = found.runs[0], mean(seconds_of(run, args.output) for run in found.runs)
            rate = "" if first.rate is None else f"{first.rate:g}"
            each = ", ".join(f"{value:.1f}" for value in found.values)
            compared = f"{gain:+.2f} ± {width:.2f}" if begins == "pre-trained" else ""
            on_the_way = ", ".join(f"{value:.1f}" for value in means_on_the_way(found.runs, args.output))
            table.append(
                (
                    f"{labels:,}",
                    begins,
                    rate,
                    each,
                    f"{mean(found.values):.2f}",
                    compared,
                    on_the_way,
                    f"{seconds:.0f}",
                )
            )
    record = json.loads((first.folder(args.output) / EVALUATION_FILE).read_text())
    setting = side_by_side.describe_setting(Path(args.data).name, [torch.get_num_threads()])
    print(f"{setting} · {record['rows']:,} rows of {record['split']}\n")
    columns = ("labels", "begins", "rate", "accuracy of each seed, %", "mean", "gain, 95 %")
    side_by_side.print_table((*columns, "means on the way", "seconds of a run"), table)
    if args.picture:
        draw(args, numbers, results)
    if args.json:
        gains = {str(labels): gain_of(results, labels) for labels in numbers}
        accuracies = {
            begins: {str(labels): results[begins, labels].values for labels in numbers}
            for begins in BEGINNINGS
        }
        print(json.dumps({"gains": gains, "accuracies": accuracies}))


def gain_of(results: dict[tuple[str, int], Result], labels: int) -> tuple[float, float]:
    """The difference of the two means, and half of its 95 % interval.

    The interval is wide: the errors of the two sides count as independent, though both are scored on the
    same rows.
    """
    ours, scratch = (results[begins, labels] for begins in BEGINNINGS)
    width = side_by_side.HALF_INTERVAL * hypot(ours.error, scratch.error)
    return mean(ours.values) - mean(scratch.values), width


def seconds_of(run: Run, output: Path) -> float:
    """Return the seconds of a training with its evaluations."""
    return float(json.loads((run.folder(output) / SECONDS_FILE).read_text()))


def means_on_the_way(runs: list[Run], output: Path) -> list[float]:
    """The mean accuracy of some runs at each evaluation."""
    return [mean(after) for after in zip(*(run.accuracies(output) for run in runs), strict=True)]


def draw(args: argparse.Namespace, numbers: list[int], results: dict[tuple[str, int], Result]) -> None:
    """Plot accuracy against the number of labels (left), and during each training (right)."""
    with new_figure((10.0, 4.0)) as figure:
        left, right = figure.subplots(1, 2)
        for begins, colour in COLOURS.items():
            found = [results[begins, labels] for labels in numbers]
            means = [mean(result.values) for result in found]
            errors = [side_by_side.HALF_INTERVAL * result.error for result in found]
            left.errorbar(numbers, means, errors, marker="o", capsize=3, color=colour, label=begins)
            for result, style in zip(found, cycle(DASHES), strict=False):
                after = means_on_the_way(result.runs, args.output)
                shares = [100 * (i + 1) / len(after) for i in range(len(after))]
                right.plot(shares, after, marker=".", color=colour, linestyle=style)
        left.set(xscale="log", xlabel="labels", ylabel="accuracy, %, with 95 % interval", title="test")
        left.set_xticks(numbers, [f"{number:,}" for number in numbers], minor=False)
        left.legend()
        right.set(xlabel="share of the training, %", ylabel="accuracy, %", title="validation")
        for labels, style in zip(numbers, cycle(DASHES), strict=False):
            right.plot([], [], color="grey", linestyle=style, label=f"{labels:,} labels")
        figure.legend(
            loc="outside lower right", ncols=len(numbers), handles=right.get_legend_handles_labels()[0]
        )
        for axes in (left, right):
            axes.grid()
    save_figure(figure, args.picture)


if __name__ == "__main__":
    main()
