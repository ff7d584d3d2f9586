"""Two real processes: each row is trained on and evaluated once, and resuming is exact."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny_runs import as_flags

LAUNCH = [
    "-m",
    "torch.distributed.run",
    "--nproc_per_node",
    "2",
    "--standalone",
    "--module",
    "vaswani.cli",
    "train",
]


def run(options: dict, cache: Path) -> str:
    environment = {**os.environ, "HF_DATASETS_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, *LAUNCH, *as_flags(options)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_two_processes_evaluate_each_row_once_and_resume_exactly(tiny_run, tmp_path, cache_of_its_own):
    tiny_run |= {"max_steps": 8, "save_steps": 6, "dropout": 0.3, "generation_max_length": 8}  # 6: mid-epoch
    output = run(tiny_run, cache_of_its_own)
    assert output.count("test (40 rows): loss ") == 1
    whole = Path(tiny_run["output_dir"])

    resumed = tmp_path / "resumed"
    run(
        {**tiny_run, "output_dir": resumed, "resume_from_checkpoint": whole / "checkpoint-6"},
        cache_of_its_own,
    )
    expected, found = (load_file(folder / "model.safetensors") for folder in (whole, resumed))
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name
