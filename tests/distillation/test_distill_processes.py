"""Real processes: killed while the teacher or the student is at work, and two that share the work."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny_runs import as_flags

LAUNCH = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "--module"]


@pytest.fixture
def options(tiny_run, teacher) -> dict:
    options = {**tiny_run, "teacher": teacher, "targets": "both", "teacher_top_k": 8, "baseline": "true"}
    options |= {"generation_num_beams": 1, "teacher_num_beams": 2, "max_target_length": 16, "max_steps": 20}
    return {**options, "dropout": 0.3, "save_steps": 4, "cosine_weight": 0}


def start(options: dict, cache: Path, *launch: str) -> subprocess.Popen:
    environment = {
        **os.environ,
        "HF_DATASETS_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *(launch or ("-m",)), "vaswani.cli", "distill", *as_flags(options)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen) -> str:
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def kill_when(process: subprocess.Popen, sign: Path) -> None:
    """Kill a process as soon as a file or folder is there."""
    while not sign.exists():
        assert process.poll() is None, f"it ended by itself: {process.communicate()}"
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def contents(folder: Path, pattern: str) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob(pattern))}


@pytest.mark.slow
def test_killed_in_every_phase_a_distillation_ends_as_if_it_never_was(options, tmp_path, cache_of_its_own):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start({**options, "output_dir": whole}, cache_of_its_own))
    caches = ["teacher_cache/targets/manifest.json", "teacher_cache/logits/manifest.json"]
    begun = {**options, "output_dir": killed}
    for sign in [*caches, "checkpoint-8", "baseline/checkpoint-4"]:
        kill_when(start(begun, cache_of_its_own), killed / sign)
        begun["resume_from_checkpoint"] = "true"
    finish(start(begun, cache_of_its_own))
    for pattern in ("teacher_cache/*/shard-*", "model.safetensors", "baseline/model.safetensors"):
        expected = contents(whole, pattern)
        assert expected
        assert contents(killed, pattern) == expected
    assert (killed / "report.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("objectives", [{}, {"cosine_weight": 1, "relation_weight": 1, "relation_heads": 2}])
def test_two_processes_train_as_one_does(options, tmp_path, cache_of_its_own, objectives):
    options |= {"dropout": 0, "max_steps": 4, "save_steps": 4, "optim": "sgd", **objectives}
    options |= {"learning_rate": 0.1, "max_tokens_per_batch": 320}  # 16 batches, 8 of the references
    if objectives:
        del options["teacher_top_k"]
    del options["test_file"], options["validation_file"]
    one, two = tmp_path / "one", tmp_path / "two"
    output = finish(start({**options, "output_dir": two}, cache_of_its_own, *LAUNCH))
    assert output.count("rows have the teacher's translation") == 1
    finish(start({**options, "output_dir": one, "gradient_accumulation_steps": 2}, cache_of_its_own))
    for model in (".", "baseline"):
        expected, found = (load_file(folder / model / "model.safetensors") for folder in (one, two))
        for name, weight in expected.items():
            torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)
