"""The configuration of a run: sections of arguments. Written as YAML, it repeats the run."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, cast

import yaml

from vaswani.evaluation.text_metrics import METRICS
from vaswani.files.run_files import HISTORY
from vaswani.training.config.arguments import (
    BaseTrainingArguments,
    CardArguments,
    DataArguments,
    ModelArguments,
    TrainingArguments,
    default_of,
    default_settings,
    plain,
    training_settings,
)

_BATCHES = "batches hold max_tokens_per_batch tokens, length-bucketed; set that instead"
_OWN_PLAN = "models are sharded by their own plan; set fsdp_size"
_WHOLE_EVALUATION = "evaluation gathers every row once and scores them together"
FIELDS_WITHOUT_EFFECT = {
    "per_device_train_batch_size": _BATCHES,
    "per_device_eval_batch_size": _BATCHES,
    "auto_find_batch_size": _BATCHES,
    "train_sampling_strategy": _BATCHES,
    "length_column_name": _BATCHES,
    "sortish_sampler": _BATCHES,
    "dataloader_drop_last": _BATCHES,
    "fsdp": _OWN_PLAN,
    "fsdp_config": _OWN_PLAN,
    "batch_eval_metrics": _WHOLE_EVALUATION,
    "eval_accumulation_steps": _WHOLE_EVALUATION,
    "eval_do_concat_batches": _WHOLE_EVALUATION,
    "eval_use_gather_object": _WHOLE_EVALUATION,
    "include_for_metrics": _WHOLE_EVALUATION,
    "bf16_full_eval": "evaluation runs as training does; set bf16",
    "fp16_full_eval": "evaluation runs as training does; set fp16",
    "do_train": "training always runs",
    "do_predict": "the test split is evaluated at the end whenever there is one",
}


class BaseConfig:
    """The resolved arguments of one run: a dataclass with a field for each section."""

    model: Any
    data: Any
    training: BaseTrainingArguments
    card: CardArguments

    command: ClassVar[str]
    purpose: ClassVar[str]
    scores: ClassVar[Sequence[str]]  # that `metric_for_best_model` may name
    without_effect: ClassVar[dict[str, str]] = FIELDS_WITHOUT_EFFECT  # fields, and why

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> "type[BaseConfig]":
        """The class for these values; this one, unless a field chooses among several."""
        return cls

    @property
    def output_dir(self) -> Path:
        """Where the run writes."""
        return Path(self.training.output_dir or ".")

    def to_dict(self) -> dict[str, Any]:
        """Plain values of our own fields, and of those of transformers that differ from their defaults."""
        values: dict[str, Any] = {}
        for name in (name for name in sections(type(self)) if name != "training"):
            values |= asdict(getattr(self, name))
        return values | training_settings(self.training)

    def default_settings(self) -> dict[str, Any]:
        """Plain values of the defaults of all fields."""
        values: dict[str, Any] = {}
        for section in (section for name, section in sections(type(self)).items() if name != "training"):
            values |= {field.name: plain(default_of(field)) for field in fields(section)}
        return values | default_settings(self.training)

    def save(self, path: Path, history: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a configuration file that repeats this run.

        Args:
            path: of the file.
            history: the settings that changed when the run was resumed (see `resuming.Resumption.record`).
        """
        command = f"vaswani {self.command} --config {path.name} --output_dir ..."
        header = f"# A resolved run; repeat it with: {command}\n"
        values = self.to_dict()
        if history:
            header += (
                f"# Its settings changed when it was resumed, as {HISTORY} tells at the end: [before, now].\n"
            )
            values[HISTORY] = list(history)
        path.write_text(
            header + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


@dataclass
class RunConfig(BaseConfig):
    """The resolved arguments of one training on pairs, a section each; a subclass may add one."""

    model: ModelArguments
    data: DataArguments
    training: TrainingArguments
    card: CardArguments

    command: ClassVar[str] = "train"
    purpose: ClassVar[str] = "Train an encoder-decoder on pairs of texts."
    scores: ClassVar[Sequence[str]] = ("loss", *METRICS)


def sections(config_class: type[BaseConfig]) -> dict[str, type]:
    """Return the sections of a configuration: a dataclass of arguments for each."""
    hints = typing.get_type_hints(config_class)
    return {field.name: hints[field.name] for field in fields(cast(Any, config_class))}
