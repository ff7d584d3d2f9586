# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""Sparse attention by a kernel of our own in C++, `sparse_native.cpp`: the fast way on the CPU.

It computes float32 and half precision in blocks and heads whose widths are whole vectors, each thread a
sequence of a head.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens
"""

import ctypes
from functools import lru_cache
from pathlib import Path

import torch

from .dropout import LEVELS
from .native_library import native_library
from .sparse_inputs import BackwardInputs, Inputs

SOURCE = Path(__file__).with_name("sparse_native.cpp")
# What the stages take, float64 [3]: products, softmax, and the rest. A benchmark of one thread sets it.
stage_seconds: torch.Tensor | None = None

STORED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernel, or None where there is none."""
    compiled = native_library(SOURCE)
    if compiled is not None:
        compiled.vaswani_vector_width.restype = compiled.vaswani_num_scratch.restype = ctypes.c_int64
    return compiled


def can_compute(inputs: Inputs) -> bool:
    """Whether there is a kernel, and it computes such inputs."""
    query = inputs.query
    if query.device.type != "cpu" or query.dtype not in STORED or not query.numel():
        return False
    if not query.dtype == inputs.key.dtype == inputs.value.dtype:
        return False
    compiled = library()
    if compiled is None:
        return False
    vector = compiled.vaswani_vector_width()
    return inputs.pattern.block_size % vector == 0 and query.shape[-1] % vector == 0


def attend_natively(inputs: Inputs, output: torch.Tensor, log_sums: torch.Tensor) -> None:
    """Write the output [B, H, n, D], and log2 Σ 2^score [B, H, N · b] of the scores of each row."""
    _call("vaswani_sparse_attention", inputs, log_sums, output=output)


def differentiate_natively(inputs: Inputs, given: BackwardInputs) -> None:
    """Write the gradients of query, key and value."""
    _call(
        "vaswani_sparse_attention_backward",
        inputs,
        given.log_sums,
        upstream=_in_rows(given.upstream),
        output=given.output,
        grad_query=given.query,
        grad_key=given.key,
        grad_value=given.value,
    )


# These two are the structures of the same names in `sparse_native.cpp`.
class _States(ctypes.Structure):
    _fields_ = (
        ("first", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("head", ctypes.c_int64),
        ("row", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batch", "heads", "length", "num_blocks", "size", "width")),
        *((name, ctypes.c_int64) for name in ("num_seen", "num_global_rows", "causal", "num_threads")),
        *((name, ctypes.c_int64) for name in ("num_segments", "dropped_levels", "seed", "stored")),
        ("scaling", ctypes.c_double),
        *((name, _States) for name in ("query", "key", "value", "output", "upstream")),
        *((name, _States) for name in ("grad_query", "grad_key", "grad_value")),
        *((name, ctypes.c_void_p) for name in ("bias", "key_blocks", "log_sums", "scratch")),
        *((name, ctypes.c_void_p) for name in ("partial", "seconds")),
    )


def _call(function: str, inputs: Inputs, log_sums: torch.Tensor, **states: torch.Tensor) -> None:
    compiled = library()
    assert compiled is not None  # `can_compute` has said so
    tensors = {"query": _in_rows(inputs.query), "key": _in_rows(inputs.key), "value": _in_rows(inputs.value)}
    call = _new_call(inputs)
    call.log_sums = log_sums.data_ptr()
    for name, tensor in {**tensors, **states}.items():
        setattr(call, name, _states(tensor))
    # float32, like the bias. What is not needed of these is never touched, and takes no memory.
    scratch = inputs.bias.new_empty(call.num_threads, compiled.vaswani_num_scratch(ctypes.byref(call)))
    is_divided = call.num_segments > 1 and "upstream" in states
    rows = inputs.num_blocks * inputs.pattern.block_size
    num_partial = call.batch * call.heads * call.num_segments if is_divided else 0
    partial = inputs.bias.new_empty(num_partial, 2, rows, call.width)
    call.scratch, call.partial = scratch.data_ptr(), partial.data_ptr()
    call.seconds = None if stage_seconds is None else stage_seconds.data_ptr()
    getattr(compiled, function)(ctypes.byref(call))


def _new_call(inputs: Inputs) -> _Call:
    """Without its tensors."""
    batch, heads, length, width = inputs.query.shape
    table, threads = inputs.key_blocks, torch.get_num_threads()
    num_segments = -(-threads // (batch * heads))  # more of them would be more gradients to add up
    return _Call(
        batch=batch,
        heads=heads,
        length=length,
        num_blocks=inputs.num_blocks,
        size=inputs.pattern.block_size,
        width=width,
        num_seen=table.shape[2],
        num_global_rows=inputs.num_blocks - table.shape[1],
        causal=inputs.pattern.causal,
        num_threads=min(threads, batch * heads * num_segments),
        num_segments=num_segments,
        dropped_levels=round(inputs.dropout * LEVELS),
        seed=0 if inputs.seed is None else int(inputs.seed),
        stored=STORED[inputs.query.dtype],
        scaling=inputs.scaling,
        bias=inputs.bias.data_ptr(),
        key_blocks=table.data_ptr(),
    )


def _in_rows(states: torch.Tensor) -> torch.Tensor:
    """States [B, H, n, D] whose D numbers lie next to each other."""
    return states if states.stride(-1) == 1 else states.contiguous()


def _states(states: torch.Tensor) -> _States:
    batch, head, row, _ = (stride * states.element_size() for stride in states.stride())
    return _States(states.data_ptr(), batch, head, row)
