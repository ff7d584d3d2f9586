"""Does faster training learn as much? The trainings of `training_speed.py`, update by update.

    python benchmarks/equal_learning.py --data path/to/multi30k [--seeds 3] [--steps 1200] [--picture FILE]

MarianMT under the stock `Seq2SeqTrainer` (random and length-grouped batches) and ours begin with the same
weights and have the same average number of real tokens per batch, dropout, label smoothing, optimizer and
schedule. The loss of held-out texts, per token and without label smoothing, is computed by the same function
for all, several times during training. Differences to ours pair trainings with the same seed, with 1.96
standard errors.

The fourth training is ours with as many updates as fit into the time of the stock training (measured with the
first seed), and a schedule of that length. "Time to its loss" is the time that it took to reach the other
training's final loss (interpolated linearly between evaluations), as a share of the other training's time.

Trainings run one after the other; seconds leave out loading and evaluation.

Finished trainings in `--output` are not repeated; with other options, they are refused.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_callback import PrinterCallback

import side_by_side
from training_speed import OURS, SIDES, STOCK, Plan, build_trainer, rows_per_batch, saved, training_arguments
from vaswani.data.collation import IGNORED_LABEL, Seq2SeqCollator
from vaswani.data.pair_tokens import token_lengths
from vaswani.files.atomic_files import write_json
from vaswani.files.json_files import finite_json, without_non_finite
from vaswani.insight.figures import check_picture, new_figure, save_figure, write_plain_numbers
from vaswani.insight.themes import LINES

HELD_OUT = 1_000  # rows
ROWS_AT_A_TIME = 50
LONGER = "vaswani, as long as stock"
TRAININGS = (*SIDES, LONGER)
OPTIONS = (
    *("data", "source_field", "target_field", "shape", "steps", "evaluations"),
    *("learning_rate", "max_tokens", "threads"),
)
COLOURS = dict(zip(TRAININGS, LINES, strict=False))


@dataclass
class Learning:
    """The evaluations of one training: update, loss and seconds so far."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of held-out texts, nats per token
    seconds: list[float] = field(default_factory=list)


class Watch(TrainerCallback):
    """Computes the loss of held-out texts after every few updates, and stops the clock meanwhile."""

    def __init__(self, held_out: list[dict[str, torch.Tensor]], every: int):
        self.held_out, self.every, self.learning = held_out, every, Learning()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.spent, self.start = 0.0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate."""
        if state.global_step % self.every:
            return
        self.spent += time.perf_counter() - self.start
        self.learning.steps.append(state.global_step)
        self.learning.seconds.append(self.spent)
        self.learning.losses.append(loss_of(kwargs["model"], self.held_out))
        print(f" {self.learning.losses[-1]:.3f}", end="", file=sys.stderr, flush=True)
        self.start = time.perf_counter()


@torch.no_grad()
def loss_of(model: PreTrainedModel, batches: Iterable[dict[str, torch.Tensor]]) -> float:
    """The cross-entropy per target token, without label smoothing, in nats."""
    training, total, tokens = model.training, 0.0, 0
    model.eval()
    for batch in batches:
        inputs = {name: ids for name, ids in batch.items() if name != "labels"}
        logits, labels = model(**inputs).logits, batch["labels"]
        total += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
            )
        )
        tokens += int((labels != IGNORED_LABEL).sum())
    model.train(training)
    return total / tokens


def held_out_batches(corpus: side_by_side.TokenizedCorpus) -> list[dict[str, torch.Tensor]]:
    """Padded batches of rows of the last split."""
    rows = corpus.test.select(range(min(HELD_OUT, len(corpus.test)))).to_list()
    collator = Seq2SeqCollator(corpus.tokenizer.pad_token_id, corpus.tokenizer.bos_token_id)
    return [collator(rows[first : first + ROWS_AT_A_TIME]) for first in range(0, len(rows), ROWS_AT_A_TIME)]


def learn(
    args: argparse.Namespace,
    plan: Plan,
    training: str,
    seed: int,
    steps: int,
    held_out: list[dict[str, torch.Tensor]],
) -> Learning:
    """Train with one seed, or read the result of an earlier training."""
    file = args.output / f"{TRAININGS.index(training)}-{seed}.json"
    if file.exists():
        return Learning(**json.loads(file.read_text()))
    print(f"{training}, seed {seed}:", end="", file=sys.stderr, flush=True)
    changes = {
        "max_steps": steps,
        "learning_rate": args.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": steps // 8,
        "seed": seed,
    }
    trainer = build_trainer(OURS if training == LONGER else training, plan, **changes)
    trainer.remove_callback(PrinterCallback)
    watch = Watch(held_out, max(1, steps // args.evaluations))
    trainer.add_callback(watch)
    trainer.train()
    print(file=sys.stderr)
    write_json(file, asdict(watch.learning))
    return watch.learning


def time_to_loss(ours: Learning, other: Learning) -> float:
    """Return our time to the other's final loss as a share of the other's time; NaN if it is not reached."""
    goal, before = other.losses[-1], (0.0, float("inf"))
    for seconds, loss in zip(ours.seconds, ours.losses, strict=True):
        if loss <= goal:
            share = 1.0 if before[1] == float("inf") else (before[1] - goal) / (before[1] - loss)
            return (before[0] + share * (seconds - before[0])) / other.seconds[-1]
        before = (seconds, loss)
    return float("nan")


def report(args: argparse.Namespace, found: dict[str, list[Learning]]) -> None:
    """A row for each training; the picture; and JSON."""
    ours, rows, results = found[OURS], [], {}
    for side, learnings in found.items():
        steps = learnings[0].steps
        shown = sorted({max(0, round((i + 1) * len(steps) / 4) - 1) for i in range(4)})
        means = [mean(losses) for losses in zip(*(each.losses for each in learnings), strict=True)]
        gaps = [each.losses[-1] - our.losses[-1] for each, our in zip(learnings, ours, strict=True)]
        width = side_by_side.HALF_INTERVAL * stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else float("nan")
        seconds = mean(each.seconds[-1] for each in learnings)
        share = mean(time_to_loss(our, each) for our, each in zip(found[LONGER], learnings, strict=True))
        results[side] = {
            "updates": steps,
            "losses": means,
            "difference": [mean(gaps), width],
            "time_to_its_loss": share,
        }
        gap = "" if side == OURS else f"{mean(gaps):+.3f} ± {width:.3f}"
        reached = "" if side == LONGER else f"{share:.2f}" if isfinite(share) else "–"
        curve = ", ".join(f"{means[i]:.3f}" for i in shown)
        rows.append((side, f"{steps[-1]:,}", curve, gap, f"{seconds:.0f}", reached))
    print(f"held-out loss after each quarter of the updates, mean of {args.seeds} seeds\n")
    columns = ("training", "updates", "loss", "last, minus ours", "seconds", "time to its loss")
    side_by_side.print_table(columns, rows)
    if args.picture:
        draw(args.picture, found)
    if args.json:
        print(finite_json(without_non_finite(results)))


def draw(file: Path, found: dict[str, list[Learning]]) -> None:
    """Loss against updates on the left, against time on the right; a line for each seed."""
    with new_figure((10.0, 4.0)) as figure:
        left, right = figure.subplots(1, 2)
        for side, learnings in found.items():
            for number, each in enumerate(learnings):
                label = side if number == 0 else None
                left.plot(each.steps, each.losses, color=COLOURS[side], marker=".", label=label)
                right.plot(each.seconds, each.losses, color=COLOURS[side], marker=".")
        left.set(xlabel="updates", ylabel="loss of held-out texts, nats per token")
        right.set(xlabel="seconds", xscale="log")
        write_plain_numbers(right.xaxis)
        left.legend()
        for axes in (left, right):
            axes.grid()
    save_figure(figure, file)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = training_arguments(__doc__)
    parser.add_argument("--shape", choices=side_by_side.SHAPES, default="small")
    parser.add_argument("--steps", type=int, default=1200, help="updates of each training")
    parser.add_argument(
        "--evaluations", type=side_by_side.count, default=12, help="evaluations of each training"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=1e-3, help="at the peak, after 1/8 of the updates"
    )
    parser.add_argument("--seeds", type=side_by_side.count, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/equal_learning"))
    parser.add_argument("--picture", type=Path, help="PNG or SVG file for the curves")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.max_tokens, args.steps, args.evaluations, args.seeds = "tiny", 512, 4, 4, 2
    return args


def main() -> None:
    """Train what is missing, one after the other; print the table."""
    args = parse_arguments()
    side_by_side.quiet()
    if args.picture:
        check_picture(args.picture)
    side_by_side.check_options(args.output, {name: getattr(args, name) for name in OPTIONS})
    corpus = side_by_side.load_tokens(args)
    rows = rows_per_batch(*token_lengths(corpus.train), args.max_tokens)
    torch.set_num_threads(args.threads)
    with saved(corpus) as folder:
        plan = Plan(folder, args.shape, args.threads, args.max_tokens, rows, steps=0)
        held_out = held_out_batches(corpus)
        found: dict[str, list[Learning]] = {training: [] for training in TRAININGS}
        for seed in range(args.seeds):
            for side in SIDES:
                found[side].append(learn(args, plan, side, seed, args.steps, held_out))
        pace = found[STOCK][0].seconds[-1] / found[OURS][0].seconds[-1]
        steps = max(1, round(args.steps * pace / args.evaluations)) * args.evaluations
        for seed in range(args.seeds):
            found[LONGER].append(learn(args, plan, LONGER, seed, steps, held_out))
    print(side_by_side.describe_setting(corpus.name, [args.threads]))
    report(args, found)


if __name__ == "__main__":
    main()
