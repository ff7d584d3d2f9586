"""Which checkpoint a run continues from, and whether an output directory is free for a new run.

transformers writes `trainer_state.json` last, and `Trainer._save_checkpoint` removes an old one first: a
checkpoint directory is complete exactly when it holds a readable one.
"""

import json
import re
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from vaswani.errors import UserError
from vaswani.hub.run_facts import SETTINGS_FILE

logger = logging.get_logger(__name__)


def is_complete(checkpoint: Path) -> bool:
    """Whether everything in the checkpoint was written: its state, which comes last, can be read."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    weights = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    return "global_step" in state and any((checkpoint / name).is_file() for name in weights)


def checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoint directories of a run, complete or not, latest first."""
    numbered = {
        int(match[1]): path
        for path in (output_dir.iterdir() if output_dir.is_dir() else ())
        if (match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name)) and path.is_dir()
    }
    return [numbered[step] for step in sorted(numbered, reverse=True)]


def last_complete_checkpoint(output_dir: Path) -> Path | None:
    """The latest checkpoint from which training can continue."""
    return next(filter(is_complete, checkpoints(output_dir)), None)


def checkpoint_to_resume(output_dir: Path, resume_from_checkpoint: str | None) -> Path | None:
    """Find where training starts: a checkpoint, or `None` for the beginning.

    Args:
        output_dir: where the run keeps its checkpoints.
        resume_from_checkpoint: "true" for the last complete checkpoint of `output_dir`, the path of one, or
            "false" or `None` to start anew.

    Raises:
        UserError: when a new run would mix with an earlier one, and when there is nothing to continue.
    """
    choice = resume_from_checkpoint or "false"
    if choice.lower() == "false":
        _check_free(output_dir)
        return None
    if choice.lower() != "true":
        return _given_checkpoint(Path(choice))
    found = last_complete_checkpoint(output_dir)
    for path in checkpoints(output_dir):
        if path == found:
            break
        logger.warning(f"{path} is half-written and is not used.")
    if found is None and not (output_dir / SETTINGS_FILE).is_file():
        raise UserError(
            f"{output_dir} holds no run to resume; leave out --resume_from_checkpoint to start one"
        )
    logger.warning(
        f"Resuming from {found}." if found else f"{output_dir} holds no complete checkpoint: starting anew."
    )
    return found


def _check_free(output_dir: Path) -> None:
    if output_dir.exists() and not output_dir.is_dir():
        raise UserError(f"output_dir={output_dir} is a file; choose a directory")
    found = [*(path.name for path in checkpoints(output_dir)[:1])]
    found += [name for name in (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME) if (output_dir / name).is_file()]
    if found:
        raise UserError(
            f"output_dir={output_dir} already holds a run ({found[0]}); continue it with "
            "--resume_from_checkpoint true, or choose another --output_dir"
        )


def _given_checkpoint(path: Path) -> Path:
    if not path.is_dir():
        raise UserError(
            f"resume_from_checkpoint={path} is not a directory; give true or the path of a checkpoint"
        )
    if not is_complete(path):
        before = last_complete_checkpoint(path.parent)
        remedy = f"the last complete one is {before}" if before else "there is no complete one beside it"
        raise UserError(f"resume_from_checkpoint={path} is not a complete checkpoint; {remedy}")
    return path
