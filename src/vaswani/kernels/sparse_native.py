"""Sparse attention on the CPU by C++ (`sparse_native.cpp`), which is compiled at the first call.

It supports float32 and half precision (computed in float32), for blocks and heads whose widths are multiples
of the processor's vectors. Each thread computes a head of a sequence, or a part of it.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from vaswani.errors import RunError
from vaswani.kernels.native_library import native_library, why_not_compiled
from vaswani.kernels.sequence_groups import Group, groups_of_sequences, whole_batch
from vaswani.model.attention import padded_to
from vaswani.model.input_checks import has_values
from vaswani.model.sparse_attention import attend_by_pattern, block_table, pattern_numbers, pattern_of
from vaswani.model.sparse_pattern import SparsePattern

SOURCE = Path(__file__).with_name("sparse_native.cpp")
SEED_STEP = 0x9E3779B97F4A7C15  # odd, so that any two groups differ
LEVELS = 2**16  # of the random number that decides whether dropout drops a weight
STORED = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# The time of each stage, float64 [3]: products, softmax, and the rest. A one-thread benchmark sets it.
stage_seconds: torch.Tensor | None = None


def unavailable() -> str | None:
    """Return why nothing can be compiled here, or None if it can."""
    return why_not_compiled(SOURCE)


def hook_in() -> None:
    """Put this kernel before the others."""
    attend_by_pattern.put_before(attend_natively)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """Return the compiled library, or None if the compilation failed."""
    compiled = native_library(SOURCE, structures=(_Call,))
    if compiled is not None:
        compiled.vaswani_vector_width.restype = compiled.vaswani_num_scratch.restype = ctypes.c_int64
    return compiled


@torch.compiler.assume_constant_result
def vector_width() -> int:
    """Return the number of floats in a vector of the processor; 0 without a library."""
    compiled = library()
    return 0 if compiled is None else int(compiled.vaswani_vector_width())


def can_compute(query: torch.Tensor, pattern: SparsePattern) -> bool:
    """Return whether the library can compute queries of this dtype; heads of any width are padded."""
    if query.device.type != "cpu" or query.dtype not in STORED or not query.numel():
        return False
    if not torch.compiler.is_compiling() and not has_values(query):  # transformed by torch.func
        return False
    vector = vector_width()
    return vector > 0 and pattern.block_size % vector == 0


def attend_natively(
    fallback: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    pattern: SparsePattern,
    padding_mask: torch.Tensor | None,
    scaling: float,
    dropout: float,
) -> torch.Tensor:
    """`attend_by_pattern` by the library if it can compute the inputs, else by another kernel.

    The dropout rate is rounded to the nearest 1/65536. Dropout draws one number from PyTorch's global random
    state.
    """
    if not can_compute(query, pattern):
        return fallback(query, key, value, pattern, padding_mask, scaling, dropout)
    value_width = value.shape[-1]
    query, key, value = padded_to(padded_width(query.shape[-1], value_width), query, key, value)
    has_gap = pattern.gap and query.shape[2] > pattern.global_tokens
    if has_gap:  # fill the gap with hidden tokens
        query, key, value = (_with_gap(states, pattern, dim=2) for states in (query, key, value))
        shown = query.new_ones(1, 1, dtype=torch.bool) if padding_mask is None else padding_mask
        padding_mask = _with_gap(shown.expand(query.shape[0], query.shape[2] - pattern.gap), pattern, dim=1)
    seed = torch.randint(2**62, ()) if dropout else None
    numbers = pattern_numbers(pattern)
    output, _ = _attention(query, key, value, padding_mask, seed, numbers, scaling, dropout)
    if has_gap:
        end = pattern.global_tokens + pattern.gap
        output = torch.cat([output[:, :, : pattern.global_tokens], output[:, :, end:]], dim=2)
    return output if output.shape[-1] == value_width else output[..., :value_width]


def padded_width(key_width: int, value_width: int) -> int:
    """Return the width in which the library computes heads: one for all, in whole vectors."""
    vector = vector_width()
    return -(-max(key_width, value_width) // vector) * vector


def _with_gap(states: torch.Tensor, pattern: SparsePattern, dim: int) -> torch.Tensor:
    """Insert zeros (False) after the global tokens, so that the other tokens start a block."""
    start, rest = states.tensor_split([pattern.global_tokens], dim)
    gap = rest.new_zeros(*rest.shape[:dim], pattern.gap, *rest.shape[dim + 1 :])
    return torch.cat([start, gap, rest], dim)


# Custom operators of PyTorch, so that `torch.compile` need not trace them. They take a pattern as numbers.
@torch.library.custom_op("vaswani::sparse_attention", mutates_args=())
def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    pattern: list[int],
    scaling: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and for the backward pass each row's log2 Σ 2^score, [B, H, N · b]."""
    output, log_sums = _empty_results(query, pattern)
    inputs = _Inputs(
        query, key, value, padding_mask, _as_int(seed), pattern_of(pattern), scaling, dropout, log_sums
    )
    _call_in_groups("vaswani_sparse_attention", inputs, {}, {"output": output})
    return output, log_sums


@_attention.register_fake
def _(query: torch.Tensor, key: Any, value: Any, padding: Any, seed: Any, pattern: list[int], *_: Any) -> Any:
    return _empty_results(query, pattern)


def _empty_results(query: torch.Tensor, pattern: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = pattern_of(pattern)
    num_rows = drawn.num_blocks(query.shape[2]) * drawn.block_size
    return _empty(query), query.new_empty(*query.shape[:2], num_rows, dtype=torch.float32)


def _empty(states: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(states, memory_format=torch.contiguous_format)


@torch.library.custom_op("vaswani::sparse_attention_backward", mutates_args=())
def _backward(
    upstream: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    pattern: list[int],
    scaling: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value from that of the output."""
    gradients = _empty(query), _empty(key), _empty(value)
    inputs = _Inputs(
        query, key, value, padding_mask, _as_int(seed), pattern_of(pattern), scaling, dropout, log_sums
    )
    given = {"output": output, "upstream": upstream}
    results = dict(zip(("grad_query", "grad_key", "grad_value"), gradients, strict=True))
    _call_in_groups("vaswani_sparse_attention_backward", inputs, given, results)
    return gradients


@_backward.register_fake
def _(upstream: Any, output: Any, log_sums: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
    return _empty(query), _empty(key), _empty(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, padding_mask, seed, *ctx.options = inputs
    ctx.save_for_backward(*output, query, key, value, padding_mask, seed)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, upstream: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return (*_backward(upstream, *ctx.saved_tensors, *ctx.options), None, None, None, None, None)


_attention.register_autograd(_differentiate, setup_context=_save)


@dataclass(frozen=True)
class _Inputs:
    """What a call reads: states [B, H, n, D], mask [B, n], and each row's log2 Σ 2^score [B, H, N · b]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    padding_mask: torch.Tensor | None
    seed: int  # 0 without dropout
    pattern: SparsePattern
    scaling: float
    dropout: float
    log_sums: torch.Tensor

    def for_group(self, group: Group) -> "_Inputs":
        """Return the inputs of some sequences, which have a dropout of their own.

        The sums of their rows, which may be shorter, come first in their part of `log_sums`.
        """
        return replace(
            self,
            query=group.states(self.query),
            key=group.states(self.key),
            value=group.states(self.value),
            padding_mask=group.mask(self.padding_mask),
            seed=(self.seed + group.rows.start * SEED_STEP) % 2**63,
            log_sums=self.log_sums[group.rows],
        )


def _as_int(seed: torch.Tensor | None) -> int:
    return 0 if seed is None else int(seed)


def _call_in_groups(
    function: str, inputs: _Inputs, given: dict[str, torch.Tensor], results: dict[str, torch.Tensor]
) -> None:
    """Call a function of the library for each group of sequences, without copying their states.

    The function reads the other `given` states and writes the `results` [B, H, n, D], which are zero beyond
    each group.
    """
    groups = groups_of_sequences(inputs.query, inputs.pattern, inputs.padding_mask)
    if groups != [whole_batch(inputs.query)]:
        for result in results.values():
            result.zero_()
    for group in groups:
        states = {name: group.states(each) for name, each in {**given, **results}.items()}
        _call(function, inputs.for_group(group), states)


def _call(function: str, inputs: _Inputs, states: dict[str, torch.Tensor]) -> None:
    """Call a function of the library, which writes its results into some of the `states` [B, H, n, D]."""
    compiled = library()
    if compiled is None:  # only in an exported program on another machine; else `can_compute` checks
        raise RunError(
            f"the program was exported with a kernel that cannot be used here ({unavailable()}); install a "
            "compiler, or export the program where there is none"
        )
    query, pattern, threads = inputs.query, inputs.pattern, torch.get_num_threads()
    batch, heads, length, width = query.shape
    num_blocks, size = pattern.num_blocks(length), pattern.block_size
    table = block_table(pattern, num_blocks, query.device)
    bias = _bias(query, inputs.padding_mask, (num_blocks + 1) * size)
    num_segments = -(-threads // (batch * heads))  # more segments would be more gradients to add up
    call = _Call(
        batch=batch,
        heads=heads,
        length=length,
        num_blocks=num_blocks,
        size=size,
        width=width,
        num_seen=table.shape[2],
        num_global_rows=num_blocks - table.shape[1],
        causal=pattern.causal,
        num_threads=min(threads, batch * heads * num_segments),
        num_segments=num_segments,
        dropped_levels=round(inputs.dropout * LEVELS),
        seed=inputs.seed,
        stored=STORED[query.dtype],
        scaling=inputs.scaling,
        bias=bias.data_ptr(),
        key_blocks=table.data_ptr(),
        log_sums=inputs.log_sums.data_ptr(),
        seconds=None if stage_seconds is None else stage_seconds.data_ptr(),
    )
    states = states | {"query": query, "key": inputs.key, "value": inputs.value}
    in_rows = {name: _in_rows(each) for name, each in states.items()}  # copies live until the call is over
    for name, each in in_rows.items():
        rows = (stride * each.element_size() for stride in each.stride()[:3])
        setattr(call, name, _States(each.data_ptr(), *rows))
    # Unneeded parts of this memory are never touched and take no physical memory.
    scratch = bias.new_empty(call.num_threads, compiled.vaswani_num_scratch(ctypes.byref(call)))
    is_divided = num_segments > 1 and "upstream" in states
    num_partial = batch * heads * num_segments if is_divided else 0
    partial_gradients = bias.new_empty(num_partial, 2, num_blocks * size, width)
    call.scratch, call.partial = scratch.data_ptr(), partial_gradients.data_ptr()
    getattr(compiled, function)(ctypes.byref(call))


def _bias(query: torch.Tensor, padding_mask: torch.Tensor | None, num_places: int) -> torch.Tensor:
    """Return 0 for visible keys, float32's minimum for others: [B, places of N blocks and an empty one]."""
    batch, _, length, _ = query.shape
    lowest = torch.finfo(torch.float32).min
    bias = query.new_full((batch, num_places), lowest, dtype=torch.float32)
    if padding_mask is None:
        bias[:, :length] = 0.0
    else:
        bias[:, :length].masked_fill_(padding_mask, 0.0)
    return bias


def _in_rows(states: torch.Tensor) -> torch.Tensor:
    """Return states [B, H, n, D] whose D numbers are contiguous."""
    return states if states.stride(-1) == 1 else states.contiguous()


# These two match the structures of the same names in `sparse_native.cpp`.
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
