"""One line that names the cause, the remedy and what was saved."""

import errno
from types import SimpleNamespace

import datasets
import pytest
import torch

from tiny_runs import as_flags
from vaswani.errors import UserError
from vaswani.training.config.config_file import load_config
from vaswani.training.runs import failures
from vaswani.training.runs.failures import describe_failure, explain_out_of_memory
from vaswani.training.runs.translation import train


def caused_by(cause: BaseException, message: str) -> RuntimeError:
    error = RuntimeError(message)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
        RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"),
        RuntimeError("basic_ios::clear: iostream error"),
        caused_by(OSError(errno.ENOSPC, "No space left on device"), "while saving"),
    ],
)
def test_a_full_disk(error, tmp_path):
    message = describe_failure(error, tmp_path)
    assert message.startswith(
        f"no space left on the disk of {tmp_path}: free some, or choose another --output_dir; "
    )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes. Error code 12"
        ),
    ],
)
def test_out_of_memory_names_the_option_that_helps(error, tmp_path):
    assert describe_failure(error, tmp_path).startswith(
        "out of memory: set activation_checkpointing=true, as a resumed run may too, or start a new run with "
        "a lower max_tokens_per_batch"
    )


def test_out_of_memory_while_reading_is_not_blamed_on_batches(tmp_path):
    message = describe_failure(caused_by(MemoryError(), "while reading"), tmp_path)
    assert message.startswith("out of memory outside of the model: ")


def test_a_model_too_large_for_memory_is_not_blamed_on_batches():
    with (
        pytest.raises(UserError, match="the model does not fit into memory: lower its widths"),
        explain_out_of_memory(),
    ):
        torch.empty(2**60)
    with pytest.raises(RuntimeError, match="something else"), explain_out_of_memory():
        raise RuntimeError("something else")


@pytest.mark.parametrize("place", ["cache", "temporary", "output"])
@pytest.mark.parametrize("named", [True, False])
def test_a_full_disk_is_identified_by_the_file_or_the_free_space(tmp_path, monkeypatch, place, named):
    folders = {name: tmp_path / name for name in ("cache", "temporary", "output")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folders["cache"])
    monkeypatch.setattr(failures.tempfile, "gettempdir", lambda: str(folders["temporary"]))
    free = dict.fromkeys(folders.values(), 10**9) | ({} if named else {folders[place]: 100})
    monkeypatch.setattr(failures.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free[folder]))
    error = OSError(errno.ENOSPC, "No space left on device", *([str(folders[place] / "x")] if named else []))
    remedy = {
        "cache": "set HF_DATASETS_CACHE or HF_HOME",
        "temporary": "set TMPDIR",
        "output": "choose another",
    }
    message = describe_failure(error, folders["output"])
    assert message.startswith(f"no space left on the disk of {folders[place]}: free some, or {remedy[place]}")


def test_a_closed_standard_output_is_not_reported_as_a_lost_process(tmp_path, monkeypatch):
    closed = BrokenPipeError(errno.EPIPE, "Broken pipe")
    for processes in ("1", "2"):
        monkeypatch.setenv("WORLD_SIZE", processes)
        assert describe_failure(closed, tmp_path).startswith("nobody reads standard output any more")
    lost = RuntimeError("[gloo/transport/tcp/pair.cc] writev [127.0.0.1]: Broken pipe")
    assert describe_failure(lost, tmp_path).startswith("another process of this training is gone")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert describe_failure(lost, tmp_path).startswith("training failed: RuntimeError: [gloo")


BAD_OPTIONS = {
    "a malformed optim_args": {"optim_args": "nonsense"},
    "a package that is missing": {"optim": "galore_adamw"},
    "an unknown argument of the schedule": {
        "lr_scheduler_type": "cosine",
        "lr_scheduler_kwargs": '{"a": 1}',
    },
    "an impossible argument of the schedule": {
        "lr_scheduler_type": "polynomial",
        "lr_scheduler_kwargs": '{"power": "x"}',
        "warmup_steps": 0,
    },
    "a missing argument of the schedule": {"lr_scheduler_type": "warmup_stable_decay"},
    "an unknown argument of checkpointing": {
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": '{"a": 1}',
    },
    "a logger that is missing": {"report_to": "azure_ml"},
    "a generation configuration that is none": {"generation_config": __file__},
    "a file that is missing": {"accelerator_config": "nowhere.json"},
    "a best model by nothing": {"save_strategy": "best"},
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_options_refused_by_libraries_raise_a_user_error(tiny_run, case):
    options = {**tiny_run, **BAD_OPTIONS[case]}
    for name in ("validation_file", "test_file"):
        del options[name]
    with pytest.raises(UserError) as raised:
        train(load_config(None, as_flags(options)))
    assert "\n" not in str(raised.value)


def test_other_failures_give_one_line(tmp_path):
    message = describe_failure(KeyError("first\nsecond"), tmp_path)
    assert "\n" not in message
    assert message.startswith("training failed: KeyError: ")


def test_the_message_names_the_last_checkpoint(tmp_path):
    assert describe_failure(KeyboardInterrupt(), tmp_path) == (
        "interrupted; no checkpoint to resume from had been saved"
    )
    checkpoint = tmp_path / "checkpoint-7"
    checkpoint.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (checkpoint / name).touch()
    (checkpoint / "trainer_state.json").write_text('{"global_step": 7}')
    (tmp_path / "checkpoint-9").mkdir()
    assert describe_failure(KeyboardInterrupt(), tmp_path) == (
        f"interrupted; the last complete checkpoint is {checkpoint}; "
        "continue with --resume_from_checkpoint true"
    )
