"""Several processes of one command: started, stopped and ended together."""

import os
import re
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from real_processes import start
from run_records import assert_same_weights

from launched_copies import LaunchedCopies
from tiny_runs import as_flags, resolved
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.files import named_configs
from vaswani.files.run_files import checkpoints
from vaswani.training.launch.launcher import first_failed, launch
from vaswani.training.trainer.checkpoints import fault_of, last_complete_checkpoint

pytestmark = pytest.mark.process

ACCELERATE = ["-m", "accelerate.commands.launch"]
CONFIGS = named_configs.FOLDER / "accelerate"


def start_two(options: dict) -> LaunchedCopies:
    """The command of `two_process_command` with the imports done."""
    printed = Path(f"{options['output_dir']}-{time.monotonic_ns()}")
    return LaunchedCopies(["train", *as_flags(options)], 2, printed)


def two_process_command(options: dict) -> list[str]:
    return ["-m", "vaswani", "train", *as_flags(options), "--num_processes", "2"]


def last_line(errors: str) -> str:
    assert "Traceback" not in errors, errors
    return errors.strip().splitlines()[-1]


def children_of(process: LaunchedCopies) -> list[int]:
    """The training processes, by rank."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, listed))


@pytest.fixture
def options(tiny_run: dict) -> dict:
    del tiny_run["test_file"], tiny_run["validation_file"]
    return tiny_run | {"dropout": 0.3, "max_steps": 120, "save_steps": 60}


@pytest.mark.slow
def test_sigterm_saves_in_all_processes_and_the_run_can_be_resumed(options, tmp_path):
    whole = start_two({**options, "output_dir": tmp_path / "whole"})
    stopped = {**options, "output_dir": tmp_path / "stopped"}
    process = start_two(stopped)
    process.wait_for_update(20)
    process.send_signal(signal.SIGTERM)
    errors = process.wait(60)
    assert process.returncode == 128 + signal.SIGTERM
    assert last_line(errors).startswith("vaswani: stopped by SIGTERM after update ")
    assert "--resume_from_checkpoint true" in last_line(errors)
    saved = last_complete_checkpoint(tmp_path / "stopped")
    assert saved is not None
    assert int(saved.name.split("-")[1]) % 60 != 0  # the signal's own
    assert not (tmp_path / "stopped" / "model.safetensors").exists()  # it is not finished

    resumed = start_two({**stopped, "resume_from_checkpoint": "true"})
    for each in (whole, resumed):
        errors = each.wait(120)
        assert each.returncode == 0, errors
    assert_same_weights(tmp_path / "whole", tmp_path / "stopped")


@pytest.mark.slow
def test_ctrl_c_saves_in_all_processes_and_stops_them_with_one_line(options):
    process = start_two(options | {"max_steps": 100_000, "save_steps": 10})
    process.wait_for_update(25)
    process.send_signal(signal.SIGINT)
    errors = process.wait(60)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert errors.count("vaswani: ") == 1
    assert last_line(errors).startswith("vaswani: stopped by Ctrl-C after update ")
    saved = last_complete_checkpoint(Path(options["output_dir"]))
    assert saved is not None
    assert f"after update {int(saved.name.split('-')[1]):,};" in last_line(errors)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_when_one_process_dies_the_others_stop_promptly_with_a_message(options, rank):
    options |= {"max_steps": 100_000, "save_steps": 10}
    process = start_two(options)
    process.wait_for_update(25)
    ranks = children_of(process)
    os.kill(ranks[rank], signal.SIGKILL)
    killed = time.monotonic()
    errors = process.wait(60)
    assert time.monotonic() - killed < 20
    assert process.returncode == 1
    line = last_line(errors)
    assert line.startswith(f"vaswani: process {rank} of 2 was killed (SIGKILL), so the others were ended; ")
    assert f"the last complete checkpoint is {last_complete_checkpoint(Path(options['output_dir']))}" in line
    for each in ranks:
        assert not Path(f"/proc/{each}").exists()


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ((None, None), None),
        ((0, None), None),
        ((0, 1), 1),
        ((3, 1), 0),
        ((1, -9), 1),
        ((1, None, -9), 2),
        ((-15, -9), 0),
    ],
)
def test_the_failure_of_a_killed_process_takes_precedence(statuses, expected):
    assert first_failed(statuses) == expected


@pytest.mark.slow
def test_when_the_launcher_is_killed_its_processes_save_and_end(options):
    process = start_two(options | {"max_steps": 100_000, "save_steps": 100_000})
    process.wait_for_update(10)
    ranks = children_of(process)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    for each in ranks:
        wait_for_end(each)
    assert last_line(process.errors()).startswith("vaswani: stopped by SIGTERM after update ")
    assert last_complete_checkpoint(Path(options["output_dir"])) is not None


def wait_for_end(pid: int) -> None:
    """Of a process whose parent is gone; it may stay listed as a zombie."""
    deadline = time.monotonic() + 30
    with suppress(FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.slow
def test_accelerate_starts_the_same_training(options, tmp_path, datasets_cache):
    """Ours is stopped by SIGTERM on the way; the processes of both ends import all themselves."""
    ours = {**options, "output_dir": tmp_path / "ours"}
    process = start_two(ours)
    process.wait_for_update(6)
    process.send_signal(signal.SIGTERM)
    errors = process.wait(60)
    assert process.returncode == 128 + signal.SIGTERM
    assert last_line(errors).startswith("vaswani: stopped by SIGTERM after update ")

    command = [*ACCELERATE, "--config_file", str(CONFIGS / "cpu_ddp.yaml"), "-m", "vaswani", "train"]
    runs = {
        "ours": two_process_command({**ours, "resume_from_checkpoint": "true"}),
        "accelerate": [*command, *as_flags({**options, "output_dir": tmp_path / "accelerate"})],
    }
    for name, arguments in runs.items():
        process = start(arguments, datasets_cache)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, f"{name}: {errors}"
        assert output.count("'train_runtime'") == 1  # one process tells
        assert len(list((tmp_path / name / "checkpoint-120").glob("rng_state_*.pth"))) == 2
    assert_same_weights(*(tmp_path / name for name in runs))


@pytest.mark.slow
def test_accelerate_shards_the_model_on_request(options, datasets_cache):
    command = [*ACCELERATE, "--config_file", str(CONFIGS / "fsdp2.yaml"), "--num_processes", "2"]
    command += ["--mixed_precision", "no", "-m", "vaswani", "train"]
    process = start([*command, *as_flags(options | {"max_steps": 3})], datasets_cache)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    counts = re.search(r"model: ([\d,]+) parameters \(of which this process holds ([\d,]+)\)", output)
    whole, held = (int(count.replace(",", "")) for count in counts.groups())
    assert held == pytest.approx(whole / 2, rel=0.01)


@pytest.mark.slow
def test_two_machines_train_together(options, datasets_cache):
    """Both are this one: each launcher believes to be on a machine of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [*ACCELERATE, "--config_file", str(CONFIGS / "multi_node.yaml"), "--num_processes", "2"]
    command += ["--mixed_precision", "no", "--main_process_ip", "127.0.0.1", "--main_process_port", port]
    flags = as_flags(options | {"max_steps": 3, "save_steps": 3})
    machines = [
        start([*command, "--machine_rank", rank, "-m", "vaswani", "train", *flags], datasets_cache)
        for rank in "01"
    ]
    for machine in machines:
        _, errors = machine.communicate(timeout=120)
        assert machine.returncode == 0, errors
    checkpoint = Path(options["output_dir"]) / "checkpoint-3"
    assert fault_of(checkpoint) is None
    assert len(list(checkpoint.glob("rng_state_*.pth"))) == 2


@pytest.mark.slow
def test_starting_one_of_two_requested_processes_gives_an_error(options, datasets_cache):
    command = [*ACCELERATE, "--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "-m", "vaswani", "train", *as_flags(options)]
    process = start(command, datasets_cache)
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "vaswani: accelerate was asked for several processes and started one" in errors
    assert checkpoints(Path(options["output_dir"])) == []


def test_an_invalid_configuration_gives_one_error_before_starting_processes(options, capsys):
    flags = as_flags({**options, "label_smoothing_factor": 2})
    assert run(["train", *flags, "--num_processes", "2"]) == 2
    assert capsys.readouterr().err == ("vaswani: label_smoothing_factor=2.0 must be at least 0 and below 1\n")


@pytest.mark.parametrize("number", [0, -1])
def test_an_invalid_number_of_processes_gives_an_error(options, capsys, number):
    assert run(["train", *as_flags(options), "--num_processes", str(number)]) == 2
    assert (
        capsys.readouterr().err == f"vaswani: num_processes={number} must be at least 1 and at most 1,024\n"
    )


def test_the_launcher_does_not_use_the_devices(options, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("vaswani.training.launch.launcher.launch", lambda *_: 0)
    monkeypatch.setattr(
        "vaswani.training.config.config_file.load_config",
        lambda *_: (
            seen.append(os.environ.get("ACCELERATE_USE_CPU"))
            or SimpleNamespace(output_dir="", training=SimpleNamespace(use_cpu=False))
        ),
    )
    assert run(["train", *as_flags(options), "--num_processes", "2"]) == 0
    assert seen == ["true"]
    assert "ACCELERATE_USE_CPU" not in os.environ


def test_one_process_has_one_of_several_devices(options, monkeypatch):
    arguments = resolved(options).training
    arguments._n_gpu = 4  # as transformers counts them
    told = []
    monkeypatch.setattr("vaswani.training.config.training_arguments.logger.warning_once", told.append)
    assert arguments.n_gpu == 1
    assert arguments.train_batch_size == arguments.per_device_train_batch_size
    assert told[0] == "There are 4 GPUs, and one is used; --num_processes 4 uses all."


@pytest.mark.parametrize(
    ("devices", "use_cpu", "fits"), [(1, False, False), (1, True, True), (2, False, True)]
)
def test_each_process_needs_a_device_of_its_own(monkeypatch, devices, use_cpu, fits):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: devices)
    monkeypatch.setattr(sys, "executable", "/bin/true")  # what would be started
    if fits:
        assert launch(["train"], 2, str, use_cpu) == 0
    else:
        with pytest.raises(
            UserError, match="num_processes=2, but there are 1 devices; ask for as many, or add"
        ):
            launch(["train"], 2, str, use_cpu)
