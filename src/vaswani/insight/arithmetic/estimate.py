"""Estimate the cost of training, reading and writing on a device, as values ready for JSON."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from vaswani.errors import UserError
from vaswani.insight.arithmetic.devices import Device
from vaswani.insight.arithmetic.memory import SINGLE
from vaswani.insight.arithmetic.parameters import parameters_by_part
from vaswani.insight.arithmetic.phases import Phase, Phases, Work, logits_of_token
from vaswani.insight.arithmetic.relations import Relations
from vaswani.model.configuration_vaswani import VaswaniFamilyConfig
from vaswani.model.stacks import VaswaniPreTrainedModel

MOMENTS = 2  # of AdamW
MAX_SHOWN = 64  # devices, in an error


def check_work(config: PreTrainedConfig, work: Work, device: Device) -> None:
    """Raise a UserError for work that the model or the device cannot do."""
    if not isinstance(config, VaswaniFamilyConfig):
        raise UserError(
            f"model_type={config.model_type!r} is another library's model, whose layers are not counted; "
            "convert it first (vaswani convert)"
        )
    if config.stacks == ("encoder",) and (work.target or work.beams > 1):
        option, value = ("target", work.target) if work.target else ("num_beams", work.beams)
        raise UserError(f"{option}={value}: an encoder writes nothing; leave out --{option}")
    if config.stacks != ("encoder",) and not work.target:
        raise UserError("target=0 must be at least 1: the tokens that the decoder writes")
    _check_positions(config, work)
    _check_blocks(config, work)
    device.peak(work.dtype)
    if work.devices == 1:
        return
    if device.link_bandwidth is None:
        raise UserError(
            f"devices={work.devices}: the device {device.name} has no link to others; give one with `link` "
            "in its file"
        )
    for stack in config.stacks:
        for size in ("attention_heads", "ffn_dim"):
            if (value := getattr(config, f"{stack}_{size}")) % work.devices:
                divisors = [str(count) for count in range(1, min(value, MAX_SHOWN) + 1) if value % count == 0]
                raise UserError(
                    f"devices={work.devices} does not divide {stack}_{size}={value}; "
                    f"try {', '.join(divisors)}"
                )


def _check_positions(config: VaswaniFamilyConfig, work: Work) -> None:
    """Raise a UserError if a token has no learned position."""
    if config.position_embedding != "learned":
        return
    lengths = {"source": work.source, "target": work.target}
    if config.stacks == ("decoder",):
        lengths = {"source + target": work.source + work.target}
    for name, length in lengths.items():
        if length > config.max_position_embeddings:
            raise UserError(
                f"{name}={length} is longer than the model's max_position_embeddings="
                f"{config.max_position_embeddings}; give fewer tokens"
            )


def _check_blocks(config: VaswaniFamilyConfig, work: Work) -> None:
    """Raise a UserError if the tokens make more blocks than a sparse pattern supports."""
    for stack in config.stacks:
        for layer, kind in enumerate(config.layer_attention(stack)):
            pattern = config.sparse_pattern(stack, layer) if kind == "sparse" else None
            try:
                if pattern is not None:
                    pattern.num_blocks(work.source + work.target)
            except ValueError as error:
                raise UserError(str(error)) from error


def estimate(model: VaswaniPreTrainedModel, work: Work, device: Device) -> dict[str, Any]:
    """Return parameters, phases, memory and relations of some work.

    Args:
        model: a model of this project; it may be on the meta device.
        work: the amount of training, reading and writing.
        device: one of the `work.devices` equal devices.

    Returns:
        Numbers in bytes, seconds and operations, ready for JSON.

    Raises:
        UserError: the model or the device cannot do this work.
    """
    check_work(model.config, work, device)
    phases = Phases(model, work)
    parts = parameters_by_part(model)
    relations = relations_of(model.config, work, device)
    rows = work.rows if work.target else work.batch * work.source  # in one pass
    return {
        "model": type(model).__name__,
        "parameters": {"all": sum(parts.values()), **parts},
        "work": {name: getattr(work, name) for name in ("batch", "source", "target", "beams", "dtype")},
        "device": {
            "name": device.name,
            "devices": work.devices,
            "flops": device.peak(work.dtype),
            "bandwidth": device.bandwidth,
            "memory": device.memory,
        },
        "phases": {name: _shown(phase, device, work) for name, phase in _named(phases).items()},
        "memory": memory(model, phases),
        "relations": relations.for_batch(
            rows, sum(parts.values()), has_cache="decoder" in model.config.stacks
        ),
    }


def add_measurements(found: dict[str, Any], seconds: dict[str, float]) -> None:
    """Add measured seconds to the phases of an estimate, and the floor as a share of these seconds."""
    for name, phase in found["phases"].items():
        phase["measured_seconds"] = seconds[name]
        phase["reached"] = phase["floor_seconds"] / seconds[name]


def _named(phases: Phases) -> dict[str, Phase]:
    named = {"training_step": phases.training(), "reading": phases.reading()}
    if phases.work.target:
        named["decoding_step"] = phases.last_step()
        named["reading_and_writing"] = phases.reading() + phases.writing()
    return named


def _shown(phase: Phase, device: Device, work: Work) -> dict[str, Any]:
    floor = phase.floor(device, work.dtype)
    return {
        "flops": phase.flops,
        "bytes": phase.bytes,
        "intensity": phase.intensity,
        "messages": phase.messages,
        "sent": phase.sent,
        "arithmetic_seconds": floor.arithmetic,
        "memory_seconds": floor.memory,
        "communication_seconds": floor.communication,
        "floor_seconds": floor.seconds,
        "bound_by": floor.bound_by,
    }


def memory(model: VaswaniPreTrainedModel, phases: Phases) -> dict[str, dict[str, float]]:
    """Return the bytes that one device holds in training and in inference, with their sums.

    Training under autocast also holds copies of the weights in half precision. Inference holds the states of
    the widest layer, and the logits in float32.
    """
    config, work = phases.config, phases.work
    training: dict[str, float] = {
        "weights": SINGLE * phases.parameters,
        "gradients": SINGLE * phases.parameters,
        "optimizer": MOMENTS * SINGLE * phases.parameters,
        "weights_in_half_precision": 0
        if work.number == SINGLE
        else work.number * sum(phases.weights.values()),
        "activations": phases.activations(),
    }
    inference: dict[str, float] = {"weights": work.number * phases.parameters}
    inner = max(getattr(config, f"{stack}_ffn_dim") for stack in config.stacks) // work.devices
    projected = max(2 * config.key_value_width(stack) for stack in config.stacks) // work.devices
    rows = work.rows if config.stacks == ("decoder",) else work.batch
    states = rows * work.source * (2 * config.d_model + max(inner, projected))
    if work.target:
        inference["self_attention_cache"] = phases.self_cache(sum(phases.steps()))
        inference["cross_attention_cache"] = phases.cross_cache()
    predicted = work.rows if work.target else work.batch * work.source
    inference["states_and_logits"] = work.number * states + SINGLE * predicted * logits_of_token(model)
    return {
        name: {**parts, "all": sum(parts.values())}
        for name, parts in (("training", training), ("inference", inference))
    }


def relations_of(config: VaswaniFamilyConfig, work: Work, device: Device) -> Relations:
    """Return kipply's relations for the decoder, or for a model with only an encoder."""
    stack = config.stacks[-1]
    layers, width, cached = getattr(config, f"{stack}_layers"), config.d_model, config.key_value_width(stack)
    # Self-attention projects queries, keys, values and outputs, cross-attention queries and outputs.
    pairs = 3 if config.is_encoder_decoder else 2
    weights = layers * width * (pairs * cached + 2 * getattr(config, f"{stack}_ffn_dim"))
    sums = 3 if config.is_encoder_decoder else 2
    return Relations(layers, width, cached, weights, sums, device, work.devices, work.dtype, work.number)
