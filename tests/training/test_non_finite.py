"""A loss or gradient that is not a number never reaches the weights, and its batch can be tried again."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tiny_runs import as_flags
from vaswani import VaswaniForConditionalGeneration
from vaswani.cli import run
from vaswani.errors import RunError
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import TrainingRun
from vaswani.training.trainer.finite_updates import MAX_SKIPPED


@pytest.fixture
def options(tiny_run: dict) -> dict:
    del tiny_run["test_file"], tiny_run["validation_file"], tiny_run["save_steps"]
    return tiny_run | {"gradient_accumulation_steps": 2, "save_strategy": "no", "max_steps": 14}


class PoisonedRun(TrainingRun):
    """Some updates see a model with a weight that is not a number, in the second of their batches."""

    def __init__(self, options: dict, poisoned: set[int]):
        super().__init__(load_config(None, as_flags(options)))
        self.poisoned = poisoned

    def build_trainer(self, *arguments):
        trainer = super().build_trainer(*arguments)
        compute_loss = trainer.compute_loss
        calls = iter(range(1000))

        def poisoned_loss(model, inputs, *args, **kwargs):
            loss = compute_loss(model, inputs, *args, **kwargs)
            return (
                loss * float("nan") if next(calls) in {2 * update - 1 for update in self.poisoned} else loss
            )

        trainer.compute_loss = poisoned_loss
        self.trainer = trainer
        return trainer


def test_stopping_saves_the_model_and_the_batches_of_the_update(options):
    poisoned = PoisonedRun(options, {4})
    with pytest.raises(
        RunError, match=r"not finite in update 4; its batches, and the model before it, are in"
    ):
        poisoned.run()
    folder = Path(options["output_dir"]) / "non_finite" / "update-4"
    before = VaswaniForConditionalGeneration.from_pretrained(folder / "model")
    for name, weight in poisoned.trainer.model.state_dict().items():
        assert torch.equal(before.state_dict()[name], weight), name
    batches = sorted(folder.glob("*.safetensors"))
    assert [path.name for path in batches] == [f"process-0-batch-{i}.safetensors" for i in range(2)]
    for path in batches:
        assert before(**load_file(path)).loss.isfinite()  # here it was the poison


def test_skipping_leaves_weights_and_moments_as_they_were(options, tmp_path):
    skipping = PoisonedRun({**options, "non_finite_loss": "skip", "max_steps": 5}, {3})
    weights = {}

    def remember(*args, **kwargs):
        weights[skipping.trainer.state.global_step] = [
            parameter.detach().clone() for parameter in skipping.trainer.model.parameters()
        ]

    build = skipping.build_trainer

    def build_and_watch(*arguments):
        trainer = build(*arguments)
        trainer.callback_handler.callbacks[0].on_step_end = remember
        return trainer

    skipping.build_trainer = build_and_watch
    skipping.run()
    moved = {
        step: not all(torch.equal(*pair) for pair in zip(weights[step], weights[step - 1], strict=True))
        for step in range(2, 6)
    }
    assert moved == {2: True, 3: False, 4: True, 5: True}
    assert all(parameter.isfinite().all() for parameter in skipping.trainer.model.parameters())
    assert (Path(options["output_dir"]) / "non_finite" / "update-3").is_dir()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_logged_losses_are_of_the_updates_that_were_made(options, tmp_path, steps):
    more = {"non_finite_loss": "skip", "max_steps": 5, "logging_steps": steps, "dropout": 0.0}
    skipping = PoisonedRun({**options, **more, "output_dir": tmp_path / "run"}, {3})
    made, compute_loss = {}, None

    def watched(*arguments):
        nonlocal compute_loss
        trainer = TrainingRun.build_trainer(skipping, *arguments)
        compute_loss = trainer.compute_loss

        def kept(model, inputs, *args, **kwargs):
            loss = compute_loss(model, inputs, *args, **kwargs)
            update = trainer.state.global_step + 1
            made[update] = made.get(update, 0.0) + loss.item()
            return loss * float("nan") if update == 3 else loss

        trainer.compute_loss = kept
        skipping.trainer = trainer
        return trainer

    skipping.build_trainer = watched
    skipping.run()
    del made[3]
    history = skipping.trainer.state.log_history
    before = 0
    for entry in [each for each in history if "learning_rate" in each]:
        counted = [loss for update, loss in made.items() if before < update <= entry["step"]]
        before = entry["step"]
        assert ("loss" in entry) == bool(counted)
        if counted:
            assert entry["loss"] == pytest.approx(sum(counted) / len(counted), rel=1e-4)
    assert before == 5 if steps != 2 else 4
    (of_all,) = (entry["train_loss"] for entry in history if "train_loss" in entry)
    assert of_all == pytest.approx(sum(made.values()) / 4, rel=1e-4)


def test_too_many_skipped_updates_raise_an_error(options):
    always = PoisonedRun({**options, "non_finite_loss": "skip"}, set(range(2, 30)))
    with pytest.raises(RunError, match=f"not finite in update {2 + MAX_SKIPPED}; "):
        always.run()


def test_a_run_with_only_skipped_updates_raises_an_error(options):
    always = PoisonedRun({**options, "non_finite_loss": "skip", "max_steps": 2}, {1, 2})
    with pytest.raises(RunError, match=r"all 2 updates were skipped, .*Lower the learning_rate"):
        always.run()
    assert not list(Path(options["output_dir"]).glob("*.safetensors"))


def test_a_diverging_learning_rate_gives_a_one_line_error(options, capfd):
    assert run(["train", *as_flags({**options, "learning_rate": 1e9, "warmup_steps": 0})]) == 1
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("vaswani: the loss or its gradient is not finite in update ")
    assert "Lower the learning_rate" in error
