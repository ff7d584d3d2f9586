"""Where the time of sparse attention goes on the CPU.

    python benchmarks/sparse_profile.py [--length N] [--block-size B]

One sequence, 8 heads of width 64, float32, forward and backward on one thread, on which the kernel runs as it
does on each of several. The operators of PyTorch are added up by what they are for; what remains is calling
them, Python included.
"""

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

import side_by_side
from sparse_attention import HEADS, OURS, Setting, flops, our_pattern, prepare
from vaswani.model.sparse_fused import fastest_way

PURPOSES = {
    "matrix products": ("aten::bmm", "aten::baddbmm"),
    "softmax and its gradient": tuple(
        f"aten::{name}" for name in ("amax", "sub_", "exp2_", "sum", "div_", "mul", "mul_")
    ),
    "gathering keys and values": ("aten::index_select", "aten::index"),
    "adding up the gradients of keys and values": ("aten::index_add_", "aten::scatter_add_"),
    "copies and zeros": ("aten::copy_", "aten::fill_", "aten::zero_"),
}
REST = "calling the operators, and all else"


def seconds_by_purpose(setting: Setting) -> dict[str, float]:
    """Of one step, after one of warm-up; the last is the rest of all."""
    step = prepare(setting)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = {event.key: event.self_cpu_time_total / 1e6 for event in profiler.key_averages()}
    seconds = {purpose: sum(events.get(name, 0.0) for name in names) for purpose, names in PURPOSES.items()}
    return {**seconds, REST: sum(events.values()) - sum(seconds.values())}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--block-size", type=int, default=64)
    args = parser.parse_args()
    side_by_side.quiet()
    torch.set_num_threads(1)
    setting = Setting(OURS, args.block_size, args.length)
    if fastest_way(our_pattern(args.block_size), args.length) is not None:
        raise SystemExit(
            f"{args.length} tokens in blocks of {args.block_size} go to fused attention; raise --length."
        )
    seconds = seconds_by_purpose(setting)

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
