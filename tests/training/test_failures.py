"""One line that names the cause, the remedy and what was saved."""

import errno

import pytest
import torch

from vaswani.training.failures import describe_failure


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
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: out of memory"),
        MemoryError(),
    ],
)
def test_out_of_memory_names_the_option_that_helps(error, tmp_path):
    assert describe_failure(error, tmp_path).startswith("out of memory: lower max_tokens_per_batch")


def test_other_failures_are_one_line(tmp_path):
    message = describe_failure(KeyError("first\nsecond"), tmp_path)
    assert "\n" not in message
    assert message.startswith("training failed: KeyError: ")


def test_what_was_saved_is_named(tmp_path):
    assert describe_failure(KeyboardInterrupt(), tmp_path) == "interrupted; no checkpoint had been saved"
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
