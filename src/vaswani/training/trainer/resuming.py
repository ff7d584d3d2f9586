"""Compare the settings of a run with those of the checkpoint from which it is resumed.

The manifest of a checkpoint holds the settings of its training; `allowed_changes.py` says which of them may
change.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.files.run_files import HISTORY, LOG_FILE, SETTINGS_FILE
from vaswani.training.config.options import (
    default_settings,
    library_defaults,
    training_settings,
    with_present_names,
)
from vaswani.training.config.training_arguments import BaseTrainingArguments
from vaswani.training.trainer.allowed_changes import NUM_PROCESSES, Resumption, Settings, refused_changes
from vaswani.training.trainer.checkpoints import read_manifest

if TYPE_CHECKING:
    from vaswani.training.config.options import BaseConfig

logger = logging.get_logger(__name__)

_MAX_NAMED = 5


def manifest_of(config: BaseConfig | BaseTrainingArguments) -> dict[str, Any]:
    """Settings of a run, or of a trainer without one, for the manifest of a checkpoint: plain JSON values."""
    training = _arguments(config)
    processes = training.world_size  # first: this sets up the devices, and fields that depend on them
    command, settings = None, training_settings(training)
    if not isinstance(config, BaseTrainingArguments):
        command, settings = config.command, config.to_dict()
    return _plain(
        {
            "command": command,
            "settings": settings,
            "library_defaults": library_defaults(training),
            NUM_PROCESSES: processes,
        }
    )


def _arguments(config: BaseConfig | BaseTrainingArguments) -> BaseTrainingArguments:
    return config if isinstance(config, BaseTrainingArguments) else config.training


def check_resumable(checkpoint: Path, config: BaseConfig | BaseTrainingArguments) -> Resumption:
    """Compare the settings of a run, or of a trainer without one, with its checkpoint; print the changes.

    Raises:
        UserError: a setting has changed that cannot; the message has both values, and the remedy.
    """
    manifest = read_manifest(checkpoint)
    state = json.loads((checkpoint / LOG_FILE).read_text(encoding="utf-8"))
    resumption = Resumption(
        checkpoint,
        *_compared(checkpoint, manifest, config),
        update=state["global_step"],
        epoch=state.get("epoch") or 0,
        history=tuple(manifest.get(HISTORY, ())),
    )
    if refused := refused_changes(resumption):
        raise UserError(_refusal(resumption, refused))
    if PartialState().is_main_process:
        for name, (before, now) in resumption.changes.items():
            print(f"{name}: {before} → {now}", file=sys.stderr, flush=True)
    return resumption


def _refusal(resumption: Resumption, refused: dict[str, str]) -> str:
    parts = []
    for name, reason in list(refused.items())[:_MAX_NAMED]:
        before, now = resumption.changes[name]
        parts.append(f"{name}={now} (it was trained with {before}{f'; {reason}' if reason else ''})")
    if len(refused) > _MAX_NAMED:
        parts.append(f"{len(refused) - _MAX_NAMED} more")
    recorded = resumption.checkpoint.parent / SETTINGS_FILE
    remedy = f"resume with --config {recorded}" if recorded.is_file() else "resume with what it was"
    return (
        f"a resumed run cannot change {' and '.join(parts)}; {remedy}, or start a new run in another "
        "--output_dir"
    )


def _compared(
    checkpoint: Path, manifest: dict[str, Any], config: BaseConfig | BaseTrainingArguments
) -> tuple[Settings, Settings]:
    """The settings before and now, as far as both are known."""
    current = manifest_of(config)
    now = _all(current)
    if "settings" not in manifest:
        manifest = manifest | _recorded_beside(checkpoint, manifest, current)
    if "settings" not in manifest:
        logger.warning(
            f"{checkpoint} does not record the settings that it was trained with, and there is no "
            f"{SETTINGS_FILE} beside it: they are not compared with those that are given."
        )
        return now, now
    commands = manifest["command"], current["command"]
    if None not in commands and commands[0] != commands[1]:
        raise UserError(
            f"{checkpoint} is of a run of vaswani {commands[0]}, not of vaswani {commands[1]}; resume it "
            f"with vaswani {commands[0]}"
        )
    if isinstance(config, BaseTrainingArguments):
        defaults = default_settings(config)
    else:
        defaults = config.default_settings()
    not_used = manifest["library_defaults"].keys() - now.keys()  # transformers has dropped these since
    before = _plain(defaults) | {
        name: value for name, value in _all(manifest).items() if name not in not_used
    }
    if None in commands:  # for a trainer without a run, only the arguments are known
        names = now.keys() & {NUM_PROCESSES, *(field.name for field in fields(_arguments(config)))}
        before, now = ({name: values[name] for name in names} for values in (before, now))
    return before, now


def _all(manifest: dict[str, Any]) -> Settings:
    processes = {NUM_PROCESSES: manifest[NUM_PROCESSES]}
    return {**manifest["library_defaults"], **with_present_names(manifest["settings"]), **processes}


def _recorded_beside(checkpoint: Path, manifest: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """The settings in the run's configuration file, for checkpoints of versions that kept none."""
    from vaswani.files.run_settings import read_settings  # lazy: only old checkpoints need it

    settings = read_settings(checkpoint.parent)
    if not settings:
        return {}
    settings.pop(HISTORY, None)
    replicas = manifest.get("num_replicas")
    processes = replicas and replicas * settings.get("tensor_parallel_size", 1)
    return {
        "command": current["command"],
        "settings": settings,
        "library_defaults": {},
        NUM_PROCESSES: processes or current[NUM_PROCESSES],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values to those that JSON gives back."""
    return json.loads(json.dumps(values, default=str))
