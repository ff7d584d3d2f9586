"""`vaswani estimate` as a user runs it: every option, every included configuration, and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from in_process import outcome
from toy_labels import save_toy_classifier
from toy_translation import save_toy_checkpoint, toy_model
from vaswani.files.named_configs import command, config_names, shipped_config
from vaswani.files.yaml_files import load_yaml
from vaswani.insight.arithmetic import calibration, measure
from vaswani.training.runs.shapes import NEW_MODELS, configured_model

Estimate = Callable[..., dict[str, Any]]
NAMES = [  # those that do not continue another run's model
    name
    for name in config_names()
    if command(name) in NEW_MODELS and "model" not in load_yaml(shipped_config(name).read_text())
]
OF_DATES = ("--config", "dates", "--device", "h100")


@pytest.fixture
def call(capfd) -> Callable[..., tuple[int, str, str]]:
    def run_it(*arguments: object) -> tuple[int, str, str]:
        return outcome(capfd, "estimate", *arguments)

    return run_it


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Calibrate in no time."""
    monkeypatch.setattr(calibration, "COPIED_BYTES", 1 << 20)
    monkeypatch.setattr(calibration, "SECONDS_OF_MEASURING", 0.0)
    monkeypatch.setattr(measure, "RUNS", 1)
    monkeypatch.setattr(measure, "SECONDS", 0.0)


@pytest.fixture
def estimate(call) -> Estimate:
    def run_it(*arguments: object) -> dict[str, Any]:
        status, out, err = call(*arguments, "--json")
        assert status == 0, err
        return json.loads(out)

    return run_it


@pytest.fixture
def toy(tmp_path) -> Path:
    save_toy_checkpoint(tmp_path / "toy")
    return tmp_path / "toy"


@pytest.mark.parametrize("name", NAMES)
def test_every_included_configuration_is_estimated(estimate, name):
    found = estimate("--config", name, "--source", 16, "--device", "h200")
    parts = found["parameters"]
    model = configured_model(name)
    assert parts.pop("all") == sum(parts.values()) == model.num_parameters()
    assert found["model"] == type(model).__name__
    assert all(phase["floor_seconds"] > 0 for phase in found["phases"].values())


def test_a_saved_model_is_estimated(estimate, toy):
    found = estimate("--model", toy, "--device", "h100")
    assert found["parameters"]["all"] == toy_model().num_parameters()
    assert found == estimate("--config", toy / "config.json", "--device", "h100")


def test_a_classifier_keeps_its_head(estimate, tmp_path):
    save_toy_classifier(tmp_path / "classifier", "classification")
    found = estimate("--model", tmp_path / "classifier", "--device", "h100", "--source", 20)
    assert found["model"] == "VaswaniForSequenceClassification"
    assert found["parameters"]["head"] > 0
    assert set(found["phases"]) == {"training_step", "reading"}


# Each option, and what must grow with it.
GROWS = {
    "--batch 8": ("phases", "training_step", "flops"),
    "--source 300": ("phases", "reading", "flops"),
    "--target 300": ("phases", "reading_and_writing", "flops"),
    "--num_beams 5": ("memory", "inference", "self_attention_cache"),
    "--dtype float32": ("memory", "inference", "weights"),
    "--devices 4": ("phases", "reading", "sent"),
    "--device a100": ("phases", "training_step", "floor_seconds"),
}


@pytest.mark.parametrize("option", GROWS)
def test_every_option_changes_the_result(estimate, option):
    before, after = estimate(*OF_DATES), estimate(*_merged(option))
    for key in GROWS[option]:
        before, after = before[key], after[key]
    assert after > before


def _merged(option: str) -> list[str]:
    name, value = option.split()
    options = {"--config": "dates", "--device": "h100", name: value}
    return [word for pair in options.items() for word in pair]


def test_the_target_is_as_long_as_the_source(estimate):
    assert estimate(*OF_DATES, "--source", 40)["work"]["target"] == 40
    assert estimate("--config", "mlm", "--device", "h100")["work"]["target"] == 0


def test_products_are_float32_on_the_cpu_and_bfloat16_elsewhere(estimate):
    assert estimate("--config", "dates")["work"]["dtype"] == "float32"
    assert estimate(*OF_DATES)["work"]["dtype"] == "bfloat16"


def test_devices_divide_weights_and_not_embeddings(estimate):
    alone, four = (estimate(*OF_DATES, "--devices", count)["memory"]["inference"] for count in (1, 4))
    parts = estimate(*OF_DATES)["parameters"]
    whole = 2 * (parts["embeddings"] + parts["encoder norms"] + parts["decoder norms"])
    assert (
        whole + (alone["weights"] - whole) / 4
        < four["weights"]
        < 1.02 * (whole + (alone["weights"] - whole) / 4)
    )
    assert four["self_attention_cache"] == alone["self_attention_cache"] / 4


def test_a_device_of_a_file(estimate, tmp_path):
    file = tmp_path / "device.yaml"
    file.write_text("name: toy\nflops: {bfloat16: 1e9}\nbandwidth: 1e15\nmemory: 1e9\n")
    found = estimate("--config", "dates", "--device", file)
    assert found["device"]["name"] == "toy"
    for phase in found["phases"].values():
        assert phase["bound_by"] == "arithmetic"
        assert phase["floor_seconds"] == phase["flops"] / 1e9
    file.write_text("name: toy\nflops: {bfloat16: 1e18}\nbandwidth: 1e6\nmemory: 1e9\n")
    for phase in estimate("--config", "dates", "--device", file)["phases"].values():
        assert phase["bound_by"] == "memory"
        assert phase["floor_seconds"] == phase["bytes"] / 1e6


def test_slow_messages_bound_the_time(estimate, tmp_path):
    file = tmp_path / "device.yaml"
    link = "link: {bandwidth: 1e12, latency: 1}\n"
    file.write_text(f"name: toy\nflops: {{bfloat16: 1e15}}\nbandwidth: 1e12\nmemory: 1e9\n{link}")
    found = estimate("--config", "dates", "--device", file, "--devices", 2, "--target", 1)
    messages = 2 * (
        2 * 3 + 3 * 1
    )  # a sum is two; two in each of 3 encoder layers, three in the decoder's one
    assert found["phases"]["reading_and_writing"]["messages"] == messages
    assert found["phases"]["reading_and_writing"]["bound_by"] == "communication"
    assert found["phases"]["training_step"]["messages"] == 2 * messages


def test_the_table_shows_the_same_numbers(call, estimate):
    arguments = (*OF_DATES, "--devices", 2)
    status, out, _ = call(*arguments)
    found = estimate(*arguments)
    assert status == 0
    assert out.startswith(f"VaswaniForConditionalGeneration: {found['parameters']['all']:,} parameters\n")
    for part in found["parameters"]:
        assert part == "all" or f"\n  {part} " in out
    for phase in found["phases"]:
        assert f"\n  {phase.replace('_', ' ')} " in out
    assert "on 2 × NVIDIA H100 80 GB SXM: 989 TFLOP/s, 3,350 GB/s, 80 GB\n" in out
    assert "fits into the 80 GB of each device" in out
    assert "sent, MB" in out
    assert max(map(len, out.splitlines())) <= 100


def test_an_encoder_has_no_cache(call, estimate):
    status, output, _ = call("--config", "mlm", "--device", "h100")
    assert status == 0
    assert "cache" not in output
    cache = {"cache_bytes_per_token", "cache_flops_per_token", "tokens_in_memory"}
    encoder, decoder = (
        set(estimate("--config", name, "--device", "h100")["relations"]) for name in ("mlm", "causal_lm")
    )
    assert decoder - encoder == cache


def test_a_model_that_does_not_fit_is_reported(call):
    _, out, _ = call("--config", "systems/gpt3_175b", "--device", "h100")
    assert "does not fit into the 80 GB of the device" in out


@pytest.mark.parametrize("kind", ["translator", "mlm", "causal_lm_small"])
def test_measured_times_are_compared_with_the_lower_bound(call, estimate, toy, kind):
    which = ("--model", toy) if kind == "translator" else ("--config", kind)
    arguments = (*which, "--source", 9, "--batch", 2, "--measure")
    found = estimate(*arguments)
    for phase in found["phases"].values():
        assert phase["measured_seconds"] > 0
        assert phase["reached"] == phase["floor_seconds"] / phase["measured_seconds"]
    _, out, _ = call(*arguments)
    assert "measured, ms" in out


def test_measurements_use_the_given_lengths(toy, monkeypatch, estimate):
    seen = []
    monkeypatch.setattr(measure, "_seconds", lambda run: seen.append(run()) or 1.0)
    found = estimate(
        "--model", toy, "--source", 7, "--target", 5, "--batch", 3, "--num_beams", 2, "--measure"
    )
    training, reading, step, written = seen
    assert training is step is None
    assert reading.last_hidden_state.shape[:2] == (3, 7)
    assert written.shape == (3, 1 + 5)
    assert found["phases"]["reading"]["measured_seconds"] == 1.0


def test_a_model_larger_than_memory_is_not_measured(call, monkeypatch):
    monkeypatch.setattr("vaswani.insight.arithmetic.devices.memory_size", lambda: 1e6)
    status, _, err = call("--config", "dates", "--measure")
    assert status == 2
    assert "this machine has 0.001 GB: it cannot be measured" in err


def test_the_machine_is_measured_before_and_after(estimate, toy, monkeypatch):
    peaks = iter([1e9, 4e9])
    monkeypatch.setattr("vaswani.insight.arithmetic.devices.matrix_peak", lambda *_: next(peaks))
    monkeypatch.setattr(measure, "_seconds", lambda run: 1.0)
    assert estimate("--model", toy, "--measure")["device"]["flops"] == 4e9


REFUSED = {
    "": "give exactly one of --config and --model, got neither",
    "--config dates --model x": "give exactly one of --config and --model, got both",
    "--config dates --device h300": "device 'h300' is unknown; expected 'cpu', 'a100', 'h100'",
    "--config dates --dtype int8": "dtype 'int8' is unknown; expected 'float32', 'bfloat16', 'float16'",
    "--config dates --batch 0": "batch=0 must be at least 1",
    "--config mlm --target 3": "target=3: an encoder writes nothing; leave out --target",
    "--config mlm --num_beams 3": "num_beams=3: an encoder writes nothing; leave out --num_beams",
    "--config systems/gpt2 --source 1000": "source + target=2000 is longer than the model's max_position_emb",
    "--config systems/bert_base --source 513": "source=513 is longer than the model's max_position",
    "--config dates --device h100 --devices 3": "does not divide encoder_attention_heads=4; try 1, 2, 4",
    "--config dates --devices 2": "has no link to others; give one with `link` in its file",
    "--config dates --device h100 --measure": "--measure runs on this CPU, and the device is h100",
    "--config tasks/sentiment": "configuration tasks/sentiment is for `prompt` and describes no new model",
    "--config devices/h100": "configuration devices/h100 is for `estimate` and describes no new model",
    "--config accelerate/ddp": "configuration accelerate/ddp is for `launch` and describes no new model",
    "--config distill_dates": "configuration distill_dates is for `distill` and describes no new model",
    "--config dats": "configuration file dats does not exist; did you mean 'dates'?",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_invalid_arguments_give_a_one_line_error(call, arguments):
    status, out, err = call(*arguments.split())
    assert (status, out) == (2, "")
    assert REFUSED[arguments] in err
    assert err.count("\n") == 1


FILES = {
    "model: runs/mlm\ntask: classification\n": "model from model=runs/mlm; give that model with --model",
    "teacher: runs/a\n": "takes its model from teacher=runs/a",
    "- 1\n": "must hold `key: value` lines, not [1]",
    "a: [\n": "cannot be read",
    "model_type: llama\n": "has model_type='llama'; expected 'vaswani'",
    "model_type: vaswani\nd_model: 0\n": "makes no model: d_model=0 must be at least 1",
    "d_mode: 3\n": "unknown key 'd_mode'",
}


@pytest.mark.parametrize("text", FILES)
def test_a_file_without_a_model_configuration_gives_an_error(call, tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    status, _, err = call("--config", tmp_path / "own.yaml")
    assert status == 2
    assert FILES[text] in err
    assert err.count("\n") == 1


def test_a_model_of_another_library_is_not_counted(call, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    )
    status, _, err = call("--model", tmp_path, "--device", "h100")
    assert status == 2
    assert (
        "model_type='bert' is another library's model, whose layers are not counted; convert it first" in err
    )


def test_too_many_blocks_give_an_error(call):
    status, _, err = call("--config", "long_summarization", "--device", "h100", "--source", 2**27)
    assert status == 2
    assert "blocks of 64" in err
