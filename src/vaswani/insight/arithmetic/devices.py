"""Devices and their rates: shipped with the package, from a file, or measured on this machine's CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vaswani.errors import UserError, listing
from vaswani.files.named_configs import config_names, shipped_config
from vaswani.files.yaml_files import read_mapping, shown
from vaswani.insight.arithmetic.calibration import copy_bandwidth, matrix_peak, memory_size

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CPU = "cpu"
SHIPPED = "devices/"  # prefix of the configurations that describe devices


@dataclass(frozen=True)
class Device:
    """The rates of one device.

    Args:
        name: name for display.
        flops: A_f, peak operations per second, by dtype.
        bandwidth: A_bm, bytes per second between the device and its memory.
        memory: size of the memory in bytes.
        link_bandwidth: A_c, bytes per second that it sends to other devices; None if it has no link.
        link_latency: seconds per message.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    link_bandwidth: float | None = None
    link_latency: float = 0.0

    def peak(self, dtype: str) -> float:
        """Return the peak for a dtype; raise a UserError if the device has none."""
        if dtype not in self.flops:
            raise UserError(
                f"dtype {dtype!r} has no peak for the device {self.name}; it has {listing(self.flops)}"
            )
        return self.flops[dtype]

    def or_faster(self, again: Device) -> Device:
        """Return the device with the higher of two measurements for each rate."""
        flops = {dtype: max(peak, again.flops[dtype]) for dtype, peak in self.flops.items()}
        return replace(self, flops=flops, bandwidth=max(self.bandwidth, again.bandwidth))


def device_names() -> list[str]:
    """Return the names that `find_device` knows."""
    return [CPU, *(name.removeprefix(SHIPPED) for name in config_names() if name.startswith(SHIPPED))]


def check_device(name: str) -> None:
    """Raise a UserError unless a device is a known name or a file."""
    if name.removeprefix(SHIPPED) not in device_names() and not os.path.lexists(name):
        raise UserError(f"device {name!r} is unknown; expected {listing(device_names())} or a file")


def find_device(name: str, dtype: str = "float32") -> Device:
    """Return a device by name or from a file; "cpu" measures this machine's CPU in a dtype.

    Raises:
        UserError: no device has this name, or the file does not describe a device.
    """
    check_device(name)
    if name == CPU:
        cpu = torch.device("cpu")
        peak = {dtype: matrix_peak(cpu, DTYPES[dtype])}
        return Device(
            f"this machine's CPU, threads: {torch.get_num_threads()}", peak, copy_bandwidth(), memory_size()
        )
    known = name.removeprefix(SHIPPED)
    return read_device(shipped_config(f"{SHIPPED}{known}") if known in device_names() else Path(name))


def read_device(path: Path) -> Device:
    """Read a device from a YAML or JSON file: name, flops by dtype, bandwidth, memory, and optionally link.

    Raises:
        UserError: the file cannot be read, lacks a field, has an unknown field, or a number is not positive.
    """
    values = read_mapping(path, "device file")
    fields = _DeviceFields(path, values, {"name", "flops", "bandwidth", "memory"}, {"link"})
    flops = _DeviceFields(path, fields["flops"], set(), set(DTYPES), "flops.")
    if not flops.values:
        raise UserError(f"device file {path} has no peak in flops; give one of {listing(DTYPES)}")
    rates = {"bandwidth": fields.number("bandwidth"), "memory": fields.number("memory")}
    if "link" in fields.values:
        link = _DeviceFields(path, fields["link"], {"bandwidth", "latency"}, set(), "link.")
        rates |= {f"link_{name}": link.number(name) for name in ("bandwidth", "latency")}
    return Device(str(fields["name"]), {dtype: flops.number(dtype) for dtype in flops.values}, **rates)


class _DeviceFields:
    """The fields of a mapping in a device file; raises a UserError for unknown or missing fields."""

    def __init__(self, path: Path, values: Any, required: set[str], further: set[str], prefix: str = ""):
        self.path, self.values, self.prefix = path, values, prefix
        place = f"device file {path}"
        if not isinstance(values, dict):
            what = prefix.rstrip(".") or "it"
            raise UserError(f"{place}: {what} must hold `key: value` lines, got {shown(values)}")
        if unknown := sorted(set(map(str, values)) - required - further):
            expected = listing(sorted(required | further))
            raise UserError(f"{place} has the unknown field {prefix}{unknown[0]}; expected {expected}")
        if missing := sorted(required - values.keys()):
            raise UserError(f"{place} lacks the field {prefix}{missing[0]}; add it")

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def number(self, name: str) -> float:
        """Return a positive number; texts too, because YAML reads 312e12, without point and sign, as text."""
        value = self.values[name]
        try:
            number = float("nan" if isinstance(value, bool) else value)
        except (TypeError, ValueError):
            number = float("nan")
        if not 0 < number < float("inf"):
            where = f"device file {self.path}: {self.prefix}{name}={shown(value)}"
            raise UserError(f"{where} must be a number above 0")
        return number
