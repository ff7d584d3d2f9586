"""What may change when a run is resumed, and what may not.

The manifest of a checkpoint holds the settings that it was trained with. When the run is resumed, a setting
that has changed is either listed here, takes effect and is announced, or is refused. Listed is what changes
the speed, what is saved or shown, and the length of the run. So fields that later versions of transformers
add are refused.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accelerate import PartialState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SchedulerType
from transformers.utils import logging

from vaswani.errors import UserError
from vaswani.files.run_files import HISTORY, SETTINGS_FILE
from vaswani.training.config.arguments import (
    BaseTrainingArguments,
    default_settings,
    library_defaults,
    training_settings,
)
from vaswani.training.trainer.checkpoints import read_manifest

logger = logging.get_logger(__name__)

Settings = dict[str, Any]
NUM_PROCESSES = "num_processes"  # a setting too, though not a field
_ABSENT = "not a setting"

# The learning rate of an update does not depend on how many there will be.
_ENDLESS_SCHEDULES = (
    SchedulerType.INVERSE_SQRT,
    SchedulerType.CONSTANT,
    SchedulerType.CONSTANT_WITH_WARMUP,
    SchedulerType.REDUCE_ON_PLATEAU,
    SchedulerType.GREEDY,
)


@dataclass(frozen=True)
class Resumption:
    """A checkpoint, the settings that it was trained with, and those with which the run is to go on."""

    checkpoint: Path
    before: Settings
    now: Settings
    update: int
    epoch: float
    history: tuple[dict[str, Any], ...]  # changes of earlier resumptions, as `record` gives them

    @property
    def changes(self) -> dict[str, tuple[Any, Any]]:
        """Settings that are not what they were: before and now."""
        names = [name for name in dict.fromkeys([*self.before, *self.now]) if name not in _DERIVED]
        pairs = {name: (self.before.get(name, _ABSENT), self.now.get(name, _ABSENT)) for name in names}
        return {
            name: pair for name, pair in pairs.items() if pair[0] != pair[1] and not _is_left_open(name, pair)
        }

    @property
    def record(self) -> list[dict[str, Any]]:
        """All changes of the run so far: after which update, and each setting before and after."""
        changed = {name: list(pair) for name, pair in self.changes.items()}
        this = [{"update": self.update, "changed": changed}] if changed else []
        return [*self.history, *this]


def _is_left_open(name: str, pair: tuple[Any, Any]) -> bool:
    """Whether the setting is decided later, by the vocabularies; `runs/base.py` then compares the models."""
    return name == "share_encoder_decoder_embeddings" and None in pair


Condition = Callable[[Resumption], str | None]  # why the setting cannot change after all


def _freely(resumption: Resumption) -> None:
    return None


def _length(resumption: Resumption) -> str | None:
    """A run may become longer, or shorter if it has not come so far, unless its schedule depends on that."""
    now = resumption.now
    schedule, warmup = now["lr_scheduler_type"], now["warmup_steps"]
    if schedule not in _ENDLESS_SCHEDULES or 0 < warmup < 1:
        cause = (
            f"lr_scheduler_type={schedule}"
            if schedule not in _ENDLESS_SCHEDULES
            else f"warmup_steps={warmup}"
        )
        return f"{cause} depends on it"
    if now["max_steps"] > 0:
        return f"{resumption.update} updates have been made" if resumption.update > now["max_steps"] else None
    return (
        f"{resumption.epoch:g} epochs have been made" if resumption.epoch > now["num_train_epochs"] else None
    )


def _epochs(resumption: Resumption) -> str | None:
    if resumption.now["max_steps"] > 0:
        return f"max_steps={resumption.now['max_steps']} decides the length of the run"
    return _length(resumption)


def _scores(resumption: Resumption) -> str | None:
    """Evaluations may become others, unless the run compares their scores."""
    metric = resumption.now["metric_for_best_model"]
    return None if metric is None else f"evaluations before and after would be compared by {metric}"


def _batches_per_update(settings: Settings) -> int:
    replicas = settings[NUM_PROCESSES] // settings.get("tensor_parallel_size", 1)
    return replicas * settings["gradient_accumulation_steps"]


def _batches(resumption: Resumption) -> str | None:
    """Processes and accumulation may be traded for each other: the updates stay the same."""
    before, now = map(_batches_per_update, (resumption.before, resumption.now))
    if before == now:
        return None
    return (
        f"an update would be of {now} batches and not of {before}; keep the product of processes and "
        "gradient_accumulation_steps"
    )


def _corpus(name: str) -> Condition:
    """Files may have been moved: `check_same_data` compares what they hold, except for streams."""

    def condition(resumption: Resumption) -> str | None:
        if not resumption.now.get("streaming"):
            return None
        return "what a stream holds cannot be compared" if _moved(name)(resumption) is not None else None

    return condition


def _moved(name: str) -> Condition:
    """A folder may have been moved, and keeps its name."""

    def condition(resumption: Resumption) -> str | None:
        return None if _same_name(*resumption.changes[name]) else ""

    return condition


def _same_name(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(map(_same_name, before, now))
    return isinstance(before, str) and isinstance(now, str) and Path(before).name == Path(now).name


MAY_CHANGE: dict[str, Condition] = {
    "max_steps": _length,
    "num_train_epochs": _epochs,
    **dict.fromkeys((NUM_PROCESSES, "gradient_accumulation_steps", "tensor_parallel_size"), _batches),
    **dict.fromkeys(
        (
            *("generation_num_beams", "generation_max_length", "generation_length_penalty"),
            *("predict_with_generate", "prediction_loss_only", "max_validation_rows"),
        ),
        _scores,
    ),
    **{name: _corpus(name) for name in ("dataset", "train_file", "validation_file")},
    **{name: _moved(name) for name in ("model", "teacher", "student")},
    **dict.fromkeys(
        (
            # where, when and what is saved, evaluated, logged and published
            *("output_dir", "save_strategy", "save_steps", "save_total_limit", "save_on_each_node"),
            *("save_only_model", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "test_file"),
            *("logging_strategy", "logging_steps", "log_level", "log_level_replica", "log_on_each_node"),
            *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id"),
            *("trackio_static_space_id", "disable_tqdm"),
            *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push"),
            *("hub_revision", "language", "license", "data_name", "data_url", "data_license"),
            *("baseline", "retention_metric", "teacher_cache"),
            # how fast it goes, and where
            *("attn_implementation", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
            *("activation_checkpointing", "activation_checkpointing_kwargs", "torch_empty_cache_steps"),
            *("use_cpu", "use_cache", "fsdp_size", "dataloader_num_workers", "dataloader_pin_memory"),
            *("dataloader_persistent_workers", "dataloader_prefetch_factor"),
            *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
            *("ddp_static_graph", "ddp_backend", "ddp_timeout"),
            # what is decided anew after each update, or by the resumption itself
            *("early_stopping_patience", "non_finite_loss", "ignore_data_skip"),
            "restore_callback_states_from_checkpoint",
        ),
        _freely,
    ),
}
# What transformers derives from other fields: from eval_strategy, and as older names of activation_...
_DERIVED = ("do_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs")
_MOST_NAMED = 5


class RunConfiguration(Protocol):
    """What is asked of the configuration of a whole run."""

    command: str
    training: BaseTrainingArguments

    def to_dict(self) -> Settings:
        """All settings of the run, as plain values."""

    def default_settings(self) -> Settings:
        """The defaults of all settings, as plain values."""


def manifest_of(config: RunConfiguration | BaseTrainingArguments) -> dict[str, Any]:
    """Settings of a training as the manifest of a checkpoint stores them: plain JSON values.

    Args:
        config: of a run, or the arguments of a trainer that is used without one.
    """
    training = _training(config)
    processes = training.world_size  # first, for it sets up the devices, and fields that depend on them
    is_alone = isinstance(config, BaseTrainingArguments)
    return _plain(
        {
            "command": None if is_alone else config.command,
            "settings": training_settings(config) if is_alone else config.to_dict(),
            "library_defaults": library_defaults(training),
            NUM_PROCESSES: processes,
        }
    )


def check_resumable(checkpoint: Path, config: RunConfiguration | BaseTrainingArguments) -> Resumption:
    """Compare the settings of a run with those of the checkpoint that it is to go on from; announce changes.

    Args:
        checkpoint: complete (see `checkpoints.fault_of`).
        config: of the run as it is now, or the arguments of a trainer that is used without one.

    Raises:
        UserError: a setting has changed that cannot; named with both values, and what to do.
    """
    resumption = _resumption(checkpoint, config)
    refused = {}
    for name in resumption.changes:
        reason = MAY_CHANGE[name](resumption) if name in MAY_CHANGE else ""
        if reason is not None:
            refused[name] = reason
    if refused:
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


def _resumption(checkpoint: Path, config: RunConfiguration | BaseTrainingArguments) -> Resumption:
    manifest = read_manifest(checkpoint)
    state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    before, now = _compared(checkpoint, manifest, config)
    return Resumption(
        checkpoint=checkpoint,
        before=before,
        now=now,
        update=state["global_step"],
        epoch=state.get("epoch") or 0,
        history=tuple(manifest.get(HISTORY, ())),
    )


def _compared(
    checkpoint: Path, manifest: dict[str, Any], config: RunConfiguration | BaseTrainingArguments
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
    not_used = manifest["library_defaults"].keys() - now.keys()  # that transformers has no more
    before = {name: value for name, value in _all(manifest).items() if name not in not_used}
    is_alone = isinstance(config, BaseTrainingArguments)
    before = _plain(default_settings(config) if is_alone else config.default_settings()) | before
    if None in commands:  # of a trainer that is used without a run, the arguments alone are known
        names = now.keys() & {NUM_PROCESSES, *(field.name for field in dataclasses.fields(_training(config)))}
        before, now = ({name: values[name] for name in names} for values in (before, now))
    return before, now


def _training(config: RunConfiguration | BaseTrainingArguments) -> BaseTrainingArguments:
    return config if isinstance(config, BaseTrainingArguments) else config.training


def _all(manifest: dict[str, Any]) -> Settings:
    processes = {NUM_PROCESSES: manifest[NUM_PROCESSES]}
    return {**manifest["library_defaults"], **manifest["settings"], **processes}


def _recorded_beside(checkpoint: Path, manifest: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """What the run's configuration file tells, for checkpoints of versions that kept no settings."""
    from vaswani.hub.run_metadata import read_settings  # here: no other checkpoint needs YAML

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
    """As JSON gives them back."""
    return json.loads(json.dumps(values, default=str))
