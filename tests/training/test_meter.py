"""What is logged of speed: real tokens, padding and arithmetic of the batches that were trained on."""

import pytest
import torch
from accelerate import Accelerator
from transformers import MarianConfig

from tiny_runs import resolved
from vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.insight.arithmetic.flops import prediction_flops, stack_flops, training_flops
from vaswani.training.config.schedule import PlannedSchedule
from vaswani.training.runs.translation import TrainingRun
from vaswani.training.trainer import meter
from vaswani.training.trainer.meter import Meter

SHAPE = VaswaniConfig(vocab_size=50, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2)


def batch(source: list[int], target: list[int]) -> dict[str, torch.Tensor]:
    """Rows with so many real tokens."""
    mask = torch.zeros(len(source), max(source), dtype=torch.long)
    labels = torch.full((len(target), max(target)), -100)
    for row, (of_source, of_target) in enumerate(zip(source, target, strict=True)):
        mask[row, :of_source] = 1
        labels[row, :of_target] = 5
    return {"attention_mask": mask, "labels": labels}


class Clock:
    """Time that passes when the test says so."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(meter, "time", clock)
    return clock


def test_tokens_padding_and_arithmetic_are_those_of_the_batches(clock):
    counts = Meter(Accelerator(cpu=True), SHAPE, copies=1)
    clock.now += 100  # before training
    counts.on_train_begin()
    counts.count(batch([3, 5], [4, 2]))
    counts.count(batch([7], [7]))
    clock.now += 2
    with counts.paused():
        clock.now += 50
    told = counts.report()
    assert told["padding"] == pytest.approx(1 - 28 / (10 + 8 + 14))
    assert told["tokens"] == 28
    assert told["tokens_per_second"] == pytest.approx(28 / 2)
    flops = training_flops(SHAPE, 2, 5, 4) + training_flops(SHAPE, 1, 7, 7)
    assert told["tflops"] == pytest.approx(flops / 2 / 1e12)
    assert told["mfu"] == pytest.approx(flops / 2 / counts._peak)
    assert counts.report() == {}  # nothing since
    counts.count(batch([7], [7]))
    clock.now += 7
    assert counts.report()["tokens_per_second"] == pytest.approx(2)


def test_processes_with_the_same_batch_count_it_once(clock):
    ways = [Meter(Accelerator(cpu=True), SHAPE, copies=copies) for copies in (1, 2)]
    for each in ways:
        each.on_train_begin()
        each.count(batch([30] * 8, [30] * 8))
    clock.now += 3
    once, twice = (each.report() for each in ways)
    for name in ("tokens", "tokens_per_second", "tflops"):
        assert once[name] == pytest.approx(2 * twice[name])


def test_operations_of_library_models_are_not_reported(clock):
    counts = Meter(Accelerator(cpu=True), MarianConfig(), copies=1)
    counts.on_train_begin()
    counts.count(batch([3], [4]))
    clock.now += 1
    assert counts.report().keys() == {"tokens", "tokens_per_second", "padding"}


def test_labels_of_single_sequences_do_not_count_as_tokens(clock):
    config = VaswaniEncoderConfig(vocab_size=50, d_model=16, encoder_attention_heads=2)
    masked = batch([3, 5], [3, 5])
    masked["labels"][:, 1:] = -100  # a label in each row
    told = {}
    for predicts_tokens in (True, False):
        counts = Meter(Accelerator(cpu=True), config, 1, predicts_tokens)
        counts.on_train_begin()
        counts.count(masked)
        clock.now += 2
        told[predicts_tokens] = counts.report()
        assert told[predicts_tokens]["tokens_per_second"] == pytest.approx(8 / 2)
        assert told[predicts_tokens]["padding"] == pytest.approx(1 - 8 / 10)
    layers = 3 * stack_flops(config, config.stacks[0], 2, 5)
    assert told[False]["tflops"] == pytest.approx(layers / 2 / 1e12)
    assert told[True]["tflops"] == pytest.approx((layers + 3 * prediction_flops(config, 2)) / 2 / 1e12)


def test_packed_rows_have_no_padding(clock):
    config = VaswaniDecoderConfig(vocab_size=50, d_model=16, decoder_attention_heads=2)
    counts = Meter(Accelerator(cpu=True), config, copies=1)
    counts.on_train_begin()
    ids = torch.full((2, 6), 5)
    counts.count({"input_ids": ids, "position_ids": ids, "labels": ids})
    clock.now += 3
    told = counts.report()
    assert told["tokens_per_second"] == pytest.approx(12 / 3)
    assert told["padding"] == 0
    flops = 3 * (stack_flops(config, config.stacks[0], 2, 6) + prediction_flops(config, 12))
    assert told["tflops"] == pytest.approx(flops / 3 / 1e12)


@pytest.mark.slow
def test_a_training_logs_the_measurements(tiny_run):
    del tiny_run["test_file"], tiny_run["validation_file"]
    run = TrainingRun(resolved({**tiny_run, "save_strategy": "no"}))
    build, trainers = run.build_trainer, []
    run.build_trainer = lambda *args: trainers.append(build(*args)) or trainers[0]
    run.run()
    logged = [entry for entry in trainers[0].state.log_history if "loss" in entry]
    assert len(logged) == 6
    planned = PlannedSchedule.from_config(run.config).learning_rates(range(1, 7))
    assert [entry["learning_rate"] for entry in logged] == pytest.approx(planned)
    for entry in logged:
        assert entry["tokens_per_second"] > 100
        assert 0 <= entry["padding"] < 0.5
        assert entry["mfu"] > 0
