r"""Peak memory of beam search: our `generate` beside MarianMT's, with the same weights and sources.

    python benchmarks/decoding_memory.py [--shape small base] [--beams 8] [--batch-size 64] [--tokens 200]
        [--threads 2] [--data FILE|FOLDER] [--quick] [--json]

Each side decodes one batch in its own process, after a short warm-up. The peak is the increase of the
process's memory during the measured decoding. The models are untrained and
never end, so each output has as many tokens as its source; both sides must write the same tokens.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import side_by_side
from decoding_speed import MARIAN, OURS, Batch, Setting, by_generate, make_batches, never_ending, train

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Measurement:
    """Memory in MiB before decoding, its increase at the peak, and the outputs."""

    before: float
    added: float
    outputs: list[list[int]]


def decode(side: str, shape: str, setting: Setting, args: argparse.Namespace) -> Measurement:
    """Decode a batch with one side."""
    side_by_side.quiet()
    torch.set_num_threads(setting.threads)
    torch.manual_seed(0)
    corpus = side_by_side.load_tokens(args, None)
    model = never_ending(train(corpus, shape, 0)).eval()
    model.generation_config.max_length = None
    (batch,) = make_batches(corpus.test, setting, reference_lengths=True)
    decode_by_side = by_generate(model if side == OURS else side_by_side.marian_twin(model))
    decode_by_side(Batch(batch.sources[:1], 2), setting.num_beams)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = memory("VmRSS")
    outputs = decode_by_side(batch, setting.num_beams)
    return Measurement(before, memory("VmHWM") - before, outputs)


def memory(name: str) -> float:
    """Return an entry of /proc/self/status, such as VmHWM, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 2**10 / MEBIBYTE


def measure(shape: str) -> dict[str, Measurement]:
    """Decode with both sides, one after the other, each in its own process."""
    found = {}
    for side in (MARIAN, OURS):
        command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--shape", shape]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[side] = Measurement(**json.loads(done.stdout.splitlines()[-1]))
    return found


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    side_by_side.corpus_arguments(parser)
    parser.add_argument("--shape", nargs="+", choices=side_by_side.SHAPES, default=["small", "base"])
    parser.add_argument("--beams", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200, help="of each source and output")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=(MARIAN, OURS), help="decode by this one here; for the processes")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few tokens: does it run?")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.batch_size, args.tokens, args.threads = ["tiny"], 4, 12, 1
    return args


def main() -> None:
    """Measure and print."""
    args = parse_arguments()
    setting = Setting(args.beams, args.batch_size, args.batch_size, args.threads, args.tokens)
    if args.side:
        print(json.dumps(asdict(decode(args.side, args.shape[0], setting, args))))
        return
    rows, shares = [], []
    for shape in args.shape:
        found = measure(shape)
        same = sum(map(list.__eq__, found[OURS].outputs, found[MARIAN].outputs))
        shares.append(found[OURS].added / max(found[MARIAN].added, 1e-9))
        parts = [f"{number:,.0f}" for each in found.values() for number in (each.before, each.added)]
        rows.append((shape, str(setting), f"{same} of {args.batch_size}", *parts, f"{shares[-1]:.2f}"))
    print(side_by_side.describe_setting(args.data or "dates", [args.threads]) + "\n")
    columns = [f"{side}, {part}, MiB" for side in (MARIAN, OURS) for part in ("before", "added")]
    side_by_side.print_table(
        ("shape", "search", "equal outputs", *columns, f"added: {OURS} / {MARIAN}"), rows
    )
    if args.json:
        print(json.dumps({"memory_vs_marian": round(max(shares), 3)}))


if __name__ == "__main__":
    main()
