"""Measure a real model on this machine's CPU, for comparison with the floor of its time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from vaswani.errors import UserError
from vaswani.insight.arithmetic.devices import DTYPES, Device
from vaswani.insight.arithmetic.estimate import memory
from vaswani.insight.arithmetic.phases import Phases, Work
from vaswani.model.stacks import VaswaniPreTrainedModel

RUNS, SECONDS = 3, 1.0  # minimum for each phase


def measure(model: VaswaniPreTrainedModel, work: Work, device: Device) -> dict[str, float]:
    """Return the seconds of each phase: the median of several runs after a warm-up run.

    Runs a new model of the same shape on random tokens, which does not change the time. Training runs with
    AdamW, under autocast if the dtype is not float32; inference runs with weights in the dtype.

    Args:
        model: a model of this project; it may be on the meta device.
        work: the work of the model.
        device: this machine's CPU.

    Raises:
        UserError: the training does not fit into the memory.
    """
    phases = Phases(model, work)
    needed = memory(model, phases)["training"]["all"]
    if needed > device.memory:
        raise UserError(
            f"training takes {needed / 1e9:,.3g} GB, and this machine has {device.memory / 1e9:,.3g} GB: "
            "it cannot be measured; give a smaller --batch, or leave out --measure"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        running: Any = type(model)(model.config)
        seconds = {"training_step": _seconds(_training(running, phases))}
        running = running.to(DTYPES[work.dtype]).eval().requires_grad_(False)
        source = _tokens(phases, work.batch, work.source)
        with torch.inference_mode():
            seconds["reading"] = _seconds(_reading(running, phases, source))
            if work.target:
                seconds["decoding_step"] = _seconds(_step(running, phases, source))
                seconds["reading_and_writing"] = _seconds(_writing(running, phases, source))
    return seconds


def _seconds(run: Callable[[], Any]) -> float:
    run()
    seconds: list[float] = []
    while len(seconds) < RUNS or sum(seconds) < SECONDS:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _tokens(phases: Phases, rows: int, length: int) -> torch.Tensor:
    """Return random tokens that both vocabularies have, without padding."""
    config = phases.config
    size = min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    ids = torch.randint(size, (rows, length))
    return ids if config.pad_token_id is None else ids.masked_fill(ids == config.pad_token_id, size - 1)


def _training(model: VaswaniPreTrainedModel, phases: Phases) -> Callable[[], None]:
    work = phases.work
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    if phases.has_source:
        sides = _tokens(phases, work.batch, work.source), _tokens(phases, work.batch, work.target)
    else:
        sides = (_tokens(phases, work.batch, work.source + work.target),) * 2
    inputs: dict[str, Any] = {"input_ids": sides[0]}
    if hasattr(model, "lm_head"):
        inputs |= {"labels": sides[1], "smoothing": 0.1}  # computes the loss as trainings do

    def step() -> None:
        with torch.autocast("cpu", DTYPES[work.dtype], enabled=work.dtype != "float32"):
            outputs = model(**inputs)
        loss = outputs[0] if "labels" in inputs else outputs[0].float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _reading(model: Any, phases: Phases, source: torch.Tensor) -> Callable[[], Any]:
    if phases.has_source:
        return lambda: _encode(model, source)
    if phases.work.target:  # each hypothesis reads the prompt
        prompt = source.repeat_interleave(phases.work.beams, 0)
        return lambda: model(prompt, use_cache=True, logits_to_keep=1)
    return lambda: model(source)


def _encode(model: Any, source: torch.Tensor) -> Any:
    """Return the encoder's output, after computing the source's keys and values in each decoder layer."""
    encoded = model.get_encoder()(source)
    for layer in model.get_decoder().layers:
        layer.encoder_attn.k_proj(encoded.last_hidden_state)
        layer.encoder_attn.v_proj(encoded.last_hidden_state)
    return encoded


def _step(model: Any, phases: Phases, source: torch.Tensor) -> Callable[[], None]:
    """Return a function that runs the last step; it removes the added token from the cache again."""
    work = phases.work
    past, steps = phases.steps()
    past += max(steps, 1) - 1
    inputs: dict[str, Any] = {}
    ids = "input_ids"
    if phases.has_source:
        inputs, ids = {"encoder_outputs": _encode(model, source)}, "decoder_input_ids"
    cache = model.get_decoder().new_cache()
    if past:
        before = _tokens(phases, work.rows, past)
        model(**inputs, **{ids: before}, past_key_values=cache, use_cache=True, logits_to_keep=1)
    token = _tokens(phases, work.rows, 1)

    def step() -> None:
        model(**inputs, **{ids: token}, past_key_values=cache, use_cache=True)
        getattr(cache, "self_attention_cache", cache).crop(-1)

    return step


def _writing(model: Any, phases: Phases, source: torch.Tensor) -> Callable[[], Any]:
    """Return a function that runs a whole search, in which all hypotheses have the target's length."""
    work = phases.work
    length = {"min_new_tokens": work.target, "max_new_tokens": work.target}
    options = {**length, "num_beams": work.beams, "do_sample": False}
    mask = torch.ones_like(source)
    return lambda: model.generate(source, attention_mask=mask, **options)
