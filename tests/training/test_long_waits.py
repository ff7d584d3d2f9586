"""While one process prepares a large corpus, the others wait longer than ddp_timeout."""

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
from accelerate import PartialState

from rank_processes import CONTEXT, SECONDS
from vaswani.training.launch.processes import LongWaits

pytestmark = pytest.mark.process

TIMEOUT = timedelta(seconds=1)
WORK = 3.0  # seconds


def _work(rank: int, port: int, folder: Path, patient: bool) -> None:
    """Process 0 works first; each then writes down when it ends."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", timeout=TIMEOUT)
    PartialState(cpu=True)  # as the arguments of a training do
    waits = LongWaits()
    if patient:
        with waits.main_process_first():
            time.sleep(WORK if rank == 0 else 0)
            (folder / str(rank)).write_text(str(time.monotonic()))
        return
    if rank == 0:
        time.sleep(WORK)
    dist.barrier()


def _exit_codes(folder: Path, patient: bool) -> list[int | None]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [CONTEXT.Process(target=_work, args=(rank, port, folder, patient)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
    return [process.exitcode for process in processes]


def test_the_others_wait_for_the_main_process(tmp_path: Path) -> None:
    assert _exit_codes(tmp_path, patient=True) == [0, 0]
    first, second = (float((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert first < second


def test_an_ordinary_wait_would_time_out(tmp_path: Path) -> None:
    """Otherwise the test above would show nothing."""
    assert _exit_codes(tmp_path, patient=False) != [0, 0]


def test_a_single_process_does_not_wait() -> None:
    waits = LongWaits()
    waits.wait()
    with waits.main_process_first():
        pass
