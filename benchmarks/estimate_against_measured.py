"""Compare the least time that a model's arithmetic allows on this CPU with the measured time.

    python benchmarks/estimate_against_measured.py [--threads 2] [--quick] [--json]

For three shapes: a training step, reading the sources, the last decoding step and a whole beam search.
The peak of matrix products and the bandwidth of a large copy are measured before and after each shape; the
better counts. Times are medians. There is no peer.
"""

import argparse
import json
import os

import torch

import side_by_side
from vaswani.hub.run_metadata import meta_model
from vaswani.insight.arithmetic.devices import find_device
from vaswani.insight.arithmetic.estimate import add_measurements, estimate
from vaswani.insight.arithmetic.measure import measure
from vaswani.insight.arithmetic.phases import Work

SHAPES = ("small", "base", "deep")


def main() -> None:
    """Estimate, measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=SHAPES, choices=side_by_side.SHAPES)
    parser.add_argument("--batch", type=int, default=32, help="rows")
    parser.add_argument("--source", type=int, default=32, help="tokens of each")
    parser.add_argument("--target", type=int, default=32, help="tokens of each")
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true", help="show that it runs, with a tiny model")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    args = parser.parse_args()
    side_by_side.quiet()
    if args.quick:
        args.shape, args.batch, args.source, args.target = ["tiny"], 2, 8, 8
    torch.set_num_threads(args.threads)
    work = Work(args.batch, args.source, args.target, args.beams, on_cpu=True)
    rows, reached = [], {}
    for shape in args.shape:
        model = meta_model(side_by_side.our_config(shape))
        before = find_device("cpu")
        seconds = measure(model, work, before)
        device = before.or_faster(find_device("cpu"))
        found = estimate(model, work, device)
        add_measurements(found, seconds)
        rates = f"{device.peak('float32') / 1e9:.0f} GFLOP/s, {device.bandwidth / 1e9:.1f} GB/s"
        for name, phase in found["phases"].items():
            floor, real = (1e3 * phase[key] for key in ("floor_seconds", "measured_seconds"))
            row = [name.replace("_", " "), f"{phase['flops'] / 1e9:.3g}", f"{phase['bytes'] / 1e6:,.0f}"]
            row += [phase["bound_by"], f"{floor:,.1f}", f"{real:,.1f}", f"{100 * phase['reached']:.0f} %"]
            rows.append([side_by_side.describe_shape(model.config), rates, *row])
        reached[shape] = {name: phase["reached"] for name, phase in found["phases"].items()}
    setting = (
        f"batch {args.batch}, source {args.source}, target {args.target}, beams {args.beams}, random tokens"
    )
    print(side_by_side.describe_setting(setting, [args.threads]))
    print()
    columns = (
        "shape",
        "rates",
        "phase",
        "GFLOP",
        "MB moved",
        "bound by",
        "floor, ms",
        "measured, ms",
        "reached",
    )
    side_by_side.print_table(columns, rows)
    if args.json:
        print(json.dumps({"reached": reached}))


if __name__ == "__main__":
    main()
