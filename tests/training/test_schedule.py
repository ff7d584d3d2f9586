"""The schedule against equation 3 of the paper, step by step."""

import re

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_inverse_sqrt_schedule, get_scheduler

from vaswani.errors import UserError
from vaswani.training.config.config_file import load_config
from vaswani.training.config.schedule import (
    PlannedSchedule,
    check_warmup,
    inverse_sqrt_schedule,
    paper_peak_learning_rate,
)
from vaswani.training.config.training_arguments import BaseTrainingArguments


def learning_rates(make_schedule, peak: float, steps: int) -> list[float]:
    """The learning rate that each update is made with."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    schedule, rates = make_schedule(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(("d_model", "warmup"), [(512, 4000), (1024, 16), (16, 1)])
def test_every_step_equals_the_papers_formula(d_model, warmup):
    steps = 3 * warmup + 50
    rates = learning_rates(
        lambda optimizer: inverse_sqrt_schedule(optimizer, warmup),
        paper_peak_learning_rate(d_model, warmup),
        steps,
    )
    formula = [d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in range(1, steps + 1)]
    assert rates == pytest.approx(formula, rel=1e-12)


def test_unlike_in_transformers_the_first_step_has_a_positive_rate():
    theirs = learning_rates(lambda optimizer: get_inverse_sqrt_schedule(optimizer, 10), 1.0, 12)
    ours = learning_rates(lambda optimizer: inverse_sqrt_schedule(optimizer, 10), 1.0, 12)
    assert theirs[0] == 0
    assert ours[0] == 0.1
    assert ours[:11] == pytest.approx(theirs[1:])


def test_without_warm_up_the_first_step_has_the_peak():
    rates = learning_rates(lambda optimizer: inverse_sqrt_schedule(optimizer, 0), 2.0, 4)
    assert rates == pytest.approx([2.0, 2**0.5, 2 / 3**0.5, 1.0])


def test_base_models_peak_is_that_of_the_paper():
    assert paper_peak_learning_rate(512, 4000) == pytest.approx(6.99e-4, rel=1e-3)


def test_formula_without_warm_up_is_refused():
    with pytest.raises(UserError, match="warmup_steps=0"):
        paper_peak_learning_rate(512, 0)


# Before a training.


def planned(name: str, warmup: int, updates: int, peak: float = 1e-3) -> LambdaLR:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    if name == "inverse_sqrt":
        return inverse_sqrt_schedule(optimizer, warmup)
    return get_scheduler(name, optimizer, warmup, updates)


@pytest.mark.parametrize(
    ("name", "warmup", "updates", "message"),
    [
        ("inverse_sqrt", 400, 100, r"=400 is .* of 100 updates, .* only rises, to 0.00025 \(.* is 0.001\)"),
        ("inverse_sqrt", 4000, 1, r"of 1 update, .*; lower warmup_steps \(such as 1\), or train for longer"),
        ("linear", 20, 20, r"rises, to 0.00095 \(.*; lower warmup_steps \(such as 2\)"),
        ("constant_with_warmup", 4000, 2000, r"4,000 is .* of 2,000 updates, .* \(such as 200\)"),
        ("linear", 19, 20, None),
        ("inverse_sqrt", 1, 1, None),
        ("constant", 4000, 10, None),
    ],
)  # fmt: skip
def test_a_warm_up_as_long_as_the_training_gives_a_warning(name, warmup, updates, message):
    told = check_warmup(planned(name, warmup, updates), warmup, updates)
    assert (told is None) if message is None else re.search(message, told)


def test_a_training_with_zero_learning_rate_raises_an_error():
    message = "warmup_steps=3 is .* of 1 update, whose learning rate is 0: .*; set warmup_steps=0"
    with pytest.raises(UserError, match=message):
        check_warmup(planned("linear", 3, 1), 3, 1)


def test_a_fraction_of_the_updates_is_never_all_of_them(tmp_path):
    arguments = BaseTrainingArguments(str(tmp_path), warmup_steps=0.1, learning_rate=1e-3)
    assert [arguments.get_warmup_steps(updates) for updates in (1, 2, 10, 11)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("name", "options"),
    [("linear", {}), ("cosine", {}), ("polynomial", {"power": 2.0}), ("inverse_sqrt", {})],
)
def test_a_planned_schedule_is_that_of_the_optimizer(name, options):
    def schedule(optimizer):
        if name == "inverse_sqrt":
            return inverse_sqrt_schedule(optimizer, 5)
        return get_scheduler(name, optimizer, 5, 20, options)

    rates = learning_rates(schedule, 0.5, 20)
    assert PlannedSchedule(name, 0.5, 5, 20, options).learning_rates(range(1, 21)) == pytest.approx(rates)


def test_a_configuration_plans_its_schedule():
    base = PlannedSchedule.from_config(load_config("base"))
    assert (base.name, base.warmup_steps, base.max_steps) == ("inverse_sqrt", 4000, 100_000)
    assert base.peak == paper_peak_learning_rate(512, 4000)
    flags = ["--learning_rate", "0.5", "--lr_scheduler_type", "polynomial", "--warmup_steps", "0.25"]
    flags += ["--lr_scheduler_kwargs", '{"power": 2.0}']
    assert PlannedSchedule.from_config(load_config("base", flags), 80) == PlannedSchedule(
        "polynomial", 0.5, 20, 80, {"power": 2.0}
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: PlannedSchedule("cosin", 1.0, 4, 8),
            "schedule 'cosin' is unknown; expected one of linear, cos",
        ),
        (lambda: PlannedSchedule("reduce_lr_on_plateau", 1.0, 4, 8), "depends on scores, which are unknown"),
        (
            lambda: PlannedSchedule("cosine_with_min_lr", 1.0, 4, 8).learning_rates([1]),
            "'cosine_with_min_lr' needs other lr_scheduler_kwargs, in a configuration: One of min_lr",
        ),
        (
            lambda: PlannedSchedule.from_config(load_config("base", ["--max_steps", "-1"])),
            "trains for num_train_epochs=3, of unknown length; give --max_steps",
        ),
    ],
)
def test_invalid_schedules_raise_an_error(make, message):
    with pytest.raises(UserError, match=message):
        make()
