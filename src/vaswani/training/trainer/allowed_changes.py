"""Which settings may change when a run is resumed, and under which conditions.

A changed setting that is listed in `MAY_CHANGE` takes effect if its rule allows it; any other change is
refused. The list holds settings of the speed, of what is saved or shown, and of the length of the run.
Changes of fields that later versions of transformers add are therefore refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.trainer_utils import SchedulerType

Settings = dict[str, Any]
NUM_PROCESSES = "num_processes"  # a setting too, though not a field
_ABSENT = "not a setting"
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


# Gives the reason why a setting cannot change after all, which may be empty; None if it can change.
Rule = Callable[[Resumption, str], str | None]


def _freely(resumption: Resumption, name: str) -> None:
    """Any change is possible."""


def _never(resumption: Resumption, name: str) -> str:
    """No change is possible, which needs no particular reason."""
    return ""


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


_SCORE_SETTINGS = (
    *("generation_num_beams", "generation_max_length", "generation_length_penalty"),
    *("predict_with_generate", "prediction_loss_only", "max_validation_rows"),
    *("max_answer_length", "n_best", "null_score_diff_threshold"),
)
_SAVED_OR_SHOWN = (
    *("output_dir", "save_strategy", "save_steps", "save_total_limit", "save_on_each_node"),
    *("save_only_model", "eval_strategy", "eval_steps", "eval_delay", "eval_on_start", "test_file"),
    *("evaluate_test", "max_test_rows", "average_checkpoints"),
    *("logging_strategy", "logging_steps", "log_level", "log_level_replica", "log_on_each_node"),
    *("report_to", "run_name", "project", "trackio_space_id", "trackio_bucket_id"),
    *("trackio_static_space_id", "disable_tqdm"),
    *("push_to_hub", "hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push"),
    *("hub_revision", "language", "license", "data_name", "data_url", "data_license"),
    *("baseline", "retention_metric", "teacher_cache"),
)
_SPEED = (
    *("attn_implementation", "torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("activation_checkpointing", "activation_checkpointing_kwargs", "torch_empty_cache_steps"),
    *("use_cpu", "use_cache", "fsdp_size", "dataloader_num_workers", "dataloader_pin_memory"),
    *("dataloader_persistent_workers", "dataloader_prefetch_factor"),
    *("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers"),
    *("ddp_static_graph", "ddp_backend", "ddp_timeout"),
)
# Settings that are read after each update, or only by the resumption itself.
_READ_LATER = (
    *("early_stopping_patience", "non_finite_loss", "ignore_data_skip"),
    "restore_callback_states_from_checkpoint",
)
MAY_CHANGE: dict[str, Rule] = {
    **dict.fromkeys(("max_steps", "num_train_epochs"), _length),
    **dict.fromkeys((NUM_PROCESSES, "gradient_accumulation_steps", "tensor_parallel_size"), _batches),
    **dict.fromkeys(_SCORE_SETTINGS, _scores),
    **dict.fromkeys(("dataset", "train_file", "validation_file"), _corpus),
    **dict.fromkeys(("model", "teacher", "student"), _moved),
    **dict.fromkeys((*_SAVED_OR_SHOWN, *_SPEED, *_READ_LATER), _freely),
}


def refused_changes(resumption: Resumption) -> dict[str, str]:
    """Return the changed settings that cannot change, each with the reason if there is a particular one."""
    rules = {name: MAY_CHANGE.get(name, _never) for name in resumption.changes}
    reasons = {name: rule(resumption, name) for name, rule in rules.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}
