"""The resolved arguments of a distillation, and which kind of distillation they are of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vaswani.distillation.arguments import DistillationArguments
from vaswani.distillation.stack_arguments import OF_OBJECTIVE, TaskDistillationConfig
from vaswani.errors import UserError
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.options import BaseConfig
from vaswani.training.trainer.labels import TASKS


@dataclass
class DistillationConfig(RunConfig):
    """The resolved arguments of one distillation."""

    distillation: DistillationArguments

    command: ClassVar[str] = "distill"
    purpose: ClassVar[str] = (
        "Train a small student to imitate a large teacher. With --objective masked or causal, of a language "
        "model; with --task classification, multi_label, regression or tagging, of a model of that task."
    )

    @classmethod
    def variant(cls, given: Mapping[str, Any]) -> type[BaseConfig]:
        """The configuration for what the teacher does: by default, translation or summarization."""
        if (objective := given.get("objective")) is not None:
            if objective not in OF_OBJECTIVE:
                raise UserError(f"objective={objective} is unknown; choose one of {', '.join(OF_OBJECTIVE)}")
            return OF_OBJECTIVE[objective]
        return TaskDistillationConfig if given.get("task") in TASKS else cls
