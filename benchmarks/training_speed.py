"""Training speed: our model and trainer beside MarianMT of the same shape under the stock `Seq2SeqTrainer`.

    python benchmarks/training_speed.py [--data FILE|FOLDER] [--shape small base] [--bf16] [--quick] [--json]

Three trainings run side by side, each in a process of its own: MarianMT with the stock settings (random
batches of a fixed number of rows), MarianMT with length-grouped batches, and ours with token-budget batches.
They take turns on the machine, a few steps each, and only one runs at a time. All have the same corpus, the
same average number of real tokens per batch, dropout 0.1, label smoothing 0.1 and AdamW. Only real source and
target tokens count, without padding; loading, tokenizing and the first steps are not timed. The arithmetic of
the linear layers (padding included, 3 products each: forward, and backward for states and weights), compared
with the speed of one large product, shows how much faster training could be. With --bf16, all three train
under autocast to bfloat16, and ours a second time in float32.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from datasets import load_from_disk
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)
from transformers.trainer_callback import PrinterCallback

import side_by_side
from vaswani.data.batching import TokenBudgetBatchSampler
from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.pair_tokens import token_lengths
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.insight.arithmetic.calibration import matrix_peak

OURS, STOCK, GROUPED = "vaswani, token budget", "MarianMT, stock (random)", "MarianMT, length-grouped"
SIDES = (STOCK, GROUPED, OURS)
FLOAT32 = "vaswani, token budget, float32"  # beside three in bfloat16


@dataclass(frozen=True)
class Plan:
    """What each process trains, and its batch sizes."""

    folder: str
    shape: str
    threads: int
    max_tokens: int
    rows_per_batch: int
    steps: int
    bf16: bool = False

    @property
    def sides(self) -> tuple[str, ...]:
        """The trainings, in their order."""
        return (*SIDES, FLOAT32) if self.bf16 else SIDES


@dataclass
class Measurement:
    """Seconds, real tokens, padded tokens and floating-point operations of each turn of one training."""

    turns: list[tuple[float, int, int, int]] = field(default_factory=list)
    peak_memory: float = 0.0  # GiB, of the whole process

    @property
    def tokens_per_second(self) -> float:
        """Median over the turns."""
        return statistics.median(real / seconds for seconds, real, *_ in self.turns)

    @property
    def real_share(self) -> float:
        """Real tokens of all tokens, padding included."""
        return sum(turn[1] for turn in self.turns) / sum(turn[2] for turn in self.turns)

    @property
    def flops_per_second(self) -> float:
        """Of the linear layers; median over the turns."""
        return statistics.median(flops / seconds for seconds, *_, flops in self.turns)


def measure(plan: Plan, rounds: int) -> dict[str, Measurement]:
    """Let the trainings take turns; the first turn of each is warm-up."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for side in plan.sides:
        pipes[side], far_end = context.Pipe()
        processes.append(context.Process(target=work, args=(side, plan, far_end), daemon=True))
        processes[-1].start()
        far_end.close()
    measurements = {side: Measurement() for side in plan.sides}
    for side in plan.sides:
        pipes[side].recv()  # it is ready
    for turn in range(rounds + 1):
        for side in plan.sides:
            pipes[side].send(turn < rounds)  # whether there will be another turn
            result = pipes[side].recv()
            if turn:
                measurements[side].turns.append(result)
            print(".", end="", file=sys.stderr, flush=True)
    for side in plan.sides:
        measurements[side].peak_memory = pipes[side].recv()
    for process in processes:
        process.join()
    print(file=sys.stderr)
    return measurements


def work(side: str, plan: Plan, pipe: Connection) -> None:
    """Run one process: build the trainer of one side, and train in its turns."""
    side_by_side.quiet()
    torch.set_num_threads(plan.threads)
    trainer = build_trainer(side, plan)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(TakeTurns(trainer, plan.steps, pipe))
    trainer.train()
    pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


class TakeTurns(TrainerCallback):
    """Pauses the training after every few steps, reports them, and waits for the next turn."""

    def __init__(self, trainer: Seq2SeqTrainer, steps: int, pipe: Connection):
        self.steps, self.pipe = steps, pipe
        self.real = self.padded = self.flops = 0
        self.count_work(trainer)

    def count_work(self, trainer: Any) -> None:
        """Let the trainer's step count the tokens of its batch, and what they cost."""
        training_step = trainer.training_step

        def counting(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
            source, labels = inputs["attention_mask"], inputs["labels"]
            self.real += int(source.sum() + (labels != IGNORED_LABEL).sum())
            self.padded += source.numel() + labels.numel()
            self.flops += linear_flops(model.config, source.numel(), labels.numel())
            return training_step(model, inputs, *args)

        trainer.training_step = counting

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the first turn."""
        self.pipe.send("ready")
        self._wait()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """At the end of a turn: report it, and wait for the next turn."""
        if state.global_step % self.steps == 0:
            self.pipe.send((time.perf_counter() - self.start, self.real, self.padded, self.flops))
            if self.more_to_come:
                self._wait()
            else:
                control.should_training_stop = True

    def _wait(self) -> None:
        self.more_to_come = self.pipe.recv()
        self.real = self.padded = self.flops = 0
        self.start = time.perf_counter()


def linear_flops(config: Any, source_tokens: int, target_tokens: int) -> int:
    """Of all linear layers in one step: 2 per weight and token, three times."""
    width = config.d_model
    encoder_layer = 4 * width**2 + 2 * width * config.encoder_ffn_dim
    decoder_layer = 6 * width**2 + 2 * width * config.decoder_ffn_dim  # all but the source's keys and values
    per_source = config.encoder_layers * encoder_layer + config.decoder_layers * 2 * width**2
    per_target = config.decoder_layers * decoder_layer + config.decoder_vocab_size * width
    return 6 * (source_tokens * per_source + target_tokens * per_target)


def build_trainer(side: str, plan: Plan, **changes: Any) -> Seq2SeqTrainer:
    """The trainer of one side; what is not named here, or changed, stays at each trainer's default."""
    tokenizer, _ = load_tokenizers(plan.folder)
    rows = load_from_disk(plan.folder)
    arguments: dict[str, Any] = {
        "output_dir": plan.folder,
        "max_steps": 10**6,
        "learning_rate": 1e-4,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
        "label_smoothing_factor": 0.1,
        "bf16": plan.bf16 and side != FLOAT32,
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        **changes,
    }
    if side in (OURS, FLOAT32):
        arguments["max_tokens_per_batch"] = plan.max_tokens
        return side_by_side.our_trainer(plan.shape, tokenizer, rows, arguments)
    arguments["per_device_train_batch_size"] = plan.rows_per_batch
    arguments["train_sampling_strategy"] = "group_by_length" if side == GROUPED else "random"
    ours = side_by_side.our_model(plan.shape, len(tokenizer), arguments.get("seed", 0))
    model = side_by_side.marian_twin(ours)
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(**arguments),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


def rows_per_batch(source: np.ndarray, target: np.ndarray, max_tokens: int) -> int:
    """The batch size with as many real tokens as the average batch of the token budget."""
    batches = len(TokenBudgetBatchSampler(source, target, max_tokens))
    return max(1, round(len(source) / batches))


def table_rows(shape: str, results: dict[str, Measurement]) -> list[tuple[str, ...]]:
    """One row per training."""
    ours = results[OURS].tokens_per_second
    return [
        (
            side_by_side.describe_shape(side_by_side.our_config(shape)),
            side,
            f"{result.tokens_per_second:,.0f}",
            f"{ours / result.tokens_per_second:.2f}",
            f"{1 - result.real_share:.0%}",
            f"{result.flops_per_second / 1e9:.0f}",
            f"{result.peak_memory:.1f}",
        )
        for side, result in results.items()
    ]


def smallest_ratio(results: dict[str, dict[str, Measurement]], side: str) -> float:
    """How many times faster ours is than `side`, at the shape where that is least."""
    ratios = (r[OURS].tokens_per_second / r[side].tokens_per_second for r in results.values())
    return round(min(ratios), 3)


@contextmanager
def saved(corpus: side_by_side.TokenizedCorpus) -> Iterator[str]:
    """A folder with the rows of training and the tokenizers, from which trainers are built."""
    with tempfile.TemporaryDirectory() as folder:
        corpus.train.save_to_disk(folder)
        save_tokenizers(corpus.tokenizer, corpus.tokenizer, folder)
        yield folder


def training_arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that name a corpus and its trainings."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--max-tokens", type=int, default=4096, help="token budget of our batches")
    parser.add_argument("--quick", action="store_true", help="a tiny model and a few updates: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = training_arguments(__doc__)
    parser.add_argument("--shape", nargs="+", choices=side_by_side.SHAPES, default=["small", "base"])
    parser.add_argument(
        "--rounds", type=side_by_side.count, default=7, help="turns of each training that are timed"
    )
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16, on all sides")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.max_tokens, args.rounds = ["tiny"], 512, 2
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    side_by_side.quiet()
    corpus = side_by_side.load_tokens(args)
    rows = rows_per_batch(*token_lengths(corpus.train), args.max_tokens)
    torch.set_num_threads(args.threads)
    results, peak = {}, matrix_peak(torch.device("cpu"))
    with saved(corpus) as folder:
        for shape in args.shape:
            steps = 1 if shape == "base" else 4
            plan = Plan(folder, shape, args.threads, args.max_tokens, rows, steps, args.bf16)
            results[shape] = measure(plan, args.rounds)

    dtype = "bf16" if args.bf16 else "fp32"
    print(side_by_side.describe_setting(corpus.name, [args.threads], dtype))
    print(f"batches of {args.max_tokens} tokens, padding included (vaswani), or {rows} rows (MarianMT)")
    print(f"a large matrix product runs at {peak / 1e9:.0f} GFLOP/s here\n")
    columns = ("real tokens/s", "vaswani: × faster", "padding", "linear layers, GFLOP/s", "peak memory, GiB")
    side_by_side.print_table(
        ("shape", "training", *columns),
        [row for shape in args.shape for row in table_rows(shape, results[shape])],
    )
    if args.json:
        ratios = {"ratio_vs_stock": STOCK, "ratio_vs_length_grouped": GROUPED}
        print(json.dumps({name: smallest_ratio(results, side) for name, side in ratios.items()}))


if __name__ == "__main__":
    main()
