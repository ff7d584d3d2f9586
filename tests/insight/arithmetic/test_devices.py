"""Devices: the included ones, files of users, and this machine."""

import json

import pytest
import torch
import yaml

from vaswani.errors import UserError
from vaswani.files.named_configs import shipped_config
from vaswani.insight.arithmetic import calibration
from vaswani.insight.arithmetic.devices import Device, device_names, find_device, read_device

WHOLE = {
    "name": "toy",
    "flops": {"float32": 2e12, "bfloat16": "4e12"},
    "bandwidth": 1e11,
    "memory": 8e9,
    "link": {"bandwidth": 1e10, "latency": 1e-6},
}


@pytest.fixture
def file(tmp_path):
    def write(change=lambda values: None, name="toy.yaml"):
        values = json.loads(json.dumps(WHOLE))
        change(values)
        path = tmp_path / name
        path.write_text(
            json.dumps(values) if name.endswith("json") else yaml.safe_dump(values, sort_keys=False)
        )
        return path

    return write


@pytest.mark.parametrize("name", ["toy.yaml", "toy.json"])
def test_a_device_is_read_from_a_file(file, name):
    device = read_device(file(name=name))
    assert device == Device("toy", {"float32": 2e12, "bfloat16": 4e12}, 1e11, 8e9, 1e10, 1e-6)
    assert find_device(str(file(name=name))) == device
    with pytest.raises(
        UserError, match="dtype 'float16' has no peak for the device toy; it has 'float32', 'bfloat16'"
    ):
        device.peak("float16")


def test_a_device_can_have_no_link(file):
    assert read_device(file(lambda values: values.pop("link"))).link_bandwidth is None


@pytest.mark.parametrize("name", [name for name in device_names() if name != "cpu"])
def test_included_device_files_are_plausible(name):
    device = find_device(name)
    assert find_device(f"devices/{name}") == device == read_device(shipped_config(f"devices/{name}"))
    assert device.peak("bfloat16") == device.peak("float16") > device.peak("float32")
    assert 40e9 <= device.memory <= 1e12
    assert (
        100 < device.peak("bfloat16") / device.bandwidth < 400
    )  # operations per byte, of this kind of device
    assert device.link_bandwidth < device.bandwidth


BAD = {
    "lacks the field bandwidth; add it": lambda values: values.pop("bandwidth"),
    "lacks the field link.latency; add it": lambda values: values["link"].pop("latency"),
    "memory=-8 must be a number above 0": lambda values: values.update(memory=-8),
    "memory=0 must be a number above 0": lambda values: values.update(memory=0),
    "memory=True must be a number above 0": lambda values: values.update(memory=True),
    "memory='much' must be a number above 0": lambda values: values.update(memory="much"),
    "bandwidth=inf must be a number above 0": lambda values: values.update(bandwidth=float("inf")),
    "flops.float32=-1 must be a number above 0": lambda values: values["flops"].update(float32=-1),
    "has the unknown field flops.fp32; expected": lambda values: values["flops"].update(fp32=1),
    "has the unknown field price; expected": lambda values: values.update(price=1),
    "flops must hold `key: value` lines, got 3": lambda values: values.update(flops=3),
    "has no peak in flops; give one of 'float32'": lambda values: values.update(flops={}),
}


@pytest.mark.parametrize("message", BAD)
def test_invalid_values_in_a_device_file_raise_a_one_line_error(file, message):
    with pytest.raises(UserError) as error:
        read_device(file(BAD[message]))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "a: 1\na: 2", "\0"])
def test_a_file_that_is_not_a_device_raises_an_error(tmp_path, text):
    path = tmp_path / "device.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="device file"):
        read_device(path)


def test_an_unknown_device_raises_an_error_with_the_known_ones():
    with pytest.raises(
        UserError, match="device 'h300' is unknown; expected 'cpu', 'a100', 'h100', 'h200' or a file"
    ):
        find_device("h300")


def test_this_machine_is_measured(monkeypatch):
    """The rates are those of the operations that are timed, whatever the machine."""
    monkeypatch.setattr(calibration, "_fastest", lambda operation, left, right: 0.5)
    device = find_device("cpu")
    assert device.flops == {"float32": 2 * 1024**3 / 0.5}
    assert device.bandwidth == 2 * calibration.COPIED_BYTES / 0.5
    assert device.link_bandwidth is None
    assert device.memory == calibration.memory_size() > 1e9


def test_peak_and_bandwidth_are_measured():
    assert find_device("cpu", "bfloat16").flops.keys() == {"bfloat16"}
    assert calibration.copy_bandwidth() > 0
    assert calibration.matrix_peak(torch.device("cpu")) > 0
