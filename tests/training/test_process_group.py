"""Processes that do not start or do not respond are waited for up to `ddp_timeout`."""

import os
import signal
import socket
from pathlib import Path

import pytest

from rank_processes import CONTEXT, begin_copy, log_of
from tiny_runs import as_flags

pytestmark = pytest.mark.process


def train(rank: int, world_size: int, port: int, options: dict) -> None:
    """A process of `vaswani train`; all but the first stop, and stay, where they would read the corpus."""
    from vaswani.cli import run
    from vaswani.training.runs import base as base_run

    begin_copy(log_of(options["output_dir"], rank))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
    if rank > 0:
        base_run.check_writable = lambda _: os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(run(["train", *as_flags(options)]))


def start(ranks: list[int], world_size: int, options: dict) -> list:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [CONTEXT.Process(target=train, args=(rank, world_size, port, options)) for rank in ranks]
    for process in processes:
        process.start()
    return processes


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [([0, 2], "processes 1, 3 of 4 did not start"), ([1], "process 0 of 4 did not start")],
)
def test_processes_that_do_not_start_are_named(tiny_run, ranks, missing):
    for rank, process in zip(ranks, start(ranks, 4, tiny_run | {"ddp_timeout": 1}), strict=True):
        process.join(60)
        assert process.exitcode == 1
        log = log_of(tiny_run["output_dir"], rank).read_text()
        assert "Traceback" not in log
        line = log.strip().splitlines()[-1]
        assert line.startswith(f"vaswani: {f'process {rank}: ' if rank else ''}{missing}")
        assert "ddp_timeout=1 seconds" in line
    assert not Path(tiny_run["output_dir"]).exists()


def test_a_process_that_does_not_respond_gives_an_error(tiny_run):
    first, second = start([0, 1], 2, tiny_run | {"ddp_timeout": 3})
    first.join(100)
    still_there = second.is_alive()
    second.kill()
    second.join()
    assert first.exitcode == 1
    assert still_there
    log = log_of(tiny_run["output_dir"], 0).read_text()
    assert "Traceback" not in log
    assert log.strip().splitlines()[-1].startswith("vaswani: another process of this training did not answer")
