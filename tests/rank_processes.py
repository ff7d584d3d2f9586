"""Several processes of one training, started from a server in which the imports are done."""

import faulthandler
import gc
import json
import multiprocessing
import os
import socket
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import datasets
import torch
from torch.distributed.tensor import DTensor

from tiny_runs import as_flags, leave_out_slow_parts

# New processes in which the imports are done: what dies costs no ten seconds each.
SECONDS = 120  # that a training may take
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["vaswani.distillation.run", "vaswani.training.runs.translation", "vaswani.cli.command_line"]
)


def train_in_processes(options: dict, num_processes: int, command: str = "train") -> str:
    """`vaswani train` in so many processes; each writes what it held into `rank-N.json` of `output_dir`.

    Returns:
        What all of them printed.
    """
    logs = []
    for rank, process in enumerate(start_processes(options, num_processes, command)):
        process.join(SECONDS)
        log = log_of(options["output_dir"], rank)
        logs.append(log.read_text() if log.exists() else "")
        assert process.exitcode == 0, f"exit status {process.exitcode}\n{logs[-1]}"
    return "".join(logs)


def start_processes(options: dict, num_processes: int, command: str = "train") -> list[ForkServerProcess]:
    """The same, by rank, while they are at work."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [command, *as_flags(options)]
    processes = [
        CONTEXT.Process(target=_run, args=(rank, num_processes, port, arguments, options["output_dir"]))
        for rank in range(num_processes)
    ]
    for process in processes:
        process.start()
    return processes


def log_of(output_dir: str | Path, rank: int) -> Path:
    """What a process prints, beside its run."""
    return Path(f"{output_dir}-{rank}.log")


def updates_in(printed: Path) -> int:
    """Return the number of updates that a training has logged."""
    return printed.read_text().count("'grad_norm'") if printed.exists() else 0


def begin_copy(stdout: Path, stderr: Path | None = None) -> None:
    """In a copy of the server, before it trains: one thread, no curves, a cache beside what it prints.

    Args:
        stdout: file to which each line that it prints is added.
        stderr: the same of its errors; None: `stdout`.
    """
    gc.freeze()  # a collection need not look at what the server had imported
    for descriptor, path in ((1, stdout), (2, stderr or stdout)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(line_buffering=True)
    torch.set_num_threads(1)
    datasets.config.HF_DATASETS_CACHE = stdout.parent / "datasets"
    leave_out_slow_parts()


def _run(rank: int, num_processes: int, port: int, arguments: list[str], output_dir: str) -> None:
    from vaswani.cli import run
    from vaswani.training.runs import base as base_run
    from vaswani.training.trainer.seq2seq import Trainer

    begin_copy(log_of(output_dir, rank))
    if rank > 0:
        del base_run.trained_tokenizer  # the first process learns the vocabulary for all
    faulthandler.enable()  # says where a training crashes
    faulthandler.dump_traceback_later(SECONDS - 10)  # or hangs
    if num_processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_processes)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(num_processes)}
    save_model = Trainer.save_model

    def record_and_save(trainer: Trainer, *args: object, **kwargs: object) -> None:
        Path(trainer.args.output_dir, f"rank-{rank}.json").write_text(json.dumps(_held(trainer)))
        save_model(trainer, *args, **kwargs)

    Trainer.save_model = record_and_save
    sys.exit(run(arguments))


def _held(trainer: object) -> dict[str, float]:
    """Parameters, and bytes of these and their states, in this process; the sum of those that are whole."""
    parameters = list(trainer.model.parameters())
    states = [value for state in trainer.optimizer.state.values() for value in state.values()]
    tensors = [*parameters, *(value for value in states if torch.is_tensor(value) and value.ndim)]
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return {
        "parameters": sum(tensor.numel() for tensor in local[: len(parameters)]),
        "whole": sum(value.double().sum().item() for value in parameters if not isinstance(value, DTensor)),
        "bytes": sum(tensor.untyped_storage().nbytes() for tensor in local),
    }
