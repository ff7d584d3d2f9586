"""The cost of training, reading and writing: operations, memory traffic in bytes, and bytes between devices.

Only unavoidable bytes count, assuming that weights and caches are larger than the processor's caches: each
used weight is read once per pass, keys and values are read once per step, and logits are written once.
Between devices (tensor parallelism), the states of all tokens are summed after each attention and
feed-forward layer, by a reduce-scatter and an all-gather.

B batch · K beams · S source length · T target length · N devices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vaswani.insight.arithmetic.devices import Device
from vaswani.insight.arithmetic.flops import (
    FORWARD_AND_BACKWARD,
    cross_attention_flops,
    decoding_flops,
    decoding_pairs,
    encoder_decoder_flops,
    head_flops,
    source_projection_flops,
    stack_flops,
)
from vaswani.insight.arithmetic.memory import (
    BYTES,
    SINGLE,
    activation_bytes,
    cross_cache_bytes,
    self_cache_bytes,
)
from vaswani.insight.arithmetic.parameters import EMBEDDINGS, parameters_of_device
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.model.stacks import VaswaniPreTrainedModel

ADAMW_PASSES = 7  # over the parameters: read weight, gradient and two moments; write weight and moments


@dataclass(frozen=True)
class Work:
    """The amount of training, reading and writing.

    Args:
        batch: B, number of rows.
        source: S, tokens per source, prompt or text.
        target: T, tokens per target or continuation; 0 for an encoder, which writes nothing.
        beams: K, hypotheses per row.
        dtype: dtype of the products; in training, weights and optimizer are float32.
        devices: N, number of devices; they divide each layer.
        on_cpu: whether the CPU's kernels are used.
    """

    batch: int
    source: int
    target: int
    beams: int = 1
    dtype: str = "float32"
    devices: int = 1
    on_cpu: bool = False

    @property
    def rows(self) -> int:
        """Return the rows of the decoder, B·K."""
        return self.batch * self.beams

    @property
    def number(self) -> int:
        """Return the bytes of a number."""
        return BYTES[self.dtype]


@dataclass(frozen=True)
class Floor:
    """The floor of a phase's time: the largest of three times, which could overlap perfectly.

    Args:
        arithmetic, memory, communication: seconds.
    """

    arithmetic: float
    memory: float
    communication: float

    @property
    def seconds(self) -> float:
        """Return the largest of the three times."""
        return max(self.arithmetic, self.memory, self.communication)

    @property
    def bound_by(self) -> str:
        """Return the name of the largest of the three times."""
        return max(("arithmetic", "memory", "communication"), key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class Phase:
    """The cost of a training step, of reading, of a decoding step or of a whole decoding.

    Args:
        flops: operations of all devices together; each product counts once.
        device_flops: operations of one device.
        bytes: bytes to and from the memory of one device.
        messages: messages that a device waits for, one after the other.
        sent: bytes that one device sends.
    """

    flops: int
    device_flops: float
    bytes: float
    messages: int = 0
    sent: float = 0.0

    def __add__(self, other: Phase) -> Phase:
        """Return the cost of two phases, one after the other."""
        return Phase(
            self.flops + other.flops,
            self.device_flops + other.device_flops,
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.sent + other.sent,
        )

    @property
    def intensity(self) -> float:
        """Return one device's operations per byte of memory traffic (arithmetic intensity)."""
        return self.device_flops / self.bytes

    def floor(self, device: Device, dtype: str) -> Floor:
        """Return the least time on a device."""
        travel = self.sent / device.link_bandwidth if device.link_bandwidth else 0.0
        return Floor(
            self.device_flops / device.peak(dtype),
            self.bytes / device.bandwidth,
            self.messages * device.link_latency + travel,
        )


class Phases:
    """The phases of a model's work.

    Args:
        model: a model of this project; it may be on the meta device.
        work: the work of the model.
    """

    def __init__(self, model: VaswaniPreTrainedModel, work: Work):
        self.model, self.work = model, work
        self.config: VaswaniFamilyConfig = model.config
        self.has_source = self.config.is_encoder_decoder
        self.weights = dict.fromkeys(("encoder", "decoder", "source", "head"), 0)  # per device
        for name, size in parameters_of_device(model, work.devices).items():
            if not set(EMBEDDINGS) & set(name.split(".")):
                self.weights[_use(name)] += size
        self.parameters = _num_unique_parameters(model, work.devices)
        # Tokens per row that each stack reads in training, as `activation_bytes` takes them.
        self.lengths = (work.source, work.target) if self.has_source else (work.source + work.target, 0)

    def training(self) -> Phase:
        """Return the cost of a forward and backward pass over all tokens, and an update by AdamW."""
        work, config = self.work, self.config
        read = sum(self.lengths)
        if self.has_source:
            layers, predicted = encoder_decoder_flops(config, work.batch, *self.lengths), work.target
        else:
            layers, predicted = stack_flops(config, config.stacks[0], work.batch, read), read
        head = head_flops(self.model, work.batch, work.batch * predicted)
        memory = (
            2 * work.number * sum(self.weights.values())  # read forward and backward
            + self._looked_up(work.batch * read)
            + SINGLE * self.parameters * (1 + ADAMW_PASSES)  # the gradient is written too
            + 2 * self.activations()
        )
        forward = self._phase(layers, head, memory, self._sums(work.batch, *self.lengths))
        return Phase(
            FORWARD_AND_BACKWARD * forward.flops,
            FORWARD_AND_BACKWARD * forward.device_flops,
            forward.bytes,
            2 * forward.messages,
            2 * forward.sent,
        )

    def reading(self) -> Phase:
        """Return the cost of encoding and projecting sources, or of reading prompts up to the first token."""
        work, config = self.work, self.config
        rows = work.rows if config.stacks == ("decoder",) else work.batch  # each beam repeats a prompt
        layers = stack_flops(config, config.stacks[0], rows, work.source)
        memory: float = work.number * self.weights[config.stacks[0]] + self._looked_up(rows * work.source)
        if self.has_source:
            layers += source_projection_flops(config, rows, work.source)
            memory += work.number * self.weights["source"] + self.cross_cache()
            return self._phase(layers, 0, memory, self._sums(rows, work.source, 0))
        predicted = rows if work.target else rows * work.source  # generation needs only the last token
        head = head_flops(self.model, rows, predicted)
        memory += work.number * self.weights["head"] + self._logits(predicted)
        if work.target:
            memory += self.self_cache(work.source)
        return self._phase(layers, head, memory, self._sums(rows, work.source, 0))

    def steps(self) -> tuple[int, int]:
        """Return the number of tokens before the first step, and the number of steps.

        Reading a prompt gives the first token; reading a source does not.
        """
        work = self.work
        return (0, work.target) if self.has_source else (work.source, work.target - 1)

    def last_step(self) -> Phase:
        """Return the cost of writing the last token; if reading a prompt writes it, of the following step."""
        past, steps = self.steps()
        return self.step(past + max(steps, 1) - 1)

    def step(self, past: int) -> Phase:
        """Return the cost of writing one token per hypothesis after `past` tokens of the decoder's input."""
        return self._steps(past, 1)

    def writing(self) -> Phase:
        """Return the cost of all steps."""
        return self._steps(*self.steps())

    def _steps(self, past: int, steps: int) -> Phase:
        work, config = self.work, self.config
        layers = decoding_flops(config, work.rows, past, steps)
        if self.has_source:
            layers += cross_attention_flops(config, work.rows, work.source, steps)
        memory = steps * (
            work.number * (self.weights["decoder"] + self.weights["head"])
            + self._looked_up(work.rows)
            + self.self_cache(1)  # written
            + self.cross_cache()
            + self._logits(work.rows)
        )
        memory += self._visible_cache(past, steps)
        head = head_flops(self.model, work.rows, work.rows)
        return self._phase(layers, steps * head, memory, self._sums(work.rows, 0, 1), steps)

    def _phase(self, layers: int, head: int, memory: float, sums: tuple[int, int], times: int = 1) -> Phase:
        """Return a phase with operations of layers, which devices divide, and of heads, which they do not."""
        devices, (count, summed) = self.work.devices, (times * each for each in sums)
        if devices == 1:
            return Phase(layers + head, layers + head, memory)
        sent = 2 * (devices - 1) / devices * summed * self.work.number  # a sum is scattered and gathered
        return Phase(layers + head, layers / devices + head, memory, 2 * count, sent)

    def _sums(self, rows: int, source: int, target: int) -> tuple[int, int]:
        """Return the number of sums between devices, and the total of the numbers summed."""
        config = self.config
        encoder = 2 * getattr(config, "encoder_layers", 0)
        decoder = (3 if self.has_source else 2) * getattr(config, "decoder_layers", 0)
        lengths = (source, target) if self.has_source else (source + target, source + target)
        count = sum(each for each, length in zip((encoder, decoder), lengths, strict=True) if length)
        return count, rows * config.d_model * (encoder * lengths[0] + decoder * lengths[1])

    def _looked_up(self, tokens: int) -> int:
        return tokens * self.config.d_model * self.work.number

    def _logits(self, tokens: int) -> float:
        return tokens * logits_of_token(self.model) * self.work.number

    def activations(self) -> int:
        """Return the bytes that one device keeps for the backward pass."""
        work = self.work
        return activation_bytes(
            self.config, work.batch, *self.lengths, work.dtype, on_cpu=work.on_cpu, devices=work.devices
        )

    def self_cache(self, tokens: int) -> float:
        """Return the bytes of one device's share of the cache of some tokens; devices divide the heads."""
        work = self.work
        return self_cache_bytes(self.config, work.rows, tokens, work.dtype) / work.devices

    def cross_cache(self) -> float:
        """Return the bytes of one device's share of the keys and values of the sources."""
        work = self.work
        return cross_cache_bytes(self.config, work.batch, work.source, work.dtype) / work.devices

    def _visible_cache(self, past: int, steps: int) -> float:
        """Return the bytes of keys and values that steps read; sparse layers read only visible ones."""
        config, work = self.config, self.work
        numbers = decoding_pairs(config, past, steps) * sum(
            config.head_widths(config.decoder_attention_heads)
        )
        return work.rows * numbers * work.number / work.devices


def logits_of_token(model: VaswaniPreTrainedModel) -> int:
    """Return the size of the vocabulary that a head predicts; 0 for other heads, whose outputs are small."""
    head: Any = getattr(model, "lm_head", None)
    return 0 if head is None else int(head.out_features)


def _use(name: str) -> str:
    """Return what uses a parameter: a stack, the projection of the source in the decoder, or the head."""
    places = name.split(".")
    if {"k_proj", "v_proj"} & set(places) and "encoder_attn" in places:
        return "source"
    return next((place for place in places if place in ("encoder", "decoder")), "head")


def _num_unique_parameters(model: VaswaniPreTrainedModel, devices: int) -> int:
    """Return the number of parameters of a device; shared parameters count once."""
    held = parameters_of_device(model, devices)
    return sum(held[name] for name, _ in model.named_parameters())
