"""One line for a user whose training failed: the cause, the remedy, and what was saved."""

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets

from vaswani.errors import UserError, causes, is_full_disk, one_line
from vaswani.training.trainer.checkpoints import what_was_saved

FULL = 64 * 2**20  # a disk with fewer free bytes counts as full
# Phrases in errors of gloo and NCCL if another process is gone.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "NCCL",
    "DistBackendError",
)
# Phrases in errors of PyTorch if memory is full, on GPUs and CPUs.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")


def describe_failure(error: BaseException, output_dir: Path) -> str:
    """Return the cause of a failure, and what was saved before it."""
    if any(isinstance(link, pickle.UnpicklingError) for link in causes(error)):
        return (
            "the checkpoint's optimizer.pt, scheduler.pt or rng_state.pth is pickled with more than tensors, "
            "which could be code, and is not loaded; resume from another checkpoint, "
            "--resume_from_checkpoint DIR"
        )
    return f"{_cause(error, output_dir)}; {what_was_saved(output_dir)}"


def _cause(error: BaseException, output_dir: Path) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if is_full_disk(error):
        return _full_disk(error, output_dir)
    if any(isinstance(link, BrokenPipeError) for link in causes(error)):
        return (
            "nobody reads standard output any more (as after `| head`); write it to a file to see parts of it"
        )
    text = one_line(error)
    if _is_lost_peer(error):
        return f"another process of this training is gone; see its last message ({text})"
    if any(isinstance(link, MemoryError) for link in causes(error)):  # of Python; PyTorch raises others
        return "out of memory outside of the model: end other programs, or train on fewer or shorter rows"
    if is_out_of_memory(error):
        return (
            "out of memory: set activation_checkpointing=true, as a resumed run may too, or start a new run "
            "with a lower max_tokens_per_batch (and a higher gradient_accumulation_steps to compensate)"
        )
    if "Timed out waiting" in text:  # gloo's words
        return f"another process of this training did not answer within ddp_timeout ({text})"
    return f"training failed: {type(error).__name__}: {text}"


def _is_lost_peer(error: BaseException) -> bool:
    has_peers = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return has_peers and any(words in str(link) for link in causes(error) for words in _LOST_PEER)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that the memory of the machine or of its device is full."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _OUT_OF_MEMORY)


def _full_disk(error: BaseException, output_dir: Path) -> str:
    """Name the full disk: that of the file that could not be written, or another that a run writes to."""
    remedies = {
        output_dir.absolute(): "choose another --output_dir",
        Path(
            datasets.config.HF_DATASETS_CACHE
        ): "set HF_DATASETS_CACHE or HF_HOME to a folder on another disk",
        Path(tempfile.gettempdir()): "set TMPDIR to a folder on another disk",
    }
    files = [
        Path(os.fsdecode(link.filename)).absolute()
        for link in causes(error)
        if isinstance(link, OSError) and isinstance(link.filename, str | bytes)
    ]
    named = [folder for folder in remedies for file in files if file.is_relative_to(folder)]
    full = [folder for folder in remedies if _free_bytes(folder) < FULL]
    folder = [*named, *full, output_dir.absolute()][0]
    shown = output_dir if folder == output_dir.absolute() else folder
    return f"no space left on the disk of {shown}: free some, or {remedies[folder]}"


def _free_bytes(folder: Path) -> int:
    """Free bytes of the disk that holds, or will hold, a folder."""
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Raise `UserError` if the model alone does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "the model does not fit into memory: lower its widths (d_model, ..._ffn_dim), its layers or "
            "vocab_size"
        ) from error
