"""How time, memory and traffic of a training grow with the number of devices: a model on one page.

It counts what each way must compute, keep and send, and divides by what a machine can do. It knows nothing
of stragglers, of kernels that slow down on small shares, or of the disk. `benchmarks/scaling.py` sets it
beside what one and two processes really take.

P parameters · N devices · tokens are those of one device and update, source and target together
"""

from __future__ import annotations

from dataclasses import dataclass

from vaswani.hub.run_metadata import count_parameters
from vaswani.insight.arithmetic import training_flops
from vaswani.model.configuration_vaswani import VaswaniConfig

BYTES_OF_A_NUMBER = 4  # weights, gradients and both moments are float32, under bf16 autocast too
STATES = 4  # weight, gradient and Adam's two moments
OVERLAP = 2 / 3  # of the computation, its backward pass, in which gradients travel while others are computed
# Kept for the backward pass, in numbers per token and layer; d the width, f the inner width of feed-forward.
ENCODER_WIDTHS, DECODER_WIDTHS, INNER_WIDTHS = 9, 16, 1


@dataclass(frozen=True)
class Machine:
    """What a device and its network do.

    Args:
        flops: that a training reaches on one device, operations per second.
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
        """Of each of so many rings at once through so many devices, which share links between machines."""
        if devices <= self.devices:
            return self.within
        return min(self.within, self.between * self.devices / rings)


@dataclass(frozen=True)
class Cost:
    """Of one update, on each device.

    Args:
        seconds: of which `exposed` are spent waiting for others.
        exposed: see there.
        memory: bytes.
        traffic: bytes that it sends.
    """

    seconds: float
    exposed: float
    memory: float
    traffic: float


def activation_bytes(config: VaswaniConfig, tokens: int, bytes_of_a_number: int) -> float:
    """What the forward pass keeps for the backward pass, logits apart, which are made a few at a time."""
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
    """What one update costs each of N devices.

    Args:
        config: of the model.
        machine: what it runs on.
        way: "ddp", copies of the model; "fsdp", one shared out among all; "hybrid", one in each machine.
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

    # A ring sends each byte on N − 1 times: once to add up or hand out shares, twice to do both.
    sharing = 3 * weights * (shards - 1) / shards  # weights forward and backward, and gradients
    adding = 2 * weights / shards * (copies - 1) / copies
    rings = min(shards, machine.devices)
    travel = sharing / machine.bandwidth(shards) + adding / machine.bandwidth(devices, rings)
    messages = (3 * (shards - 1) + 2 * (copies - 1)) * machine.latency
    exposed = max(0.0, travel + messages - OVERLAP * seconds)
    buckets = weights if way == "ddp" and copies > 1 else 0  # gradients lie there once more to be sent
    memory = STATES * weights / shards + buckets
    memory += activation_bytes(config, tokens, bytes_of_an_activation)
    return Cost(seconds + exposed, exposed, memory, sharing + adding)
