# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""The CPU's sparse attention as an operator of PyTorch: forward, backward, and what a compiler has to know.

Two kernels compute it: one in C++, which is compiled where it runs, and one made of PyTorch's operators,
for all that the first cannot do. The operators here take a pattern as numbers, so that `torch.compile` traces
neither it nor the hash.

B batch · H heads · n tokens · D head width · N = ceil(n / b) blocks of b tokens
"""

from dataclasses import astuple
from typing import Any

import torch

from .sparse_inputs import BackwardInputs, Inputs, compute_dtype, key_blocks
from .sparse_native import attend_natively, can_compute, differentiate_natively
from .sparse_operators import attend_by_operators, differentiate_by_operators
from .sparse_pattern import SparsePattern


def as_numbers(pattern: SparsePattern) -> list[int]:
    """A pattern, its global tokens in blocks, for the operators of this file."""
    return [int(number) for number in astuple(pattern.in_blocks())]


def _pattern_of(numbers: list[int]) -> SparsePattern:
    return SparsePattern(*numbers)  # type: ignore[arg-type]  # the last is 0 or 1, for causal


@torch.library.custom_op("vaswani::sparse_key_blocks", mutates_args=())
def sparse_key_blocks(pattern: list[int], num_blocks: int, query_blocks: torch.Tensor) -> torch.Tensor:
    """What some query blocks int64 [T] of a causal pattern see: key blocks int64 [H, T, L], N for none."""
    return key_blocks(_pattern_of(pattern), num_blocks, query_blocks.device)[:, query_blocks]


@sparse_key_blocks.register_fake
def _(pattern: list[int], num_blocks: int, query_blocks: torch.Tensor) -> torch.Tensor:
    drawn = _pattern_of(pattern).within(num_blocks)
    blocks = drawn.global_blocks + drawn.window_blocks + drawn.random_blocks
    return query_blocks.new_empty(drawn.num_heads, len(query_blocks), blocks)


@torch.library.custom_op("vaswani::sparse_attention", mutates_args=())
def sparse_attention_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    pattern: list[int],
    scaling: float,
    dropout: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and for the backward pass log2 Σ 2^score [B, H, N · b] of the scores of each row."""
    output, log_sums = _empty_results(query, pattern)
    inputs = Inputs(query, key, value, padding_mask, seed, _pattern_of(pattern), scaling, dropout)
    compute = attend_natively if can_compute(inputs) else attend_by_operators
    compute(inputs, output, log_sums)
    return output, log_sums


def _empty_results(query: torch.Tensor, pattern: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """An output like the query and log-sums [B, H, N · b] in the dtype that is computed in."""
    drawn = _pattern_of(pattern)
    num_rows = drawn.num_blocks(query.shape[-2]) * drawn.block_size
    log_sums = query.new_empty(*query.shape[:2], num_rows, dtype=compute_dtype(query))
    return _empty(query), log_sums


def _empty(states: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(states, memory_format=torch.contiguous_format)


@torch.library.custom_op("vaswani::sparse_attention_backward", mutates_args=())
def _backward(
    grad: torch.Tensor,
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
    gradients = _empty(query), _empty(key), _empty(value)
    inputs = Inputs(query, key, value, padding_mask, seed, _pattern_of(pattern), scaling, dropout)
    compute = differentiate_natively if can_compute(inputs) else differentiate_by_operators
    compute(inputs, BackwardInputs(grad, output, log_sums, *gradients))
    return gradients


@sparse_attention_kernel.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    padding_mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    pattern: list[int],
    *options: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _empty_results(query, pattern)


@_backward.register_fake
def _(
    grad: torch.Tensor,
    output: torch.Tensor,
    log_sums: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *options: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _empty(query), _empty(key), _empty(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    query, key, value, padding_mask, seed, *ctx.options = inputs
    ctx.save_for_backward(*output, query, key, value, padding_mask, seed)
    ctx.mark_non_differentiable(output[1])


def _differentiate(
    ctx: Any, grad: torch.Tensor, grad_log_sums: torch.Tensor
) -> tuple[torch.Tensor | None, ...]:
    gradients = torch.ops.vaswani.sparse_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*gradients, None, None, None, None, None)


sparse_attention_kernel.register_autograd(_differentiate, setup_context=_save)
