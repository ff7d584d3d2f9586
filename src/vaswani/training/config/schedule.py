"""The learning-rate schedule of Vaswani et al. (2017), section 5.3.

Equation 3 reads lrate = d_model^-0.5 · min(step^-0.5, step · warmup^-1.5) with steps counted from 1: a linear
warm-up to the peak (d_model · warmup)^-0.5, then a decay with the inverse square root of the step. The
`inverse_sqrt` of transformers counts from 0, so its first update has a learning rate of 0 and does nothing;
here it has 1/warmup of the peak.
"""

from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from vaswani.errors import UserError


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
    """Equation 3, scaled so that its peak is the learning rate that the optimizer was given.

    `warmup_steps=0` starts at the peak, as one step of warm-up does.
    """
    return LambdaLR(optimizer, partial(inverse_sqrt_factor, warmup_steps=max(warmup_steps, 1)))
