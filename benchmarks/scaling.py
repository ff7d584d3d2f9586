"""Compare the scaling model of docs/scaling.md with measurements of one and two processes on CPUs.

    python benchmarks/scaling.py [--shape small base] [--quick] [--json]
    python benchmarks/scaling.py --plan

Each process has one thread and its own batch. The benchmark measures the seconds of an update (median), the
memory that the model and its training add to a process (peak), and the bytes that pass the loopback device.
The model is given three numbers: the arithmetic per second that one process reaches in training, and what
gloo's all-reduce takes between two processes. There is no peer.

With --plan nothing is measured: the table has the model's predictions for base and big on up to 1,024 H200
(with the numbers of the data sheet, and an assumed share of the peak).
"""

import argparse
import json
import multiprocessing
import os
import resource
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel

import side_by_side
from scaling_model import BYTES_OF_A_NUMBER, Cost, Machine, cost_of_update
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.files.named_configs import shipped_config
from vaswani.hub.run_metadata import count_parameters
from vaswani.insight.arithmetic.flops import training_flops
from vaswani.training.trainer.sharding import Sharding

LENGTH = 32
# NVIDIA's data sheets: 989 TFLOP/s in bfloat16, 141 GB and 900 GB/s of NVLink, half each way, for an H200;
# eight in a machine, each with a ConnectX-7 of 400 Gbit/s. Assumed: a third of the peak, 5 µs a message.
H200 = Machine(flops=989e12 / 3, memory=141e9, devices=8, within=450e9, between=50e9, latency=5e-6)
PLANNED_DEVICES = (1, 2, 8, 16, 64, 256, 1024)
PLANNED_TOKENS = 25_000  # of a device and update
WAYS = ("ddp", "fsdp")
Measured = dict[str, float]


def work(
    rank: int, processes: int, port: int, way: str, args: argparse.Namespace, shape: str, queue: Any
) -> None:
    """Run one process: some updates of a model with DDP or FSDP2."""
    side_by_side.quiet()
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo")
    network = {} if processes == 1 else measure_network(args.quick)
    train(
        "tiny", way, processes, tokens=128, updates=2
    )  # what is loaded at the first update is no model's memory
    before = resident_bytes()
    measured = train(shape, way, processes, args.max_tokens, args.updates)
    if rank == 0:
        queue.put(measured | network | {"memory": peak_bytes() - before})
    dist.destroy_process_group()


def train(shape: str, way: str, processes: int, tokens: int, updates: int) -> Measured:
    """Some updates, timed after two; bytes sent by this process in each."""
    config = side_by_side.our_config(shape)
    torch.manual_seed(0)
    model = VaswaniForConditionalGeneration(config).train()
    trained: torch.nn.Module = model
    if processes > 1 and way == "ddp":
        trained = DistributedDataParallel(model)
    elif processes > 1:
        Sharding(model, processes, 1, processes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(4, config.vocab_size, (tokens // (2 * LENGTH), LENGTH))
    seconds, sent = [], 0
    for update in range(updates + 2):
        dist.barrier()
        bytes_before, start = loopback_bytes(), time.perf_counter()
        trained(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if update >= 2:
            seconds.append(time.perf_counter() - start)
            sent += loopback_bytes() - bytes_before
    return {"seconds": statistics.median(seconds), "traffic": sent / updates / processes}


def measure_network(quick: bool) -> Measured:
    """Bytes per second and process of a ring between two processes, and seconds of a message."""
    tensor = torch.ones(1 << (18 if quick else 24))
    small, times = torch.ones(1), {"large": [], "small": []}
    for _ in range(5):
        for name, value in (("large", tensor), ("small", small)):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(value)
            times[name].append(time.perf_counter() - start)
    large, message = (statistics.median(times[name]) for name in ("large", "small"))
    return {"bandwidth": tensor.numel() * BYTES_OF_A_NUMBER / large, "latency": message / 2}


def resident_bytes() -> int:
    """Return the current memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def loopback_bytes() -> int:
    """Return the bytes that have passed the loopback device."""
    line = next(
        line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")
    )
    return int(line.split(":")[1].split()[0])


def measure(way: str, processes: int, args: argparse.Namespace, shape: str) -> Measured:
    """Start the processes, and return the measurements of the first."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")  # which imports everything once
    queue = context.Queue()
    started = [
        context.Process(target=work, args=(rank, processes, port, way, args, shape, queue))
        for rank in range(processes)
    ]
    for process in started:
        process.start()
    measured = queue.get()
    for process in started:
        process.join()
    return measured


def predict(
    shape: str, alone: Measured, network: Measured, way: str, processes: int, max_tokens: int
) -> Cost:
    """Return the model's prediction, given the speed of one process and of the network."""
    config = side_by_side.our_config(shape)
    flops = training_flops(config, max_tokens // (2 * LENGTH), LENGTH, LENGTH) / alone["seconds"]
    bandwidth, latency = network["bandwidth"], network["latency"]
    machine = Machine(flops, 0, processes, bandwidth, bandwidth, latency)
    return cost_of_update(
        config, machine, way, processes, max_tokens, length=LENGTH, bytes_of_an_activation=BYTES_OF_A_NUMBER
    )


def plan() -> None:
    """Return the model's predictions for base and big."""
    rows = []
    for name in ("base", "big"):
        values = yaml.safe_load(shipped_config(name).read_text())
        fields = {field: value for field, value in values.items() if hasattr(VaswaniConfig(), field)}
        config = VaswaniConfig(**{**fields, "vocab_size": values["vocab_size"]})
        alone = cost_of_update(config, H200, "ddp", 1, PLANNED_TOKENS)
        for devices in PLANNED_DEVICES:
            for way in ("ddp",) if devices == 1 else ("ddp", "fsdp", "hybrid"):
                if way == "hybrid" and devices <= H200.devices:
                    continue  # as fsdp
                cost = cost_of_update(config, H200, way, devices, PLANNED_TOKENS)
                rows.append(
                    (
                        f"{name}, {count_parameters(config) / 1e6:.0f} M",
                        f"{devices:,}",
                        way,
                        f"{1000 * cost.seconds:.1f}",
                        f"{100 * alone.seconds / cost.seconds:.0f}",
                        f"{devices * PLANNED_TOKENS / cost.seconds / 1e6:,.1f}",
                        f"{cost.memory / 1e9:.2f}",
                        f"{cost.traffic / 1e9:.2f}",
                    )
                )
    print(f"the model alone, nothing measured: {PLANNED_TOKENS:,} tokens a device and update, bf16 on H200\n")
    columns = (
        "model",
        "devices",
        "way",
        "ms/update",
        "efficiency, %",
        "M tokens/s",
        "memory, GB",
        "sent, GB",
    )
    side_by_side.print_table(columns, rows)


def main() -> None:
    """Measure, predict, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["small", "base"], choices=["small", "base"])
    parser.add_argument("--max_tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--updates", type=side_by_side.count, default=10)
    parser.add_argument("--plan", action="store_true", help="up to 1,024 devices, by the model alone")
    parser.add_argument("--quick", action="store_true", help="show that it runs, with few updates")
    parser.add_argument("--json", action="store_true", help="end with a JSON object on the last line")
    args = parser.parse_args()
    if args.plan:
        return plan()
    if args.quick:
        args.shape, args.max_tokens, args.updates = ["small"], 512, 2
    rows, errors = [], {}
    for shape in args.shape:
        alone = measure("ddp", 1, args, shape)
        for way, processes in (("ddp", 1), *((way, 2) for way in WAYS)):
            found = alone if processes == 1 else measure(way, processes, args, shape)
            said = predict(
                shape, alone, {"bandwidth": 1, "latency": 0, **found}, way, processes, args.max_tokens
            )
            values = {name: (found[name], getattr(said, name)) for name in ("seconds", "memory", "traffic")}
            scales = {"seconds": 1, "memory": 1e6, "traffic": 1e6}
            shown = [f"{value / scales[name]:.2f}" for name, pair in values.items() for value in pair]
            parameters = f"{count_parameters(side_by_side.our_config(shape)) / 1e6:.1f} M"
            rows.append((shape, parameters, f"{processes} {way if processes > 1 else ''}".strip(), *shown))
            if processes > 1:
                errors[f"{shape} {way}"] = {
                    name: predicted / real for name, (real, predicted) in values.items()
                }
    print(side_by_side.describe_setting(f"{args.max_tokens} random tokens a batch", [1]))
    print()
    columns = [
        f"{name}, {kind}" for name in ("s/update", "memory, MB", "sent, MB") for kind in ("measured", "model")
    ]
    side_by_side.print_table(("shape", "parameters", "processes", *columns), rows)
    if args.json:
        print(json.dumps({"predicted_over_measured": errors}))
    return None


if __name__ == "__main__":
    main()
