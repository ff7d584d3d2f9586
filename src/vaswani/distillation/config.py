"""The resolved arguments of a distillation, and the choice of their class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vaswani.data.labels.label_parsing import TASKS
from vaswani.distillation.arguments import DistillationArguments
from vaswani.distillation.stack_arguments import CONFIG_OF_OBJECTIVE, TaskDistillationConfig
from vaswani.evaluation.text_metrics import METRICS_OF_TASK
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.flags import check_choice
from vaswani.training.config.options import BaseConfig


@dataclass
class DistillationConfig(RunConfig):
    """The resolved arguments of one distillation."""

    distillation: DistillationArguments

    command: ClassVar[str] = "distill"
    purpose: ClassVar[str] = (
        "Train a small student to imitate a large teacher. By default, both are encoder-decoders. With "
        "--objective masked or causal, both are language models; with --task classification, multi_label, "
        "regression or tagging, both are models for that task."
    )

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """Return the class for an objective or a task; this one for translation and summarization."""
        if (objective := given.get("objective")) is not None:
            check_choice("objective", objective, CONFIG_OF_OBJECTIVE)
            return CONFIG_OF_OBJECTIVE[objective]
        if (task := given.get("task")) is not None:
            check_choice("task", task, (*METRICS_OF_TASK, *TASKS))
        return TaskDistillationConfig if task in TASKS else cls
