"""Where an update of our trainer spends its time, part by part, beside the arithmetic that each part needs.

    python benchmarks/training_profile.py [--data FILE|FOLDER] [--shape small ...] [--bf16] [--quick] [--json]

PyTorch's profiler times the operators of some updates after the first ones; an operator counts as a part of
the one that called it. `Python between operators` is the rest of the time. The operations and bytes of a
part are computed from the shapes, not measured: the products of linear layers and of attention, and the
fewest bytes that a pass over the states or the weights can take. The peaks are measured with large products
and large copies. The profiler itself takes about a microsecond per operator.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

import side_by_side
from training_speed import OURS, Plan, build_trainer, linear_flops
from vaswani.data.tokenization import save_tokenizers
from vaswani.insight.arithmetic.calibration import copy_bandwidth, matrix_peak

WARM_UP = 4  # updates
BACKWARD = "autograd::engine::evaluate_function: "

# What the name of an outermost operator begins with, and the part that it belongs to; the first that fits.
PARTS = (
    ("_LinearCrossEntropy", "output projection and loss"),
    (f"{BACKWARD}_LinearCrossEntropy", "output projection and loss"),
    (f"{BACKWARD}_Linear", "linear layers, backward"),
    (f"{BACKWARD}_Product", "linear layers, backward"),
    (f"{BACKWARD}_HalfLinear", "linear layers, backward"),
    (f"{BACKWARD}Addmm", "linear layers, backward"),
    ("_Linear", "linear layers, forward"),
    ("_Product", "linear layers, forward"),
    ("_HalfLinear", "linear layers, forward"),
    ("aten::linear", "linear layers, forward"),
    ("_ShortAttention", "attention"),
    ("_NativeAttention", "attention"),
    ("aten::scaled_dot_product_attention", "attention"),
    (f"{BACKWARD}_ShortAttention", "attention"),
    (f"{BACKWARD}_NativeAttention", "attention"),
    (f"{BACKWARD}ScaledDotProduct", "attention"),
    ("_Dropout", "dropout"),
    (f"{BACKWARD}_Dropout", "dropout"),
    ("aten::layer_norm", "layer norm"),
    (f"{BACKWARD}NativeLayerNorm", "layer norm"),
    ("aten::embedding", "embeddings"),
    (f"{BACKWARD}Embedding", "embeddings"),
    ("Optimizer.", "optimizer"),
    ("aten::_foreach_", "gradient norm and clipping"),
    ("aten::linalg_vector_norm", "gradient norm and clipping"),
    ("enumerate(DataLoader)", "batches"),
    (BACKWARD, "other operators, backward"),
    ("", "other operators, forward"),
)


@dataclass
class Profile:
    """The seconds, operations and bytes of each part in one update of one shape."""

    seconds: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)  # bytes

    def count(self, config: Any, source: torch.Size, target: torch.Size, share: float) -> None:
        """Add the operations and bytes of one batch, times its share in the average."""
        rows, length = source
        width, tokens = config.d_model, (source.numel(), target.numel())
        logits = 6 * tokens[1] * width * config.decoder_vocab_size
        layers = linear_flops(config, *tokens) - logits
        pairs = config.encoder_layers * length**2 + config.decoder_layers * target[1] * (target[1] + length)
        norms = 2 * config.encoder_layers * tokens[0] + 3 * config.decoder_layers * tokens[1]
        for part, flops in (
            ("output projection and loss", logits),
            ("linear layers, forward", layers / 3),
            ("linear layers, backward", layers * 2 / 3),
            ("attention", 12 * rows * width * pairs),  # 2 products forward, 4 backward
        ):
            self.flops[part] += share * flops
        self.moved["dropout"] += (
            share * 18 * width * (norms + sum(tokens))
        )  # states in and out, a byte of mask
        self.moved["layer norm"] += share * 20 * width * norms  # 2 numbers forward, 3 backward

    def count_weights(self, number: int) -> None:
        """Add the bytes that each update of the weights moves."""
        self.moved["optimizer"] = 28 * number  # weight, gradient and two means in; all but the gradient out
        self.moved["gradient norm and clipping"] = 12 * number


class ProfileUpdates(TrainerCallback):
    """Profiles some updates after the first ones, and ends the training."""

    def __init__(self, trainer: Any, updates: int):
        self.trainer, self.updates, self.result = trainer, updates, Profile()
        self.profiler = profile(activities=[ProfilerActivity.CPU])
        self.is_profiling = False
        self._watch_batches()

    def _watch_batches(self) -> None:
        training_step = self.trainer.training_step

        def counting(model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: Any) -> torch.Tensor:
            if self.is_profiling:
                shapes = inputs["input_ids"].shape, inputs["labels"].shape
                self.result.count(model.config, *shapes, 1 / self.updates)
            return training_step(model, inputs, *args)

        self.trainer.training_step = counting

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start and stop the profiler."""
        if state.global_step == WARM_UP:
            self.is_profiling = True
            self.profiler.start()
            self.start = time.perf_counter()
        elif state.global_step == WARM_UP + self.updates:
            seconds = time.perf_counter() - self.start
            self.profiler.stop()
            control.should_training_stop = True
            self.result.count_weights(sum(weight.numel() for weight in self.trainer.model.parameters()))
            parts = self.result.seconds
            for event in self.profiler.events():
                if event.cpu_parent is None and not event.name.startswith("Profiler"):
                    part = next(part for start, part in PARTS if event.name.startswith(start))
                    parts[part] += event.cpu_time_total / 1e6 / self.updates
            parts["Python between operators"] = seconds / self.updates - parts.total()


def profile_updates(plan: Plan, updates: int) -> Profile:
    """Train one shape and profile it."""
    trainer = build_trainer(OURS, plan)
    trainer.remove_callback(PrinterCallback)
    callback = ProfileUpdates(trainer, updates)
    trainer.add_callback(callback)
    trainer.train()
    return callback.result


def table_rows(shape: str, found: Profile, peak: float, bandwidth: float) -> list[tuple[str, ...]]:
    """One row per part, the longest first, and their sum."""
    name, total = side_by_side.describe_shape(side_by_side.our_config(shape)), found.seconds.total()
    rows = []
    for part, seconds in found.seconds.most_common():
        flops, moved = found.flops[part], found.moved[part]
        work = rate = share = "–"
        if flops:
            work, rate = f"{flops / 1e9:.2f} GFLOP", f"{flops / seconds / 1e9:.0f} GFLOP/s"
            share = f"{flops / seconds / peak:.0%}"
        elif moved:
            work, rate = f"{moved / 1e9:.3f} GB", f"{moved / seconds / 1e9:.1f} GB/s"
            share = f"{moved / seconds / bandwidth:.0%}"
        rows.append((name, part, f"{seconds * 1e3:.1f}", f"{seconds / total:.1%}", work, rate, share))
    flops = sum(found.flops.values())
    last = (f"{flops / 1e9:.2f} GFLOP", f"{flops / total / 1e9:.0f} GFLOP/s", f"{flops / total / peak:.0%}")
    return [*rows, (name, "the update", f"{total * 1e3:.1f}", "100.0%", *last)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--shape", nargs="+", choices=side_by_side.SHAPES, default=["small", "base"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--max-tokens", type=int, default=4096, help="token budget of a batch")
    parser.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    parser.add_argument(
        "--updates", type=side_by_side.count, default=20, help="that are profiled, after the first ones"
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model and two updates: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.max_tokens, args.updates = ["tiny"], 512, 2
    side_by_side.quiet()
    torch.set_num_threads(args.threads)
    corpus = side_by_side.load_tokens(args)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    peak, bandwidth = matrix_peak(torch.device("cpu"), dtype), copy_bandwidth()
    with tempfile.TemporaryDirectory() as folder:
        corpus.train.save_to_disk(folder)
        save_tokenizers(corpus.tokenizer, corpus.tokenizer, folder)
        plans = {
            shape: Plan(folder, shape, args.threads, args.max_tokens, 1, 1, args.bf16) for shape in args.shape
        }
        found = {shape: profile_updates(plan, args.updates) for shape, plan in plans.items()}

    print(side_by_side.describe_setting(corpus.name, [args.threads], "bf16" if args.bf16 else "fp32"))
    print(f"peaks: {peak / 1e9:.0f} GFLOP/s in a large product, {bandwidth / 1e9:.1f} GB/s in a large copy\n")
    side_by_side.print_table(
        ("shape", "part", "ms", "share", "arithmetic or bytes", "reached", "of the peak"),
        [row for shape in args.shape for row in table_rows(shape, found[shape], peak, bandwidth)],
    )
    if args.json:
        print(json.dumps({shape: dict(each.seconds) for shape, each in found.items()}))


if __name__ == "__main__":
    main()
