"""Sparse attention: ours beside dense attention and the sparse attentions of transformers.

    python benchmarks/sparse_attention.py [--lengths N ...] [--block-sizes B ...] [--quick] [--json]

Forward and backward, float32, batch 1, 8 heads of width 64; our pattern has a window of 3 blocks, 2 global
blocks and 3 random ones for each query block. All take turns: after a round of warm-up, each round measures
every method once at every length (slow ones three times in all). Inputs, masks and biases are made
before the clock starts.

The benchmark compares attention cores, functions of queries, keys and values without projections. One
exception: LongT5's transient-global attention also projects the sums of its blocks and is measured with its
projections. BigBird runs in training mode, because in evaluation its random blocks are all zero; the time
includes drawing them in each call. The encoder layers (d 512, feed-forward 2048) are built here, around dense
and our attention, and compared with each other.

The ideal speedup over dense attention is the ratio of their operations; the share of ideal is the part of it
that is reached. Peak memory is what one forward and backward pass adds in a process of its own, in
which only the inputs were made before.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import BigBirdConfig, BigBirdModel, LongformerConfig, LongT5Config
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.longt5 import modeling_longt5 as longt5

import side_by_side
from vaswani.insight.arithmetic.visible_pairs import visible_pairs
from vaswani.insight.figures import check_picture, new_figure, save_figure, write_plain_numbers
from vaswani.kernels.registry import hook_in_kernels
from vaswani.kernels.sparse_attention import sparse_attention
from vaswani.model.sparse_pattern import SparsePattern

HEADS, WIDTH, D_MODEL, FFN_DIM = 8, 64, 512, 2048
RANDOM_BLOCKS = 3
BIGBIRD_BLOCK = 64
WINDOW = 512  # keys of each query in Longformer and LongT5: as many as we see at block 64
LONG = 2.0  # seconds; what takes longer is measured LONG_ROUNDS times at most
LONG_ROUNDS = 3

OURS, DENSE, BIGBIRD = "vaswani", "dense SDPA", "BigBird, transformers"
LONGFORMER, LOCAL = f"Longformer, window {WINDOW}", f"LongT5 local, radius {WINDOW // 2 - 1}"
TRANSIENT = "LongT5 transient-global, with its projections"  # of the same radius
OUR_LAYER, DENSE_LAYER = "encoder layer, vaswani", "encoder layer, dense SDPA"
DENSE_TWIN = {OUR_LAYER: DENSE_LAYER, DENSE_LAYER: DENSE_LAYER}  # of all others, it is DENSE

IMPORTED = [  # by the first of the processes that measure memory, before the others part from it
    "datasets",
    "vaswani.training.trainer.seq2seq",
    "transformers.models.big_bird.modeling_big_bird",
    "transformers.models.longformer.modeling_longformer",
    "transformers.models.longt5.modeling_longt5",
]

Step = Callable[[], object]


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    method: str
    block: int | None
    length: int

    @property
    def dense(self) -> "Setting":
        """Dense attention, or the dense layer, at this length."""
        return Setting(DENSE_TWIN.get(self.method, DENSE), None, self.length)

    @property
    def is_layer(self) -> bool:
        """Whether linear layers are part of it."""
        return self.method in DENSE_TWIN

    @property
    def is_ours(self) -> bool:
        """Whether its work is known from our pattern."""
        return self.method in (OURS, OUR_LAYER)


# -------------------------------------------------------------------------------------------- who is measured


def training_step(
    compute: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    weights: Iterable[torch.Tensor] = (),
) -> Step:
    """The output of `compute`, of the shape of an input, and the gradients of inputs and weights."""
    upstream = torch.randn_like(inputs[0])
    needed = [*inputs, *weights]

    def step() -> object:
        output = compute(*inputs)
        return output, torch.autograd.grad(output, needed, upstream)

    return step


def random_states(*shape: int, count: int = 3) -> list[torch.Tensor]:
    """Queries, keys and values, or whatever is attended to."""
    return [torch.randn(shape, requires_grad=True) for _ in range(count)]


def attention(block: int | None) -> Callable[..., torch.Tensor]:
    """Ours, or dense attention where there are no blocks; of queries, keys and values [1, H, n, D]."""
    if block is None:
        return scaled_dot_product_attention
    pattern = our_pattern(block)
    hook_in_kernels()
    return lambda query, key, value: sparse_attention(query, key, value, pattern)


def our_pattern(block: int) -> SparsePattern:
    """The pattern that is measured."""
    return SparsePattern(
        HEADS, block, window_blocks=3, global_blocks=2, random_blocks=RANDOM_BLOCKS, causal=False
    )


def prepare_attention(setting: Setting) -> Step:
    """Prepare attention alone. Our random blocks are fixed, so drawing them is part of the warm-up."""
    return training_step(attention(setting.block), random_states(1, HEADS, setting.length, WIDTH))


def prepare_bigbird(setting: Setting) -> Step:
    """What its module computes between the projections, the n × n probabilities that it returns included."""
    length, block = setting.length, BIGBIRD_BLOCK
    config = BigBirdConfig(
        hidden_size=D_MODEL, num_attention_heads=HEADS, block_size=block, num_random_blocks=RANDOM_BLOCKS
    )
    module: Any = BigBirdBlockSparseAttention(config).train()
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, length), block
    )
    masks = (band, rows, columns, blocked, blocked)
    sizes = (HEADS, RANDOM_BLOCKS, WIDTH, block, block, 1, length, length)

    def compute(*states: torch.Tensor) -> torch.Tensor:
        context, _ = module.bigbird_block_sparse_attention(
            *states, *masks, *sizes, seed=0, plan_from_length=None, plan_num_rand_blocks=None
        )
        return context.transpose(1, 2)

    return training_step(compute, random_states(1, HEADS, length, WIDTH))


class FixedStates(torch.nn.Module):
    """Replaces a projection: returns fixed states, whatever its input."""

    def __init__(self, states: torch.Tensor):
        super().__init__()
        self.states = states

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """Return a copy, because Longformer scales it in place."""
        return self.states.clone()


def prepare_longformer(setting: Setting) -> Step:
    """Its module with queries, keys and values in place of the projections; no global tokens."""
    config = LongformerConfig(
        hidden_size=D_MODEL,
        num_attention_heads=HEADS,
        attention_window=[WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    module: Any = LongformerSelfAttention(config, layer_id=0)
    states = random_states(1, setting.length, D_MODEL)
    module.query, module.key, module.value = (FixedStates(each.transpose(0, 1)) for each in states)
    mask = torch.zeros(1, setting.length)
    return training_step(lambda query, *_: module(query, mask, is_index_masked=mask.bool())[0], states)


def longt5_config() -> LongT5Config:
    """Return LongT5's default configuration, with the same radius and without dropout."""
    return LongT5Config(
        d_model=D_MODEL, d_kv=WIDTH, num_heads=HEADS, local_radius=WINDOW // 2 - 1, dropout_rate=0.0
    )


@torch.no_grad()
def local_bias(module: Any, mask: torch.Tensor) -> torch.Tensor:
    """The bias [1, blocks, H, block, 3 · block] that the first layer makes and hands to all others."""
    visible = longt5._get_local_attention_mask(mask, module.block_len, mask.device)
    hidden = torch.where(visible, 0.0, -1e10).transpose(1, 2)
    return module.compute_bias(module.block_len) + hidden


def prepare_local(setting: Setting) -> Step:
    """An inner layer's module, with queries, keys and values in place of the projections."""
    module: Any = longt5.LongT5LocalAttention(longt5_config(), has_relative_attention_bias=True)
    states = random_states(1, setting.length, D_MODEL)
    module.q, module.k, module.v = map(FixedStates, states)
    module.o = torch.nn.Identity()
    bias = local_bias(module, torch.ones(1, setting.length))
    return training_step(lambda query, *_: module(query, position_bias=bias)[0], states)


def prepare_transient(setting: Setting) -> Step:
    """An inner layer's module, projections included: it projects the sums of its blocks as well."""
    module = longt5.LongT5TransientGlobalAttention(longt5_config(), has_relative_attention_bias=True)
    mask = torch.ones(1, setting.length)
    with torch.no_grad():
        _, segments = longt5._make_global_fixed_block_ids(mask, module.global_block_size)
        side = longt5._split_into_blocks(module.compute_side_bias(mask, segments), module.block_len, dim=-2)
        local = local_bias(module, mask)
        bias = torch.cat([local, side.transpose(1, 2)], dim=-1)
    weights = [weight for name, weight in module.named_parameters() if "relative" not in name]
    states = random_states(1, setting.length, D_MODEL, count=1)
    return training_step(lambda hidden: module(hidden, position_bias=bias)[0], states, weights)


class EncoderLayer(torch.nn.Module):
    """Post-norm, without dropout, around any attention."""

    def __init__(self, attend: Callable[..., torch.Tensor]):
        super().__init__()
        self.attend = attend
        self.query, self.key, self.value, self.out = (torch.nn.Linear(D_MODEL, D_MODEL) for _ in range(4))
        self.ffn = torch.nn.Sequential(
            torch.nn.Linear(D_MODEL, FFN_DIM), torch.nn.ReLU(), torch.nn.Linear(FFN_DIM, D_MODEL)
        )
        self.norm1, self.norm2 = torch.nn.LayerNorm(D_MODEL), torch.nn.LayerNorm(D_MODEL)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, n, D_MODEL] → the same."""
        projections = (self.query, self.key, self.value)
        states = (project(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for project in projections)
        x = self.norm1(x + self.out(self.attend(*states).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.ffn(x))


def prepare_layer(setting: Setting) -> Step:
    """A whole encoder layer."""
    layer = EncoderLayer(attention(setting.block))
    return training_step(layer, random_states(1, setting.length, D_MODEL, count=1), layer.parameters())


PREPARATIONS: dict[str, Callable[[Setting], Step]] = {
    OURS: prepare_attention,
    DENSE: prepare_attention,
    BIGBIRD: prepare_bigbird,
    LONGFORMER: prepare_longformer,
    LOCAL: prepare_local,
    TRANSIENT: prepare_transient,
    OUR_LAYER: prepare_layer,
    DENSE_LAYER: prepare_layer,
}


def prepare(setting: Setting) -> Step:
    """One forward and backward pass, its inputs made."""
    torch.manual_seed(0)
    return PREPARATIONS[setting.method](setting)


# -------------------------------------------------------------------------------------------------- the ideal


def flops(setting: Setting) -> float:
    """Floating-point operations of the matrix products of ours or of dense attention, forward and backward.

    Attention has 2 products forward and 5 backward, for both compute the scores again; a linear layer has 3.
    """
    length = setting.length
    pairs = float(length**2)
    if setting.block is not None:
        pattern = our_pattern(setting.block)
        pairs = visible_pairs(pattern, length) / pattern.num_heads
    weights = 4 * D_MODEL**2 + 2 * D_MODEL * FFN_DIM if setting.is_layer else 0
    return 2 * (7 * pairs * D_MODEL + 3 * length * weights)


def ideal_speedup(setting: Setting) -> float:
    """Return the speedup over dense attention if both ran at the same operations per second."""
    return flops(setting.dense) / flops(setting)


# ----------------------------------------------------------------------------------------------- measurements


def measure_times(settings: Sequence[Setting], rounds: int) -> dict[Setting, float]:
    """Milliseconds; medians over the rounds, the first of which is warm-up."""
    seconds: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for turn in range(rounds + 1):
        for setting, times in seconds.items():
            if turn > LONG_ROUNDS and times[0] > LONG:
                continue
            step = prepare(setting)
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
            print(".", end="", file=sys.stderr, flush=True)
    return {setting: 1e3 * statistics.median(times[1:]) for setting, times in seconds.items()}


def measure_memory(settings: Sequence[Setting], threads: int) -> dict[Setting, float]:
    """Peak memory in MiB, each in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    peaks = {}
    for setting in settings:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            try:
                peaks[setting] = pool.submit(peak_memory, setting, threads).result()
            except BrokenProcessPool:
                raise SystemExit(
                    f"{setting.method} ran out of memory at length {setting.length}; lower --lengths, "
                    "--dense-limit or --peer-limit."
                ) from None
        print(".", end="", file=sys.stderr, flush=True)
    return peaks


def peak_memory(setting: Setting, threads: int) -> float:
    """MiB that a first pass adds; at any length, 20 to 30 of them are code that the libraries load."""
    torch.set_num_threads(threads)
    step = prepare(setting)
    with open("/proc/self/statm", encoding="utf-8") as counts:  # what it held at most may since be free
        before = int(counts.read().split()[1]) * resource.getpagesize()
    step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10 - before) / 2**20


# ------------------------------------------------------------------------------------------------ the results


@dataclass
class Results:
    """Milliseconds and peak MiB of each setting, and which of the times are extrapolated."""

    milliseconds: dict[Setting, float]
    peaks: dict[Setting, float]
    extrapolated: frozenset[Setting] = frozenset()

    @property
    def settings(self) -> list[Setting]:
        """The rows of the table."""
        order = list(PREPARATIONS)
        return sorted(self.milliseconds, key=lambda s: (s.length, order.index(s.method), s.block or 0))

    def extrapolate(self) -> "Results":
        """With dense attention at the lengths where it was not measured: its time grows with the square."""
        lengths = {setting.length for setting in self.milliseconds}
        measured = [setting for setting in self.milliseconds if setting.method == DENSE]
        if not measured:
            return self
        last = max(measured, key=lambda setting: setting.length)
        missing = [Setting(DENSE, None, length) for length in lengths if length > last.length]
        times = {each: self.milliseconds[last] * (each.length / last.length) ** 2 for each in missing}
        return Results(self.milliseconds | times, self.peaks, frozenset(missing))

    def time_ratio(self, of: Setting, to: Setting) -> float | None:
        """One time over another, where both are known: how many times faster the second is."""
        times = self.milliseconds
        return times[of] / times[to] if of in times and to in times else None

    def growth(self, setting: Setting) -> float | None:
        """Peak memory over that at half the length."""
        half = replace(setting, length=setting.length // 2)
        return (
            self.peaks[setting] / self.peaks[half] if setting in self.peaks and half in self.peaks else None
        )

    def share_of_ideal(self, setting: Setting) -> float | None:
        """Of the speedup over dense that the arithmetic allows, how much is reached."""
        speedup = self.time_ratio(setting.dense, setting)
        return speedup / ideal_speedup(setting) if speedup and setting.is_ours else None

    def total_memory(self, setting: Setting) -> float | None:
        """Inputs and peak memory of ours, in units of q, k, v, the output and their gradients."""
        if setting not in self.peaks or setting.method != OURS:
            return None
        tensor = 4 * setting.length * D_MODEL / 2**20
        return (4 * tensor + self.peaks[setting]) / (8 * tensor)  # inputs: q, k, v and the output's gradient


def summary(results: Results) -> dict[str, Any]:
    """The object of `--json`; a single number is that of the block size, and the length, where it is worst.

    The layer is that of the longest length at which dense attention was measured; the speed-ups of longer
    sequences are over dense attention as it is extrapolated from there.
    """
    ours = [setting for setting in results.settings if setting.method == OURS]
    layers = [setting for setting in results.settings if setting.method == OUR_LAYER]
    vs_dense: dict[str, dict[str, float]] = {}
    vs_bigbird: dict[str, float] = {}
    for setting in ours:
        if ratio := results.time_ratio(setting.dense, setting):
            vs_dense.setdefault(str(setting.block), {})[str(setting.length)] = round(ratio, 3)
        if ratio := results.time_ratio(Setting(BIGBIRD, setting.block, setting.length), setting):
            vs_bigbird[str(setting.length)] = round(ratio, 3)
    at_64k = [setting for setting in ours if setting.length == 2**16]
    time_growth = (results.time_ratio(setting, replace(setting, length=2**14)) for setting in at_64k)
    shares = (results.share_of_ideal(each) for each in layers if each.length == layers[-1].length)
    values = {
        "speedup_vs_dense": vs_dense,
        "dense_is_extrapolated_at": sorted(setting.length for setting in results.extrapolated),
        "speedup_vs_bigbird": vs_bigbird,
        "memory_growth": worst(max, map(results.growth, ours)),
        "time_growth_16k_to_64k": worst(max, time_growth),
        "memory_at_64k_vs_tensors": worst(max, map(results.total_memory, at_64k)),
        "layer_share_of_flop_speedup": worst(min, shares),
    }
    return {name: value for name, value in values.items() if value}


def worst(choose: Callable[..., float], values: Iterable[float | None]) -> float | None:
    """The largest or smallest of what was measured."""
    known = [value for value in values if value is not None]
    return round(choose(known), 3) if known else None


COLUMNS = (
    *("method", "block", "length", "ms", "× faster than dense", "ideal", "share of ideal"),
    *("× faster than BigBird", "peak, MiB", "× half the length's", "total / 8 tensors"),
)


def table_row(setting: Setting, results: Results) -> tuple[str, ...]:
    """One row of the table."""
    about = "≈ " if setting.dense in results.extrapolated else ""
    bigbird = Setting(BIGBIRD, BIGBIRD_BLOCK, setting.length)
    return (
        setting.method + ", extrapolated" * (setting in results.extrapolated),
        cell(setting.block, "d"),
        f"{setting.length:,}",
        about * (setting.method == DENSE) + f"{results.milliseconds[setting]:,.1f}",
        cell(results.time_ratio(setting.dense, setting), ".2f", about),
        cell(ideal_speedup(setting) if setting.is_ours else None, ".2f"),
        cell(results.share_of_ideal(setting), ".2f", about),
        cell(None if setting.is_layer else results.time_ratio(bigbird, setting), ".2f"),
        cell(results.peaks.get(setting), ",.0f"),
        cell(results.growth(setting), ".2f"),
        cell(results.total_memory(setting), ".2f"),
    )


def cell(number: float | None, form: str, about: str = "") -> str:
    """A number, or a dash where there is none."""
    return "–" if number is None else f"{about}{number:{form}}"


def draw(results: Results, path: Path) -> None:
    """Time against length, both logarithmic, a line for each method and block size."""
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for setting in results.settings:
        if not setting.is_layer:
            name = setting.method if setting.block is None else f"{setting.method}, block {setting.block}"
            line = (f"{name}, extrapolated", "x:") if setting in results.extrapolated else (name, "o-")
            lines.setdefault(line, []).append((setting.length, results.milliseconds[setting]))
    with new_figure((9, 5.5)) as figure:
        axes = figure.subplots()
        for (name, style), points in lines.items():
            axes.loglog(*zip(*points, strict=True), style, label=name)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="length, tokens", ylabel="forward and backward, ms")
        for axis in (axes.xaxis, axes.yaxis):
            write_plain_numbers(axis)
        axes.legend()
    save_figure(figure, path)


# ------------------------------------------------------------------------------------------------ the command


def settings(args: argparse.Namespace) -> Iterator[Setting]:
    """What is measured."""
    for length in args.lengths:
        yield from (Setting(OURS, block, length) for block in args.block_sizes)
        if length <= args.dense_limit:
            yield Setting(DENSE, None, length)
            yield Setting(DENSE_LAYER, None, length)
            yield from (Setting(OUR_LAYER, block, length) for block in args.block_sizes)
        if length <= args.peer_limit:
            yield Setting(LOCAL, None, length)
            yield Setting(TRANSIENT, None, length)
            if length % WINDOW == 0:  # whole windows, and the eight blocks that BigBird's random ones need
                yield Setting(LONGFORMER, None, length)
                yield Setting(BIGBIRD, BIGBIRD_BLOCK, length)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", help="default: 1,024 to 65,536")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[64, 128], help="of our pattern")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--rounds", type=side_by_side.count, help=f"timed; default 7, and {LONG_ROUNDS} of what takes long"
    )
    parser.add_argument("--dense-limit", type=int, default=2**14, help="longer: dense is extrapolated")
    parser.add_argument("--peer-limit", type=int, default=2**14, help="longer: no BigBird and other peers")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw time against length")
    parser.add_argument(
        "--quick", action="store_true", help="by default two short lengths and one round: does it run?"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    args.lengths = args.lengths or ([256, 512] if args.quick else [2**power for power in range(10, 17)])
    args.rounds = args.rounds or (1 if args.quick else 7)
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    side_by_side.quiet()
    if args.plot:
        check_picture(args.plot)
    torch.set_num_threads(args.threads)
    measured = list(settings(args))
    peaks = measure_memory([setting for setting in measured if not setting.is_layer], args.threads)
    results = Results(measure_times(measured, args.rounds), peaks).extrapolate()
    print(file=sys.stderr)

    print(side_by_side.describe_setting("random numbers", [args.threads]))
    print(f"forward and backward, batch 1, {HEADS} heads × {WIDTH}; attention alone unless the row says more")
    print(
        "dense: of a layer, the layer around dense attention; ideal: × faster than that by arithmetic alone"
    )
    print("total: inputs and peak; 8 tensors: queries, keys, values, output and their gradients\n")
    side_by_side.print_table(COLUMNS, [table_row(setting, results) for setting in results.settings])
    if args.plot:
        draw(results, args.plot)
    if args.json:
        print(json.dumps(summary(results)))


if __name__ == "__main__":
    main()
