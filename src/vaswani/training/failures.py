"""What to tell a user whose training stopped, in one line."""

from pathlib import Path

from vaswani.errors import is_full_disk, one_line
from vaswani.training.checkpoints import last_complete_checkpoint


def describe_failure(error: BaseException, output_dir: Path) -> str:
    """The cause, and what was saved before it."""
    checkpoint = last_complete_checkpoint(output_dir)
    if checkpoint is None:
        saved = "no checkpoint had been saved"
    else:
        saved = f"the last complete checkpoint is {checkpoint}; continue with --resume_from_checkpoint true"
    return f"{_cause(error, output_dir)}; {saved}"


def _cause(error: BaseException, output_dir: Path) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if is_full_disk(error):
        return f"no space left on the disk of {output_dir}: free some, or choose another --output_dir"
    text = one_line(error)
    if "out of memory" in text.lower() or isinstance(error, MemoryError):
        return (
            "out of memory: lower max_tokens_per_batch (and raise gradient_accumulation_steps to compensate)"
        )
    return f"training failed: {type(error).__name__}: {text}"
