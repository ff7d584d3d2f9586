"""Real training processes, killed without warning and resumed: the final weights are the same bit by bit."""

import random
import re
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from real_processes import start, stop_after
from run_records import assert_same_weights

from rank_processes import log_of, start_processes, train_in_processes, updates_in
from tiny_runs import as_flags
from vaswani.training.trainer.checkpoints import last_complete_checkpoint

pytestmark = pytest.mark.process

STEPS = 40  # an epoch has about nine


def kill_after(process: ForkServerProcess, updates: int, log: Path) -> None:
    """Kill a process without warning as soon as it has added so many updates to its log."""
    updates += updates_in(log)
    while updates_in(log) < updates:
        assert process.exitcode is None, f"the process ended by itself: {log.read_text()}"
        time.sleep(0.002)
    process.kill()
    process.join()


@pytest.fixture
def options(tiny_run: dict) -> dict:
    del tiny_run["test_file"]  # the scores of the end are not what is tested here
    tiny_run |= {"max_steps": STEPS, "save_steps": 4, "dropout": 0.3, "gradient_accumulation_steps": 2}
    tiny_run |= {
        "eval_strategy": "steps",
        "eval_steps": 8,
        "max_validation_rows": 4,
        "generation_max_length": 5,
    }
    return tiny_run


@pytest.mark.slow
def test_a_run_killed_at_three_random_steps_ends_with_the_same_weights(options, tmp_path):
    train_in_processes({**options, "output_dir": tmp_path / "whole"}, 1)

    killed = {**options, "output_dir": tmp_path / "killed"}
    log = log_of(killed["output_dir"], 0)
    kills = sorted(random.SystemRandom().sample(range(1, STEPS), 3))
    print(f"killed after updates {kills}")  # shown when the test fails
    done = 0
    for kill in kills:
        (process,) = start_processes(killed, 1)
        kill_after(process, kill - done, log)
        assert process.exitcode == -signal.SIGKILL
        killed["resume_from_checkpoint"] = "true"
        last = last_complete_checkpoint(tmp_path / "killed")
        done = 0 if last is None else int(last.name.split("-")[1])
    before = updates_in(log)
    train_in_processes(killed, 1)
    assert updates_in(log) - before == STEPS - done

    assert_same_weights(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_ctrl_c_saves_a_checkpoint_and_ends_with_one_line(options, datasets_cache):
    process = start(["-m", "vaswani", "train", *as_flags(options)], datasets_cache)
    stop_after(process, 6, signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGINT, errors
    last = errors.strip().splitlines()[-1]
    folder = options["output_dir"]
    assert re.search(
        rf"^vaswani: stopped by Ctrl-C after update \d+; it is saved in {folder}: continue", last
    )
    assert "Traceback" not in errors
    checkpoint = last_complete_checkpoint(Path(folder))
    assert checkpoint is not None
    assert f"after update {checkpoint.name.split('-')[1]};" in last
