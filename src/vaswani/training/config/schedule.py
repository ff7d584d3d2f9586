"""The learning-rate schedule of Vaswani et al. (2017), section 5.3.

Equation 3 reads lrate = d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) with steps counted from 1: a linear
warm-up to the peak (d_model · warmup)^-0.5, then a decay with the inverse square root of the step. The
`inverse_sqrt` of transformers counts from 0, so its first update has a learning rate of 0 and does nothing;
here it has 1/warmup of the peak.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import SchedulerType, get_scheduler

from vaswani.errors import UserError, one_line

DEPEND_ON_SCORES = ("reduce_lr_on_plateau", "greedy")  # schedules that are not a function of the update


def paper_peak_learning_rate(d_model: int, warmup_steps: float) -> float:
    """The highest learning rate of equation 3, which it reaches at `step == warmup_steps`.

    Raises:
        UserError: without a warm-up the formula has no peak.
    """
    if warmup_steps < 1:
        raise UserError(
            f"the paper's learning rate needs warmup_steps of at least 1, but warmup_steps={warmup_steps}; "
            "set learning_rate to the peak that you want instead"
        )
    return (d_model * warmup_steps) ** -0.5


def inverse_sqrt_factor(updates_done: int, *, warmup_steps: int) -> float:
    """Fraction of the peak learning rate for the next update; `updates_done` counts from 0."""
    step = updates_done + 1
    return min(step / warmup_steps, (warmup_steps / step) ** 0.5)


def inverse_sqrt_schedule(optimizer: Optimizer, warmup_steps: int) -> LambdaLR:
    """Equation 3, scaled so that its peak is the learning rate of the optimizer.

    `warmup_steps=0` starts at the peak, as one step of warm-up does.
    """
    return LambdaLR(optimizer, partial(inverse_sqrt_factor, warmup_steps=max(warmup_steps, 1)))


def check_finite(scheduler: Any, num_updates: int) -> None:
    """Raise `UserError` if a learning rate is not finite; checks samples from the whole schedule."""
    for factor in getattr(scheduler, "lr_lambdas", ()):
        for update in range(0, num_updates + 1, max(1, num_updates // 16)):
            if not math.isfinite(factor(update)):
                raise UserError(
                    f"the learning rate of update {update + 1:,} is {factor(update)} times its peak; change "
                    "lr_scheduler_type or lr_scheduler_kwargs"
                )


def check_warmup(scheduler: Any, warmup_steps: int, num_updates: int) -> str | None:
    """Return a warning about a warm-up that takes the whole training; None if it is shorter.

    Raises:
        UserError: the learning rate is 0 in every update.
    """
    factors = getattr(scheduler, "lr_lambdas", ())
    if warmup_steps < num_updates or not factors or factors[0](0) >= 1:  # the last: no warm-up
        return None
    peak, highest = scheduler.base_lrs[0], factors[0](num_updates - 1)
    updates = "1 update" if num_updates == 1 else f"{num_updates:,} updates"
    given = f"warmup_steps={warmup_steps:,} is not shorter than the training of {updates}"
    if highest == 0:
        raise UserError(f"{given}, whose learning rate is 0: nothing would be learned; set warmup_steps=0")
    return (
        f"{given}, whose learning rate only rises, to {peak * highest:.2g} (the peak is {peak:.2g}); lower "
        f"warmup_steps (such as {max(1, num_updates // 10):,}), or train for longer"
    )


@dataclass(frozen=True)
class PlannedSchedule:
    """The learning rates of a training before it begins.

    Args:
        name: "inverse_sqrt", or another name in transformers.
        peak: the learning rate of the optimizer.
        warmup_steps: number of updates in the warm-up.
        max_steps: number of updates in the training.
        options: further options of the schedule (`lr_scheduler_kwargs`).

    Raises:
        UserError: the schedule is unknown, or depends on scores.
    """

    name: str
    peak: float
    warmup_steps: int
    max_steps: int
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name in DEPEND_ON_SCORES:
            raise UserError(
                f"schedule {self.name!r} depends on scores, which are unknown before the training"
            )
        if self.warmup_steps < 0:
            raise UserError(f"warmup_steps={self.warmup_steps} must be at least 0")
        names = [each.value for each in SchedulerType if each.value not in DEPEND_ON_SCORES]
        if self.name not in names:
            raise UserError(f"schedule {self.name!r} is unknown; expected one of {', '.join(names)}")

    @classmethod
    def from_config(cls, config: Any, max_steps: int | None = None) -> "PlannedSchedule":
        """Return the schedule of a configuration.

        Args:
            config: the configuration of a training (`RunConfig` or another `BaseConfig`).
            max_steps: number of updates; default: the configuration's.

        Raises:
            UserError: the number of updates or the peak does not follow from the configuration.
        """
        training = config.training
        max_steps = max_steps or training.max_steps
        if max_steps < 1:
            raise UserError(
                f"this configuration trains for num_train_epochs={training.num_train_epochs:g}, of unknown "
                "length; give --max_steps"
            )
        if training.learning_rate is None and not hasattr(config.model, "d_model"):
            raise UserError("this configuration gets its learning rate from its model; set learning_rate")
        if training.learning_rate is None:
            training.resolve_learning_rate(config.model.d_model)
        return cls(
            SchedulerType(training.lr_scheduler_type).value,
            training.learning_rate,
            training.get_warmup_steps(max_steps),
            max_steps,
            training.lr_scheduler_kwargs or {},
        )

    def learning_rates(self, updates: Sequence[int]) -> list[float]:
        """Return the learning rates of updates, which are counted from 1.

        Raises:
            UserError: the schedule needs other options.
        """
        optimizer = SGD([torch.zeros(1)], lr=self.peak)
        if self.name == SchedulerType.INVERSE_SQRT:
            schedule: Any = inverse_sqrt_schedule(optimizer, self.warmup_steps)
        else:
            schedule = self._of_transformers(optimizer)
        (factor,) = schedule.lr_lambdas
        return [self.peak * factor(update - 1) for update in updates]

    def _of_transformers(self, optimizer: Optimizer) -> Any:
        try:
            return get_scheduler(self.name, optimizer, self.warmup_steps, self.max_steps, self.options)
        except (TypeError, ValueError) as error:
            raise UserError(
                f"schedule {self.name!r} needs other lr_scheduler_kwargs, in a configuration: "
                f"{one_line(error)}"
            ) from error
