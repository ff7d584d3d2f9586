"""Atomic checkpoints, and the choice of the checkpoint that a run resumes.

A checkpoint is written to a temporary folder. The manifest, with the hash of every file, is written last and
marks the checkpoint as complete; then the folder is moved to its place. So a checkpoint in its place is
complete, unless the disk loses part of it later, which the hashes reveal.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers.trainer import (
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from vaswani.errors import UserError
from vaswani.files.atomic_files import sha256_of, sync
from vaswani.files.run_files import ADAPTER_WEIGHTS, LOG_FILE, MANIFEST, SETTINGS_FILE, checkpoints

_WEIGHTS = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, ADAPTER_WEIGHTS)
logger = logging.get_logger(__name__)

UNFINISHED = "unfinished-"


def checkpoint_of(output_dir: Path, step: int) -> Path:
    """The folder of the checkpoint of an update."""
    return output_dir / f"{PREFIX_CHECKPOINT_DIR}-{step}"


def unfinished_checkpoint(output_dir: Path, step: int) -> Path:
    """The folder where the checkpoint of an update is written before it is moved to its place in the run."""
    name = checkpoint_of(output_dir, step).name
    return output_dir / f"{UNFINISHED}{name}" / name


def finish_checkpoint(unfinished: Path, content: dict[str, Any]) -> Path:
    """Write the manifest, which marks a checkpoint as complete, and move the checkpoint to its place.

    Args:
        unfinished: its folder (see `unfinished_checkpoint`).
        content: content of the manifest besides the hashes; plain JSON values.

    Returns:
        The folder in its place; it replaces an older one.
    """
    files = sorted(path for path in unfinished.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(unfinished)): sha256_of(path) for path in files}
    manifest = unfinished / MANIFEST
    manifest.write_text(json.dumps({**content, "files": hashes}, indent=2), encoding="utf-8")
    for path in [*files, manifest, *(path for path in unfinished.rglob("*") if path.is_dir()), unfinished]:
        sync(path)
    finished = unfinished.parent.with_name(unfinished.name)
    if finished.exists():
        os.rename(finished, unfinished.with_name("replaced"))
    os.rename(unfinished, finished)
    sync(finished.parent)
    shutil.rmtree(unfinished.parent, ignore_errors=True)
    return finished


def discard_unfinished(output_dir: Path) -> None:
    """Delete the unfinished checkpoints of runs that died."""
    for folder in output_dir.glob(f"{UNFINISHED}*{PREFIX_CHECKPOINT_DIR}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def fault_of(checkpoint: Path) -> str | None:
    """Return why training cannot continue from a checkpoint, or None if it can.

    A checkpoint without a manifest, as transformers' own trainer writes it, is judged by its trainer state,
    which is written last.
    """
    try:
        state = json.loads((checkpoint / LOG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return f"{LOG_FILE} is missing or damaged"
    if "global_step" not in state or not _has_weights(checkpoint):
        return "it has no weights"
    if missing := _missing_state(checkpoint):
        return f"it holds a model without the state of its training ({missing} is missing)"
    try:
        for name, sha256 in read_manifest(checkpoint)["files"].items():
            if sha256_of(checkpoint / name) != sha256:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"a file is missing or damaged ({type(error).__name__}: {error})"
    return None


def _missing_state(checkpoint: Path) -> str | None:
    """The first missing file that a run needs to resume, besides weights and `trainer_state.json`."""
    if (checkpoint / "latest").is_file():  # DeepSpeed keeps the state in its own folders
        return None
    if not any((checkpoint / name).exists() for name in (OPTIMIZER_NAME, OPTIMIZER_NAME_BIN)):
        return OPTIMIZER_NAME
    if not (checkpoint / SCHEDULER_NAME).is_file():
        return SCHEDULER_NAME
    return None if any(checkpoint.glob("rng_state*.pth")) else "rng_state.pth"


def _has_weights(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WEIGHTS)


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest of a checkpoint; with no files if there is none, as from transformers' own trainer.

    Raises:
        ValueError: the manifest is damaged.
    """
    path = checkpoint / MANIFEST
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"files": {}}


def last_complete_checkpoint(output_dir: Path) -> Path | None:
    """The latest checkpoint from which training can continue; None if there is none."""
    return next((path for path in checkpoints(output_dir) if fault_of(path) is None), None)


def what_was_saved(output_dir: Path) -> str:
    """Describe the checkpoint from which a run can continue."""
    checkpoint = last_complete_checkpoint(output_dir)
    if checkpoint is None:
        return "no checkpoint to resume from had been saved"
    return f"the last complete checkpoint is {checkpoint}; continue with --resume_from_checkpoint true"


def checkpoint_to_resume(output_dir: Path, resume_from_checkpoint: str | None) -> Path | None:
    """Find where training starts: a checkpoint, or `None` for the beginning.

    Args:
        output_dir: where the run keeps its checkpoints.
        resume_from_checkpoint: "true" for the last complete checkpoint of `output_dir`, the path of one, or
            "false" or `None` for a new run.

    Raises:
        UserError: a new run would mix with an earlier one, or there is nothing to resume.
    """
    choice = resume_from_checkpoint or "false"
    if choice.lower() == "false":
        _check_free(output_dir)
        return None
    if choice.lower() != "true":
        checkpoint = given_checkpoint(Path(choice))
        if checkpoint.absolute().parent != output_dir.absolute():
            _check_free(output_dir)
        return checkpoint
    for path in checkpoints(output_dir):
        if (fault := fault_of(path)) is None:
            logger.warning(f"Resuming from {path}.")
            return path
        logger.warning(f"{path} is not used: {fault}.")
    _check_nothing_is_lost(output_dir)
    logger.warning(f"{output_dir} holds no complete checkpoint: starting anew.")
    return None


def given_checkpoint(path: Path) -> Path:
    """Return a checkpoint that the user named; raise `UserError` if training cannot continue from it."""
    if not path.is_dir():
        raise UserError(
            f"resume_from_checkpoint={path} is not a directory; give true or the path of a checkpoint"
        )
    try:
        fault = fault_of(path)
        before = (last_complete_checkpoint(path) or last_complete_checkpoint(path.parent)) if fault else None
    except PermissionError as error:
        raise UserError(f"resume_from_checkpoint={path} cannot be read ({error.strerror})") from error
    if fault:
        remedy = f"the last complete one is {before}" if before else "there is no complete one beside it"
        raise UserError(f"resume_from_checkpoint={path} is not a complete checkpoint: {fault}; {remedy}")
    return path


def check_writable(folder: Path, option: str = "output_dir") -> None:
    """Raise `UserError`, naming the option, unless a folder can be written to or created; leave nothing."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{option}={folder} is a file; choose a directory")
        places = (folder, *folder.absolute().parents)
        existing = next(place for place in places if place.exists() or place.is_symlink())
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(
            f"{option}={folder} cannot be written to ({error.strerror}); choose another"
        ) from error


def check_same_data(checkpoint: Path, identity: dict[str, Any]) -> None:
    """Raise `UserError` if the identity of the corpus is not the one in the checkpoint's manifest."""
    data = read_manifest(checkpoint).get("data", {})
    if "teacher" not in data:  # as earlier versions wrote it
        identity = {name: value for name, value in identity.items() if name != "teacher"}
    if data and data != identity:
        changed = sorted(name for name in {*data, *identity} if data.get(name) != identity.get(name))
        raise UserError(
            f"the data changed since {checkpoint} was saved ({', '.join(changed)}); "
            "restore it, or train anew in another --output_dir"
        )


def _check_nothing_is_lost(output_dir: Path) -> None:
    """Raise `UserError` unless the folder holds a run that can start anew without losing a saved model."""
    if not (output_dir / SETTINGS_FILE).is_file():
        raise UserError(
            f"{output_dir} holds no run to resume; leave out --resume_from_checkpoint to start one"
        )
    for path in (*checkpoints(output_dir), output_dir):
        if _has_weights(path) and (path / LOG_FILE).is_file() and _missing_state(path):
            raise UserError(
                f"{path} cannot be resumed: {fault_of(path)}, as after save_only_model or the end of a run; "
                "start a new run in another --output_dir"
            )


def _check_free(output_dir: Path) -> None:
    """Raise `UserError` if a folder holds a run."""
    found = [path.name for path in checkpoints(output_dir)[:1]]
    found += [name for name in _WEIGHTS if (output_dir / name).is_file()]
    if found:
        raise UserError(
            f"output_dir={output_dir} already holds a run ({found[0]}); continue it with "
            "--resume_from_checkpoint true, or choose another --output_dir"
        )
