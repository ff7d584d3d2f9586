"""Several processes of one training, started from a server in which the imports are done."""

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from tiny_runs import as_flags

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["vaswani.distillation.run", "vaswani.training.run", "vaswani.cli"])


def train_in_processes(options: dict, num_processes: int, command: str = "train") -> None:
    """`vaswani train` in so many processes; each writes what it held into `rank-N.json` of `output_dir`."""
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
    for rank, process in enumerate(processes):
        process.join(120)
        log = Path(f"{options['output_dir']}-{rank}.log")
        assert process.exitcode == 0, log.read_text() if log.exists() else process.exitcode


def _run(rank: int, num_processes: int, port: int, arguments: list[str], output_dir: str) -> None:
    from vaswani.cli import run
    from vaswani.training.trainer import Trainer

    log = os.open(f"{output_dir}-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    if num_processes > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_processes)}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(num_processes)}
    torch.set_num_threads(1)
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
