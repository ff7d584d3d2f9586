"""What trainers of students have in common: a weighted sum of losses, and the losses of hidden states.

B batch · T tokens · D width
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import cosine_loss, relation_loss
from vaswani.distillation.recording import Recorder, stacks
from vaswani.errors import UserError
from vaswani.training.trainer.base import BaseTrainer

TO_TEACHER_WIDTH = "to_teacher_width"  # a module of the student during training; a file of its checkpoints

Count = torch.Tensor | int | None
Side = tuple[torch.Tensor, torch.Tensor, Count]  # tokens that count, what each sees, and the divisor


class LossMixture(BaseTrainer):
    """A trainer whose loss is a weighted sum of losses, each of which is also logged, without its weight."""

    objectives: DistillationObjectives
    teacher: Any

    def prepare_losses(self, teacher: PreTrainedModel | None, objectives: DistillationObjectives) -> None:
        """Take the teacher and the weights of the losses; call it once, at the end of `__init__`.

        Raises:
            UserError: an objective needs a teacher and none is given, or their widths do not suit it.
        """
        self.objectives = objectives
        self.teacher = teacher
        if teacher is not None:
            self.teacher = teacher.eval().requires_grad_(False).to(self.args.device)
        elif objectives.uses_states:
            raise UserError("cosine_weight and relation_weight need a teacher; give one, or set both to 0")
        self._check_relations()
        self._recorders: list[Recorder] = []  # of student and teacher, if objectives need states
        if teacher is not None and objectives.uses_states:
            projections = objectives.relation_weight > 0
            self._recorders = [Recorder(model, projections) for model in (self.model, teacher)]
        self._losses: dict[str, torch.Tensor] = {}  # sums since the last log
        self._first_step = 0  # update after which these sums begin

    def _check_relations(self) -> None:
        weight, heads = self.objectives.relation_weight, self.objectives.relation_heads
        if self.teacher is None or not weight:
            return
        if self.args.tensor_parallel_size > 1:
            raise UserError(
                f"relation_weight={weight} needs whole queries and keys, and tensor_parallel_size="
                f"{self.args.tensor_parallel_size} splits them; set one of them to its default, or use "
                "fsdp_size"
            )
        for width in (self.teacher.config.hidden_size, self.model.config.hidden_size):
            if width % heads:
                raise UserError(
                    f"relation_heads={heads} does not divide the width {width}; give one that does"
                )

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in `BaseTrainer`; meanwhile the student has maps to the teacher's width if a loss needs them."""
        self._add_maps()
        try:
            return super().train(*args, **kwargs)
        finally:
            for name in self.extra_modules:
                delattr(self.model, name)
            self.extra_modules = {}

    def _add_maps(self) -> None:
        if self.teacher is None or not self.objectives.cosine_weight:
            return
        width, teacher_width = (model.config.hidden_size for model in (self.model, self.teacher))
        if width != teacher_width:
            maps = {stack: nn.Linear(width, teacher_width, bias=False) for stack in stacks(self.model)}
            self.extra_modules = {TO_TEACHER_WIDTH: nn.ModuleDict(maps).to(self.args.device)}
            self.model.add_module(TO_TEACHER_WIDTH, self.extra_modules[TO_TEACHER_WIDTH])

    def weighted(self, losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The weighted sum of losses, each of which is also added up for the log."""
        if not self._losses:
            self._first_step = self.state.global_step
        for name, loss in losses.items():
            self._losses[name] = self._losses.get(name, loss.new_zeros(())) + loss.detach()
        weighted = [getattr(self.objectives, f"{name}_weight") * loss for name, loss in losses.items()]
        return torch.stack(weighted).sum()

    def state_losses(self, sides: Mapping[str, Side]) -> dict[str, torch.Tensor]:
        """The losses of hidden states and of relations, each the mean over the stacks.

        Args:
            sides: of each stack bool [B, T], which tokens count; bool [B, T, T], which tokens each sees; and
                the divisor of the summed losses.
        """
        student, teacher = (recorder.take() for recorder in self._recorders)
        losses: dict[str, list[torch.Tensor]] = {"cosine": [], "relation": []}
        for stack, (tokens, visible, num_tokens) in sides.items():
            if self.objectives.cosine_weight:
                states = self._to_teacher_width(student[stack]["states"], stack)
                loss = cosine_loss(states, teacher[stack]["states"], tokens, num_tokens=num_tokens)
                losses["cosine"].append(loss)
            if self.objectives.relation_weight:
                for a, b in (("query", "key"), ("value", "value")):
                    loss = relation_loss(
                        (student[stack][a], student[stack][b]),
                        (teacher[stack][a], teacher[stack][b]),
                        visible,
                        num_heads=self.objectives.relation_heads,
                        num_tokens=num_tokens,
                    )
                    losses["relation"].append(loss)
        return {name: torch.stack(parts).mean() for name, parts in losses.items() if parts}

    def _to_teacher_width(self, states: torch.Tensor, stack: str) -> torch.Tensor:
        maps: Any = self.extra_modules.get(TO_TEACHER_WIDTH)
        return states if maps is None else maps[stack](states.to(maps[stack].weight.dtype))

    def count_everywhere(self, count: torch.Tensor) -> torch.Tensor:
        """The sum over all processes of a number of tokens, by which losses are divided."""
        count = count.to(self.args.device)
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count).sum() / self.get_tp_size()
        return count

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in `BaseTrainer`, with each loss separately."""
        if "loss" in logs and self._losses:
            steps = max(self.state.global_step - self._first_step, 1)
            for name, loss in self._losses.items():
                # Divided by the tokens of all processes, each loss is a share of their sum.
                shares = self.num_replicas if self.args.average_tokens_across_devices else 1
                logs[f"{name}_loss"] = self.accelerator.reduce(loss, "mean").item() * shares / steps
            self._losses = {}
        super().log(logs, start_time)
