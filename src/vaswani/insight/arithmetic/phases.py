"""What training, reading and writing cost: operations, bytes to and from memory, and bytes between devices.

Bytes are those that cannot be avoided where weights and caches are larger than the processor's caches: each
weight that is used is read once in a pass, keys and values are read once in a step, logits are written once.
Between devices (tensor parallelism) the states of all tokens are summed after each attention and feed-forward
layer, by a reduce-scatter and an all-gather.

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
    """What is trained on, read and written.

    Args:
        batch: B, rows.
        source: S, tokens of each source, prompt or text.
        target: T, tokens of each target or continuation; 0 for an encoder, which writes nothing.
        beams: K, hypotheses of each row.
        dtype: of the products; in training, weights and optimizer are float32.
        devices: N, which divide each layer between them.
        on_cpu: whether the CPU's kernels compute.
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
        """Rows of the decoder: B·K."""
        return self.batch * self.beams

    @property
    def number(self) -> int:
        """Bytes of a number."""
        return BYTES[self.dtype]


@dataclass(frozen=True)
class Floor:
    """The least time of a phase: the largest of three, which could overlap perfectly.

    Args:
        arithmetic, memory, communication: seconds.
    """

    arithmetic: float
    memory: float
    communication: float

    @property
    def seconds(self) -> float:
        """The largest."""
        return max(self.arithmetic, self.memory, self.communication)

    @property
    def bound_by(self) -> str:
        """Which is the largest."""
        return max(("arithmetic", "memory", "communication"), key=lambda name: getattr(self, name))


@dataclass(frozen=True)
class Phase:
    """The cost of a training step, of reading, of a decoding step or of a whole decoding.

    Args:
        flops: operations of all devices together, each product counted once.
        device_flops: operations of one device.
        bytes: to and from the memory of one device.
        messages: that a device waits for, one after the other.
        sent: bytes that a device sends.
    """

    flops: int
    device_flops: float
    bytes: float
    messages: int = 0
    sent: float = 0.0

    def __add__(self, other: Phase) -> Phase:
        """Return the cost of one after the other."""
        return Phase(
            self.flops + other.flops,
            self.device_flops + other.device_flops,
            self.bytes + other.bytes,
            self.messages + other.messages,
            self.sent + other.sent,
        )

    @property
    def intensity(self) -> float:
        """Operations per byte of memory (arithmetic intensity) of a device."""
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
        model: of this project; it may be on the meta device.
        work: to be done.
    """

    def __init__(self, model: VaswaniPreTrainedModel, work: Work):
        self.model, self.work = model, work
        self.config: VaswaniFamilyConfig = model.config
        self.has_source = self.config.is_encoder_decoder
        self.weights = dict.fromkeys(("encoder", "decoder", "source", "head"), 0)  # of a device
        for name, size in parameters_of_device(model, work.devices).items():
            if not set(EMBEDDINGS) & set(name.split(".")):
                self.weights[_use(name)] += size
        self.parameters = _held_once(model, work.devices)

    def training(self) -> Phase:
        """Forward and backward pass of all tokens, and an update by AdamW."""
        work, config = self.work, self.config
        if self.has_source:
            layers = (
                stack_flops(config, "encoder", work.batch, work.source)
                + source_projection_flops(config, work.batch, work.source)
                + stack_flops(config, "decoder", work.batch, work.target)
                + cross_attention_flops(config, work.batch, work.source, work.target)
            )
            read, predicted = work.source + work.target, work.target
            lengths = work.source, work.target
        else:
            read = predicted = work.source + work.target
            layers = stack_flops(config, config.stacks[0], work.batch, read)
            lengths = read, 0
        head = head_flops(self.model, work.batch, work.batch * predicted)
        activations = activation_bytes(
            config, work.batch, *lengths, work.dtype, on_cpu=work.on_cpu, devices=work.devices
        )
        memory = (
            2 * work.number * sum(self.weights.values())  # read forward and backward
            + self._looked_up(work.batch * read)
            + SINGLE * self.parameters * (1 + ADAMW_PASSES)  # the gradient is written too
            + 2 * activations
        )
        forward = self._phase(layers, head, memory, self._sums(work.batch, *lengths))
        return Phase(
            FORWARD_AND_BACKWARD * forward.flops,
            FORWARD_AND_BACKWARD * forward.device_flops,
            forward.bytes,
            2 * forward.messages,
            2 * forward.sent,
        )

    def reading(self) -> Phase:
        """Encode the sources, and project their keys and values; or read the prompts, for the first token."""
        work, config = self.work, self.config
        rows = work.rows if config.stacks == ("decoder",) else work.batch  # beams of a prompt repeat it
        layers = stack_flops(config, config.stacks[0], rows, work.source)
        memory: float = work.number * self.weights[config.stacks[0]] + self._looked_up(rows * work.source)
        if self.has_source:
            layers += source_projection_flops(config, rows, work.source)
            memory += work.number * self.weights["source"] + self._cross_cache()
            return self._phase(layers, 0, memory, self._sums(rows, work.source, 0))
        predicted = rows if work.target else rows * work.source  # a generator needs the last token alone
        head = head_flops(self.model, rows, predicted)
        memory += work.number * self.weights["head"] + self._logits(predicted)
        if work.target:
            memory += self._self_cache(work.source)
        return self._phase(layers, head, memory, self._sums(rows, work.source, 0))

    def steps(self) -> tuple[int, int]:
        """Return the tokens before the first step, and the number of steps.

        Reading a prompt gives the first token; reading a source does not.
        """
        work = self.work
        return (0, work.target) if self.has_source else (work.source, work.target - 1)

    def last_step(self) -> Phase:
        """Write the last token; after a prompt with one token, the step that would follow."""
        past, steps = self.steps()
        return self.step(past + max(steps, 1) - 1)

    def step(self, past: int) -> Phase:
        """Write one token of each hypothesis, `past` tokens after the beginning of the decoder's input."""
        return self._steps(past, 1)

    def writing(self) -> Phase:
        """All steps."""
        return self._steps(*self.steps())

    def _steps(self, past: int, steps: int) -> Phase:
        work, config = self.work, self.config
        layers = decoding_flops(config, work.rows, past, steps)
        if self.has_source:
            layers += cross_attention_flops(config, work.rows, work.source, steps)
        memory = steps * (
            work.number * (self.weights["decoder"] + self.weights["head"])
            + self._looked_up(work.rows)
            + self._self_cache(1)  # written
            + self._cross_cache()
            + self._logits(work.rows)
        )
        memory += self._visible_cache(past, steps)
        head = head_flops(self.model, work.rows, work.rows)
        return self._phase(layers, steps * head, memory, self._sums(work.rows, 0, 1), steps)

    def _phase(self, layers: int, head: int, memory: float, sums: tuple[int, int], times: int = 1) -> Phase:
        """A phase with the operations of layers, which devices divide, and of heads, which they do not."""
        devices, (count, summed) = self.work.devices, (times * each for each in sums)
        if devices == 1:
            return Phase(layers + head, layers + head, memory)
        sent = 2 * (devices - 1) / devices * summed * self.work.number  # a sum is scattered and gathered
        return Phase(layers + head, layers / devices + head, memory, 2 * count, sent)

    def _sums(self, rows: int, source: int, target: int) -> tuple[int, int]:
        """The sums between devices: how many, and of how many numbers together."""
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

    def _self_cache(self, tokens: int) -> float:
        """Of one device, which has its share of the heads."""
        work = self.work
        return self_cache_bytes(self.config, work.rows, tokens, work.dtype) / work.devices

    def _cross_cache(self) -> float:
        work = self.work
        return cross_cache_bytes(self.config, work.batch, work.source, work.dtype) / work.devices

    def _visible_cache(self, past: int, steps: int) -> float:
        """Keys and values that steps read: of sparse layers those that they see."""
        config, work = self.config, self.work
        numbers = decoding_pairs(config, past, steps) * (config.d_model // config.decoder_attention_heads)
        return 2 * work.rows * numbers * work.number / work.devices


def logits_of_token(model: VaswaniPreTrainedModel) -> int:
    """Return the size of the vocabulary that a head predicts; 0 for other heads, whose outputs are few."""
    head: Any = getattr(model, "lm_head", None)
    return 0 if head is None else int(head.out_features)


def _use(name: str) -> str:
    """What reads a parameter: a stack, the projection of the source in the decoder, or the head."""
    places = name.split(".")
    if {"k_proj", "v_proj"} & set(places) and "encoder_attn" in places:
        return "source"
    return next((place for place in places if place in ("encoder", "decoder")), "head")


def _held_once(model: VaswaniPreTrainedModel, devices: int) -> int:
    """The parameters of a device, those that are shared counted once."""
    held = parameters_of_device(model, devices)
    return sum(held[name] for name, _ in model.named_parameters())
