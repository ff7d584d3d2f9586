"""What to tell a user whose training stopped, in one line."""

from pathlib import Path

from vaswani.errors import causes, is_full_disk, one_line
from vaswani.training.checkpoints import last_complete_checkpoint

# How gloo and NCCL tell that another process is gone.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "NCCL",
    "DistBackendError",
)


def describe_failure(error: BaseException, output_dir: Path) -> str:
    """The cause, and what was saved before it."""
    return f"{_cause(error, output_dir)}; {what_was_saved(output_dir)}"


def what_was_saved(output_dir: Path) -> str:
    """From where a run can go on."""
    checkpoint = last_complete_checkpoint(output_dir)
    if checkpoint is None:
        return "no checkpoint had been saved"
    return f"the last complete checkpoint is {checkpoint}; continue with --resume_from_checkpoint true"


def _cause(error: BaseException, output_dir: Path) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if is_full_disk(error):
        return f"no space left on the disk of {output_dir}: free some, or choose another --output_dir"
    text = one_line(error)
    if any(words in str(link) for link in causes(error) for words in _LOST_PEER):
        return f"another process of this training is gone; what it wrote last tells why ({text})"
    if "out of memory" in text.lower() or isinstance(error, MemoryError):
        return (
            "out of memory: lower max_tokens_per_batch (and raise gradient_accumulation_steps to compensate)"
        )
    if "Timed out waiting" in text:  # gloo's words
        return f"another process of this training did not answer within ddp_timeout ({text})"
    return f"training failed: {type(error).__name__}: {text}"
