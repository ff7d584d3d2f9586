"""A model of time, memory and traffic of training on several devices.

It counts the operations, memory and traffic of each strategy, and divides by the rates of a machine. It
ignores stragglers, slower kernels on small shards, and the disk. `benchmarks/scaling.py` compares it with
measurements of one and two processes.

P parameters · N devices · tokens are those of one device and update, source and target together
"""

from __future__ import annotations

from dataclasses import dataclass

from vaswani.hub.run_metadata import count_parameters
from vaswani.insight.arithmetic.flops import training_flops
from vaswani.model.configuration_vaswani import VaswaniConfig

BYTES_OF_A_NUMBER = 4  # weights, gradients and both moments are float32, under bf16 autocast too
STATES = 4  # weight, gradient and Adam's two moments
OVERLAP = 2 / 3  # share of the backward pass, during which gradients are sent
# Activations kept for the backward pass per token and layer, in model or feed-forward widths.
ENCODER_WIDTHS, DECODER_WIDTHS, INNER_WIDTHS = 9, 16, 1


@dataclass(frozen=True)
class Machine:
    """The rates of a device and its network.

    Args:
        flops: achieved in training on one device, operations per second.
        memory: of a device, bytes.
        devices: of one machine.
        within: bytes per second and device among the devices of a machine.
        between: bytes per second and device from machine to machine.
        latency: seconds that one message takes.
    """

    flops: float
    memory: float
    devices: int
    within: float
    between: float
    latency: float

    def bandwidth(self, devices: int, rings: int = 1) -> float:
        """Return the bandwidth of each of `rings` simultaneous rings through `devices` devices."""
        if devices <= self.devices:
            return self.within
        return min(self.within, self.between * self.devices / rings)


@dataclass(frozen=True)
class Cost:
    """The cost of one update on each device.

    Args:
        seconds: in total.
        exposed: seconds of waiting for communication.
        memory: bytes.
        traffic: bytes sent.
    """

    seconds: float
    exposed: float
    memory: float
    traffic: float


def activation_bytes(config: VaswaniConfig, tokens: int, bytes_of_a_number: int) -> float:
    """Return the bytes of activations kept for the backward pass, without logits, which are chunked."""
    encoder = config.encoder_layers * (
        ENCODER_WIDTHS * config.d_model + INNER_WIDTHS * config.encoder_ffn_dim
    )
    decoder = config.decoder_layers * (
        DECODER_WIDTHS * config.d_model + INNER_WIDTHS * config.decoder_ffn_dim
    )
    return tokens / 2 * (encoder + decoder) * bytes_of_a_number


def cost_of_update(
    config: VaswaniConfig,
    machine: Machine,
    way: str,
    devices: int,
    tokens: int,
    length: int = 30,
    bytes_of_an_activation: int = 2,
) -> Cost:
    """Return the cost of one update on each of N devices.

    Args:
        config: of the model.
        machine: the devices and network.
        way: "ddp" (copies), "fsdp" (shards on all devices) or "hybrid" (shards within each machine).
        devices: N.
        tokens: of one device and update.
        length: of a sentence, source or target.
        bytes_of_an_activation: 2 under bf16 autocast, 4 without.
    """
    parameters = count_parameters(config)
    weights = BYTES_OF_A_NUMBER * parameters
    seconds = training_flops(config, tokens // (2 * length), length, length) / machine.flops
    shards = {"ddp": 1, "fsdp": devices, "hybrid": min(devices, machine.devices)}[way]
    copies = devices // shards

    # A ring sends (N − 1) / N of the bytes for a reduce-scatter or an all-gather, and twice that for both.
    sharing = 3 * weights * (shards - 1) / shards  # weights forward and backward, and gradients
    adding = 2 * weights / shards * (copies - 1) / copies
    rings = min(shards, machine.devices)
    travel = sharing / machine.bandwidth(shards) + adding / machine.bandwidth(devices, rings)
    messages = (3 * (shards - 1) + 2 * (copies - 1)) * machine.latency
    exposed = max(0.0, travel + messages - OVERLAP * seconds)
    buckets = weights if way == "ddp" and copies > 1 else 0  # copies of gradients for communication
    memory = STATES * weights / shards + buckets
    memory += activation_bytes(config, tokens, bytes_of_an_activation)
    return Cost(seconds + exposed, exposed, memory, sharing + adding)
