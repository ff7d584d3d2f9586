"""Measure the time of each stage of sparse attention on the CPU.

    python benchmarks/sparse_profile.py [--length N] [--block-size B]

One sequence, 8 heads of width 64, float32, forward and backward on one thread, on which the kernel runs as it
does on each of several. The kernel's own clock tells its stages apart; what PyTorch does around it is the
rest of the time that passes. Medians of five steps, after one of warm-up.
"""

import argparse
import statistics
import time

import torch

import side_by_side
from sparse_attention import HEADS, OURS, Setting, flops, our_pattern, prepare
from vaswani.kernels import sparse_native
from vaswani.kernels.sparse_short import shows_everything

STAGES = ("matrix products", "softmax and its gradient", "transposing, zeros and scaling")
REST = "around the kernel: new memory, calls"
STEPS = 5


def seconds_by_stage(setting: Setting) -> dict[str, float]:
    """Return the seconds of each stage of one step; the last is the rest of the time."""
    taken: dict[str, list[float]] = {stage: [] for stage in (*STAGES, REST)}
    for turn in range(STEPS + 1):
        step = prepare(setting)
        sparse_native.stage_seconds = seconds = torch.zeros(len(STAGES), dtype=torch.float64)
        start = time.perf_counter()
        step()
        total = time.perf_counter() - start
        if turn:
            for stage, spent in zip(STAGES, seconds.tolist(), strict=True):
                taken[stage].append(spent)
            taken[REST].append(total - seconds.sum().item())
    sparse_native.stage_seconds = None
    return {stage: statistics.median(times) for stage, times in taken.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--block-size", type=int, default=64)
    args = parser.parse_args()
    side_by_side.quiet()
    torch.set_num_threads(1)
    setting = Setting(OURS, args.block_size, args.length)
    if shows_everything(our_pattern(args.block_size), args.length):
        raise SystemExit(
            f"{args.length} tokens in blocks of {args.block_size} all see each other; raise --length."
        )
    if sparse_native.library() is None:
        raise SystemExit(
            "There is no kernel here to profile, as it takes a C++ compiler; try installing g++."
        )
    seconds = seconds_by_stage(setting)

    print(side_by_side.describe_setting("random numbers", [1]))
    print(f"{args.length:,} tokens, {HEADS} heads, blocks of {our_pattern(args.block_size).block_size}")
    rate = flops(setting) / seconds["matrix products"] / 1e9
    print(f"the products run at {rate:.0f} GFLOP/s\n")
    total = sum(seconds.values())
    side_by_side.print_table(
        ("what", "ms", "share"),
        [(what, f"{1e3 * spent:,.0f}", f"{spent / total:.0%}") for what, spent in seconds.items()],
    )


if __name__ == "__main__":
    main()
