"""The losses that all trainers of students share: the weighted sum, and the losses of hidden states.

B batch · T tokens · D width
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from vaswani.distillation.arguments import DistillationObjectives
from vaswani.distillation.losses import cosine_loss, relation_loss
from vaswani.distillation.recording import Recorder, last_self_attention, stacks
from vaswani.errors import UserError
from vaswani.training.trainer.base import BaseTrainer
from vaswani.training.trainer.objective import Count

TO_TEACHER_WIDTH = "to_teacher_width"  # a module of the student in training, and a file in its checkpoints

Side = tuple[torch.Tensor, torch.Tensor, Count]  # tokens that count, tokens visible to each, and the divisor


class LossMixture:
    """Computes a trainer's weighted sum of losses, and logs each loss without its weight.

    Args:
        trainer: the trainer of the student.
        teacher: the model whose states the student learns; it is frozen, put into evaluation mode and moved
            to the trainer's device.
        objectives: the weights of the losses.

    Raises:
        UserError: an objective needs a teacher and none is given, or an objective does not work with these
            models or training arguments.
    """

    def __init__(
        self, trainer: BaseTrainer, teacher: PreTrainedModel | None, objectives: DistillationObjectives
    ):
        self.trainer = trainer
        self.objectives = objectives
        self.teacher: Any = teacher
        if teacher is not None:
            self.teacher = teacher.eval().requires_grad_(False).to(trainer.args.device)
        elif objectives.uses_states:
            raise UserError("cosine_weight and relation_weight need a teacher; give one, or set both to 0")
        if objectives.uses_states and getattr(trainer, "model_init", None) is not None:
            raise UserError(
                "cosine_weight and relation_weight record the states of one model, and model_init makes "
                "others; give model, or set both to 0"
            )
        self._check_relations()
        self.recorders: list[Recorder] = []  # of student and teacher; empty if no objective needs states
        if teacher is not None and objectives.uses_states:
            projections = objectives.relation_weight > 0
            self.recorders = [Recorder(model, projections) for model in (trainer.model, teacher)]

    def _check_relations(self) -> None:
        weight, heads = self.objectives.relation_weight, self.objectives.relation_heads
        if self.teacher is None or not weight:
            return
        args: Any = self.trainer.args
        if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
            raise UserError(
                f"relation_weight={weight} would have no gradient with use_reentrant=True in "
                "gradient_checkpointing_kwargs; set that to False"
            )
        if self.trainer.args.tensor_parallel_size > 1:
            raise UserError(
                f"relation_weight={weight} needs whole queries and keys, and tensor_parallel_size="
                f"{self.trainer.args.tensor_parallel_size} splits them; set one of them to its default, or "
                "use fsdp_size"
            )
        models = (self.teacher, self.trainer.model)
        for stack in (stack for model in models for stack in stacks(model).values()):
            widths: list[Any] = [module.out_features for module in last_self_attention(stack)]
            if widths[0] != widths[1]:
                raise UserError(
                    f"relation_weight={weight} needs queries and keys of one width, and those of "
                    f"{type(stack).__name__} have {widths[0]} and {widths[1]}; set it to 0"
                )
            if undivided := [width for width in widths if width % heads]:
                raise UserError(
                    f"relation_heads={heads} does not divide the width {undivided[0]}; give one that does"
                )

    @contextmanager
    def training(self) -> Iterator[None]:
        """Record student and teacher, and give the student maps to the teacher's width, if losses need it."""
        trainer = self.trainer
        trainer.extra_modules = self._maps()
        for name, module in trainer.extra_modules.items():
            trainer.model.add_module(name, module)
        try:
            with ExitStack() as recorders:
                for recorder in self.recorders:
                    recorders.enter_context(recorder.recording())
                yield
        finally:
            for name in trainer.extra_modules:
                delattr(trainer.model, name)
            trainer.extra_modules = {}

    def _maps(self) -> dict[str, nn.Module]:
        """Return a linear map to the teacher's width for each stack; empty if no loss needs them."""
        if self.teacher is None or not self.objectives.cosine_weight:
            return {}
        model = self.trainer.model
        width, teacher_width = (each.config.hidden_size for each in (model, self.teacher))
        if width == teacher_width:
            return {}
        maps = {stack: nn.Linear(width, teacher_width, bias=False) for stack in stacks(model)}
        return {TO_TEACHER_WIDTH: nn.ModuleDict(maps).to(self.trainer.args.device)}

    def weighted(self, losses: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted sum of losses, and add each loss to the log."""
        for name, loss in losses.items():
            self.trainer.loss_means.add(f"{name}_loss", loss)
        weighted = [getattr(self.objectives, f"{name}_weight") * loss for name, loss in losses.items()]
        return torch.stack(weighted).sum()

    def state_losses(self, sides: Mapping[str, Side]) -> dict[str, torch.Tensor]:
        """The losses of hidden states and of relations, each the mean over the stacks.

        Args:
            sides: for each stack, bool [B, T], the tokens that count; bool [B, T, T], the tokens that each
                token sees; and the divisor of the summed losses.
        """
        student, teacher = (recorder.take() for recorder in self.recorders)
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
        maps: Any = self.trainer.extra_modules.get(TO_TEACHER_WIDTH)
        return states if maps is None else maps[stack](states.to(maps[stack].weight.dtype))
