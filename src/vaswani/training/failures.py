"""What to tell a user whose training stopped, in one line."""

import errno
from collections.abc import Iterator
from pathlib import Path

from vaswani.training.checkpoints import last_complete_checkpoint

# transformers and safetensors report a full disk as errors of their own, with these words in them.
_FULL_DISK = ("No space left on device", "os error 28", "PytorchStreamWriter failed", "iostream error")


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
    if any(_is_full_disk(link) for link in _chain(error)):
        return f"no space left on the disk of {output_dir}: free some, or choose another --output_dir"
    text = " ".join(str(error).split())
    if "out of memory" in text.lower() or isinstance(error, MemoryError):
        return (
            "out of memory: lower max_tokens_per_batch (and raise gradient_accumulation_steps to compensate)"
        )
    return f"training failed: {type(error).__name__}: {text}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that led to it."""
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _is_full_disk(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return any(words in str(error) for words in _FULL_DISK)
