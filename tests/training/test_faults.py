"""Training processes that really die, on disks that really are full: the run goes on, or says why not.

Where it goes on, it ends with the weights of a run that nothing happened to, bit by bit.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from run_records import assert_same_weights

from rank_processes import CONTEXT, begin_copy, log_of
from tiny_runs import as_flags
from vaswani.files.run_files import checkpoints
from vaswani.training.trainer.checkpoints import fault_of, last_complete_checkpoint

pytestmark = pytest.mark.process

STEPS = 24
SECONDS_OF_A_RUN = 1.2  # about; kills come at any time of it
FILES_OF_A_CHECKPOINT = 25  # at least: weights, states, tokenizer, code


Fault = Callable[[], None]  # is called in a training process, before it trains


def train(flags: list[str], log: Path, fault: Fault | None) -> None:
    """`vaswani train` in this process; a session of its own, as a shell gives it.

    Args:
        flags: of the command line.
        log: file that what it prints goes to.
        fault: prepares what is to happen to it.
    """
    from vaswani.cli import run

    begin_copy(log)
    if fault is not None:
        fault()
    sys.exit(run(["train", *flags]))


def die_in_a_save(last_sync: int) -> None:
    """Die when this file of the checkpoints, from 1, is about to be brought to the disk."""
    from vaswani.training.trainer import checkpoints

    syncs, sync = itertools.count(1), checkpoints.sync
    checkpoints.sync = lambda path: (
        os.kill(os.getpid(), signal.SIGKILL) if next(syncs) == last_sync else sync(path)
    )


def get_sigterm_in_an_evaluation() -> None:
    """Get SIGTERM with the first batch that is evaluated."""
    from vaswani import Trainer

    prediction_step = Trainer.prediction_step

    def signalled(*args: object, **kwargs: object) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return prediction_step(*args, **kwargs)

    Trainer.prediction_step = signalled


@pytest.fixture
def options(tiny_run: dict) -> dict:
    del tiny_run["test_file"]
    tiny_run |= {"max_steps": STEPS, "save_steps": 3, "dropout": 0.3, "gradient_accumulation_steps": 2}
    tiny_run |= {"eval_strategy": "steps", "eval_steps": 9, "max_validation_rows": 4}
    return tiny_run | {"generation_max_length": 5, "generation_num_beams": 1}


def start(options: dict, fault: Fault | None = None, **more: object) -> BaseProcess:
    log = log_of(options["output_dir"], 0)
    process = CONTEXT.Process(target=train, args=(as_flags({**options, **more}), log, fault))
    process.start()
    return process


def output_of(options: dict) -> str:
    return log_of(options["output_dir"], 0).read_text()


@pytest.fixture
def whole(options: dict, tmp_path: Path) -> Path:
    """The run that nothing happens to."""
    folder = tmp_path / "whole"
    process = start({**options, "output_dir": str(folder)})
    process.join()
    assert process.exitcode == 0, output_of({"output_dir": folder})
    return folder


def kill_at_any_time(start_again: Callable[..., BaseProcess], folder: Path, chance: random.Random) -> None:
    process = start_again()
    time.sleep(chance.uniform(0, SECONDS_OF_A_RUN))
    process.kill()
    process.join()


def kill_around_a_save(start_again: Callable[..., BaseProcess], folder: Path, chance: random.Random) -> None:
    for unfinished in folder.glob("unfinished-*"):  # of the last kill; the next is to be a new one
        shutil.rmtree(unfinished)
    process = start_again()
    while process.is_alive() and not list(folder.glob("unfinished-*")):
        time.sleep(0.0005)
    time.sleep(chance.uniform(0, 0.02))
    process.kill()
    process.join()


def kill_within_a_save(start_again: Callable[..., BaseProcess], folder: Path, chance: random.Random) -> None:
    process = start_again(partial(die_in_a_save, chance.randint(1, FILES_OF_A_CHECKPOINT)))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert list(folder.glob("unfinished-*"))


def remove_unresumable_run(folder: Path) -> None:
    """Remove a run that was killed before it saved its configuration."""
    if folder.exists() and not (folder / "training_config.yaml").exists():
        shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.exhaustive(after=1)
@pytest.mark.parametrize("kills", [6, 20])
def test_a_run_killed_at_any_time_ends_with_the_same_weights(options, whole, kills):
    chance = random.Random(f"{os.getpid()} {time.time_ns()}")
    folder = Path(options["output_dir"])

    def start_again(fault: Fault | None = None) -> BaseProcess:
        remove_unresumable_run(folder)
        return start(options, fault, resume_from_checkpoint=str(folder.exists()).lower())

    kinds = itertools.cycle([kill_within_a_save, kill_at_any_time, kill_around_a_save])
    for kill in itertools.islice(kinds, kills):
        if (folder / f"checkpoint-{STEPS}").exists():  # it is through: nothing is left to be killed
            shutil.rmtree(folder)
        kill(start_again, folder, chance)
        assert all(fault_of(checkpoint) is None for checkpoint in checkpoints(folder))
    process = start_again()
    process.join()
    assert process.exitcode == 0, output_of(options)
    assert_same_weights(whole, folder)
    assert not list(folder.glob("unfinished-*"))


def on_separate_disk(mount: str, command: list[str], cache: Path) -> subprocess.CompletedProcess:
    """Run a command with a separately mounted disk that no other process sees."""
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*enter, mount], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*enter, f'{mount} && "$@"', "sh", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_a_full_disk_gives_a_one_line_error_and_keeps_the_last_checkpoint(options, tmp_path, datasets_cache):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    options |= {"output_dir": str(disk / "run"), "max_steps": 2000}
    command = [sys.executable, "-m", "vaswani", "train", *as_flags(options)]
    keep = ["sh", "-c", f'"$@"; status=$?; cp -r {disk}/run/. {kept}; exit $status', "sh"]
    run = on_separate_disk(f"mount -t tmpfs -o size=1500k tmpfs {disk}", [*keep, *command], datasets_cache)
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    last = last_complete_checkpoint(kept)
    assert last is not None
    assert run.stderr.strip().splitlines()[-1] == (
        f"vaswani: no space left on the disk of {disk}/run: free some, or choose another --output_dir; the "
        f"last complete checkpoint is {disk}/run/{last.name}; continue with --resume_from_checkpoint true"
    )
    assert all(fault_of(checkpoint) is None for checkpoint in checkpoints(kept))


@pytest.mark.slow
def test_a_read_only_disk_gives_an_error_before_any_work(options, tmp_path, datasets_cache):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = [sys.executable, "-m", "vaswani", "train"]
    command += as_flags({**options, "output_dir": str(disk / "run")})
    mount = f"mount -t tmpfs tmpfs {disk} && mount -o remount,ro {disk}"
    run = on_separate_disk(mount, command, datasets_cache)
    assert run.returncode == 2
    assert run.stderr.strip().splitlines()[-1] == (
        f"vaswani: output_dir={disk}/run cannot be written to (Read-only file system); choose another"
    )


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "validation"])
def test_resuming_with_an_edited_corpus_is_refused(options, tmp_path, split):
    corpus = tmp_path / "corpus.jsonl"
    shutil.copy(options[f"{split}_file"], corpus)
    options |= {f"{split}_file": str(corpus), "max_steps": 6}
    start(options).join()
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join([*lines[:-2], lines[-1], lines[-2]]) + "\n")
    process = start(options, max_steps=12, resume_from_checkpoint="true")
    process.join()
    assert process.exitcode == 2
    line = output_of(options).strip().splitlines()[-1]
    assert line.startswith(
        f"vaswani: the data changed since {options['output_dir']}/checkpoint-6 was saved ({split}); "
    )
    corpus.write_text("\n".join(lines) + "\n")
    moved = corpus.rename(tmp_path / "moved.jsonl")  # the same rows elsewhere are the same
    options |= {f"{split}_file": str(moved), "max_steps": 12}
    process = start(options, resume_from_checkpoint="true")
    process.join()
    assert process.exitcode == 0, output_of(options)


@pytest.mark.slow
def test_sigterm_during_an_evaluation_saves_a_checkpoint(options, tmp_path):
    options |= {"eval_steps": 5, "save_steps": 1000}
    whole = {**options, "output_dir": str(tmp_path / "whole")}
    start(whole).join()
    process = start(options, get_sigterm_in_an_evaluation)
    process.join()
    assert process.exitcode == 128 + signal.SIGTERM
    assert "vaswani: stopped by SIGTERM after update 5; " in output_of(options)
    assert [path.name for path in checkpoints(Path(options["output_dir"]))] == ["checkpoint-5"]
    process = start(options, resume_from_checkpoint="true")
    process.join()
    assert process.exitcode == 0, output_of(options)
    assert_same_weights(tmp_path / "whole", Path(options["output_dir"]))
