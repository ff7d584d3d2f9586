"""The settings that may change when a run is resumed.

The manifest of a checkpoint holds the settings of its training. When the run is resumed, a changed setting
that is listed here takes effect and is printed; any other change is refused. The list holds settings of the
speed, of what is saved or shown, and of the length of the run. Changes of fields that later versions of
transformers add are therefore refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SchedulerType
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.files.run_files import HISTORY, SETTINGS_FILE
from vaswani.training.config.options import (
    default_settings,
    library_defaults,
    training_settings,
    with_present_names,
)
from vaswani.training.config.training_arguments import BaseTrainingArguments
from vaswani.training.trainer.checkpoints import read_manifest

if TYPE_CHECKING:
    from vaswani.training.config.options import BaseConfig

logger = logging.get_logger(__name__)

Settings = dict[str, Any]
NUM_PROCESSES = "num_processes"  # a setting too, though not a field
_ABSENT = "not a setting"
_MOST_NAMED = 5
# Fields that transformers derives from others: eval_strategy, and activation_... under older names.
_DERIVED = ("do_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs")
# Schedules whose learning rate does not depend on the number of updates.
_ENDLESS_SCHEDULES = (
    *(SchedulerType.INVERSE_SQRT, SchedulerType.CONSTANT, SchedulerType.CONSTANT_WITH_WARMUP),
    *(SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY),
)


@dataclass(frozen=True)
class Resumption:
    """A checkpoint, the settings that it was trained with, and the settings with which the run continues."""

    checkpoint: Path
    before: Settings
    now: Settings
    update: int
    epoch: float
    history: tuple[dict[str, Any], ...]  # changes of earlier resumptions, as `record` gives them

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Settings that have changed: before and now."""
        names = [name for name in dict.fromkeys([*self.before, *self.now]) if name not in _DERIVED]
        pairs = {name: (self.before.get(name, _ABSENT), self.now.get(name, _ABSENT)) for name in names}
        return {
            name: pair
            for name, pair in pairs.items()
            # Without a value, the vocabularies decide it later; `runs/base.py` then compares the models.
            if pair[0] != pair[1] and not (name == "share_encoder_decoder_embeddings" and None in pair)
        }

    @property
    def record(self) -> list[dict[str, Any]]:
        """All changes of the run so far: after which update, and each setting before and after."""
        changed = {name: list(pair) for name, pair in self.changes.items()}
        return [*self.history, *([{"update": self.update, "changed": changed}] if changed else [])]


Condition = Callable[[Resumption, str], str | None]  # why a setting cannot change after all; None if it can


def _freely(resumption: Resumption, name: str) -> None:
    return None


def _length(resumption: Resumption, name: str) -> str | None:
    """A run may become longer, or shorter down to what is done, unless its schedule depends on the length."""
    now = resumption.now
    schedule, warmup, most_steps = now["lr_scheduler_type"], now["warmup_steps"], now["max_steps"]
    if name == "num_train_epochs" and most_steps > 0:
        return f"max_steps={most_steps} decides the length of the run"
    if schedule not in _ENDLESS_SCHEDULES:
        return f"lr_scheduler_type={schedule} depends on it"
    if 0 < warmup < 1:
        return f"warmup_steps={warmup} depends on it"
    if most_steps > 0:
        return f"{resumption.update} updates have been made" if resumption.update > most_steps else None
    done = resumption.epoch
    return f"{done:g} epochs have been made" if done > now["num_train_epochs"] else None


def _scores(resumption: Resumption, name: str) -> str | None:
    """Evaluations may change unless the run compares their scores."""
    metric = resumption.now["metric_for_best_model"]
    return None if metric is None else f"evaluations before and after would be compared by {metric}"


def _batches(resumption: Resumption, name: str) -> str | None:
    """Processes and accumulation may be traded for each other: the updates stay the same."""
    before, now = (
        settings[NUM_PROCESSES]
        // settings.get("tensor_parallel_size", 1)
        * settings["gradient_accumulation_steps"]
        for settings in (resumption.before, resumption.now)
    )
    if before == now:
        return None
    return (
        f"an update would be of {now} batches and not of {before}; keep the product of processes and "
        "gradient_accumulation_steps"
    )


def _moved(resumption: Resumption, name: str) -> str | None:
    """A folder may have been moved, but keeps its name."""
    return None if _same_name(*resumption.changes[name]) else ""


def _corpus(resumption: Resumption, name: str) -> str | None:
    """Files may have been moved: `check_same_data` compares their rows, except for streams."""
    if not resumption.now.get("streaming") or _same_name(*resumption.changes[name]):
        return None
    return "what a stream holds cannot be compared"


def _same_name(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_same_name, before, now))
    return isinstance(before, str) and isinstance(now, str) and Path(before).name == Path(now).name


_CONDITIONS: dict[Condition, tuple[str, ...]] = {
    _length: ("max_steps", "num_train_epochs"),
    _batches: (NUM_PROCESSES, "gradient_accumulation_steps", "tensor_parallel_size"),
    _scores: (
        *("generation_num_beams", "generation_max_length", "generation_length_penalty"),
        *("predict_with_generate", "prediction_loss_only", "max_validation_rows"),
        *("max_answer_length", "n_best", "null_score_diff_threshold"),
    ),
    _corpus: ("dataset", "train_file", "validation_file"),
    _moved: ("model", "teacher", "student"),
    _freely: (
        # saving, evaluation, logging and publication
        *("output_dir", "save_strategy", "save_steps", "save_total_limit", "save_on_each_node"),
        *("save_only_model", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "test_file"),
        *("evaluate_test", "max_test_rows", "average_checkpoints"),
        *("logging_strategy", "logging_steps", "log_level", "log_level_replica", "log_on_each_node"),
        *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id"),
        *("trackio_static_space_id", "disable_tqdm"),
        *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push"),
        *("hub_revision", "language", "license", "data_name", "data_url", "data_license"),
        *("baseline", "retention_metric", "teacher_cache"),
        # speed and devices
        *("attn_implementation", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
        *("activation_checkpointing", "activation_checkpointing_kwargs", "torch_empty_cache_steps"),
        *("use_cpu", "use_cache", "fsdp_size", "dataloader_num_workers", "dataloader_pin_memory"),
        *("dataloader_persistent_workers", "dataloader_prefetch_factor"),
        *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
        *("ddp_static_graph", "ddp_backend", "ddp_timeout"),
        # settings that are read after each update, or only by the resumption itself
        *("early_stopping_patience", "non_finite_loss", "ignore_data_skip"),
        "restore_callback_states_from_checkpoint",
    ),
}
MAY_CHANGE = {name: condition for condition, names in _CONDITIONS.items() for name in names}


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
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    resumption = Resumption(
        checkpoint,
        *_compared(checkpoint, manifest, config),
        update=state["global_step"],
        epoch=state.get("epoch") or 0,
        history=tuple(manifest.get(HISTORY, ())),
    )
    reasons = {
        name: MAY_CHANGE[name](resumption, name) if name in MAY_CHANGE else "" for name in resumption.changes
    }
    if refused := {name: reason for name, reason in reasons.items() if reason is not None}:
        raise UserError(_refusal(resumption, refused))
    if PartialState().is_main_process:
        for name, (before, now) in resumption.changes.items():
            print(f"{name}: {before} → {now}", file=sys.stderr, flush=True)
    return resumption


def _refusal(resumption: Resumption, refused: dict[str, str]) -> str:
    parts = []
    for name, reason in list(refused.items())[:_MOST_NAMED]:
        before, now = resumption.changes[name]
        parts.append(f"{name}={now} (it was trained with {before}{f'; {reason}' if reason else ''})")
    if len(refused) > _MOST_NAMED:
        parts.append(f"{len(refused) - _MOST_NAMED} more")
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
            f"{checkpoint} does not tell the settings that it was trained with, and there is no "
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
    from vaswani.hub.run_metadata import read_settings  # here: only these checkpoints need YAML

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
