"""Losses in one pass with the output projection, without holding all logits at once.

The logits are a model's largest tensor, and a plain loss passes over them a dozen times: log-softmax, its
smoothing term, and the gradients of both. This module computes projection, loss and gradients for a few rows
at a time, while their logits are still in the cache, and keeps only the small gradients of the projection's
input and weight. The gradient of cross-entropy is computed by a formula; that of any other loss comes from
autograd.

N tokens that count · n of them at a time · P passes of a batch · V vocabulary · D width
"""

import math
from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from vaswani.kernels.cross_entropy_native import cross_entropy_and_gradient, library_for
from vaswani.kernels.known_gradient import with_known_gradient
from vaswani.kernels.products_native import add_product_over_rows, product
from vaswani.model import losses
from vaswani.model.input_checks import IGNORED_LABEL, has_values
from vaswani.model.losses import as_product, is_plain_projection

CHUNK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 27}  # logits held at a time; 4 MiB stay in a CPU's cache
MIN_CHUNK_ROWS = 256  # with fewer, the products are slower
MIN_VOCABULARY = 1024  # for logits that are already computed; smaller ones cost nothing


def unavailable() -> None:
    """Return None: the losses rely only on public names."""


def hook_in() -> None:
    """Compute the cross-entropy of the models. A `TokenLoss` needs no hook, because it is an argument."""
    losses.linear_cross_entropy.kernel = linear_cross_entropy
    losses.summed_cross_entropy.kernel = summed_cross_entropy


def _is_eager(states: torch.Tensor) -> bool:
    """Return whether these states are computed now. A compiler fuses the passes itself."""
    return has_values(states) and not (states.is_cuda and torch.cuda.is_current_stream_capturing())


def _are_tokens(labels: torch.Tensor, vocab_size: int) -> bool:
    """Return whether all kept labels are tokens, as the C++ code assumes; PyTorch reports other labels."""
    if labels.device.type != "cpu":
        return True
    return bool((labels.ge(0) & labels.lt(vocab_size) | labels.eq(IGNORED_LABEL)).all())


def linear_cross_entropy(
    hidden_states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the summed cross-entropy of kept tokens against (1 − ε) · one-hot + ε · uniform, in nats.

    The result equals `cross_entropy(hidden_states @ weight.T, labels, reduction="sum", label_smoothing=ε)`
    and is differentiable once.

    Args:
        hidden_states: [..., D], any floating dtype.
        weight: [V, D], of the output projection.
        labels: int64 [...]; −100 is ignored.
        label_smoothing: ε, from 0 to 1.

    Returns:
        A scalar in float32, or in the states' dtype if that is wider.
    """
    if not _is_eager(hidden_states) or not _are_tokens(labels, len(weight)):
        return losses.linear_cross_entropy.plain(hidden_states, weight, labels, label_smoothing)
    kept = labels.flatten() != IGNORED_LABEL
    rows, targets = hidden_states.flatten(0, -2)[kept], labels.flatten()[kept]
    return _LinearCrossEntropy.apply(rows, weight, targets, label_smoothing, torch.is_grad_enabled())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        smoothing: float,
        wants_gradients: bool,
    ) -> torch.Tensor:
        """Rows [N, D], weight [V, D], targets int64 [N] -> the summed loss; its gradients wait in `ctx`.

        The uniform part of the target needs no pass over the logits, because their mean is the product with
        the mean of the weights. It is added to the loss and both gradients separately.
        """
        precision = torch.promote_types(rows.dtype, torch.float32)
        mean_weight = weight.mean(0, dtype=precision)
        row_sum = rows.sum(0, dtype=precision)
        loss = -smoothing * (row_sum * mean_weight).sum()
        row_gradient = torch.empty_like(rows)
        weight_gradient = rows.new_zeros(weight.t().shape, dtype=precision)  # transposed: adding is fastest
        size = rows_per_chunk(rows, weight)
        factors, factor_weight = in_autocast_dtype(rows, weight)
        for start in range(0, len(rows), size):
            chunk, target = factors[start : start + size], targets[start : start + size]
            logits = product(chunk, factor_weight)  # [n, V]
            of_chunk, gradient = cross_entropy_and_gradient(
                logits, target, share=1 - smoothing, wants_gradient=wants_gradients
            )
            loss += of_chunk
            if wants_gradients:  # `gradient` is that of the logits, without the uniform part
                of_rows = product(gradient, factor_weight.t())
                row_gradient[start : start + size] = of_rows - smoothing * mean_weight
                add_product_over_rows(weight_gradient, chunk, gradient)
        weight_gradient -= row_sum[:, None] * (smoothing / len(weight))
        ctx.save_for_backward(row_gradient, weight_gradient.t().to(weight.dtype).contiguous())
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Scale the gradients by the gradient of the sum."""
        row_gradient, weight_gradient = ctx.saved_tensors
        return row_gradient * grad_output, weight_gradient * grad_output, None, None, None


def summed_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Return the summed cross-entropy of logits [N, V] and labels int64 [N], as `linear_cross_entropy` does.

    If C++ computes it, it takes one pass over the logits and is differentiable once.
    """
    vocab_size = logits.shape[-1]
    is_ours = vocab_size >= MIN_VOCABULARY and _is_eager(logits) and library_for(logits) is not None
    if not is_ours or not _are_tokens(labels, vocab_size):
        return losses.summed_cross_entropy.plain(logits, labels, label_smoothing)
    kept = labels != IGNORED_LABEL
    keeps_all = bool(kept.all())  # then copying is faster than indexing

    def loss_and_gradient(
        logits: torch.Tensor, wants_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        rows = logits.clone() if keeps_all else logits[kept]  # a copy, which is overwritten
        loss, gradient = cross_entropy_and_gradient(
            rows,
            labels[kept],
            share=1 - label_smoothing,
            share_of_each=label_smoothing / vocab_size,
            wants_gradient=wants_gradient,
        )
        if wants_gradient and not keeps_all:
            gradient = torch.zeros_like(logits).index_put_((kept,), gradient)
        return loss, gradient

    return with_known_gradient(logits, loss_and_gradient)


class TokenLoss(NamedTuple):
    """A loss that is a sum over target tokens: the argument `token_loss` of a model.

    Args:
        kept: bool [B, T], the N tokens that count.
        function: from logits [n, V] and the place of these tokens among the N, a slice, to their summed loss.
            It is called with a few tokens at a time, in order; each token comes once.
        passes: number of passes over the batch in the states, one after the other. With several, the function
            gets the logits of all passes of a token together, [n, P, V].
    """

    kept: torch.Tensor
    function: Callable[[torch.Tensor, slice], torch.Tensor]
    passes: int = 1

    def __call__(self, hidden_states: torch.Tensor, lm_head: nn.Module) -> torch.Tensor:
        """Return the loss of the logits `lm_head(hidden_states)`: states [P · B, T, D] of any floating dtype.

        Returns:
            A scalar, differentiable once, in float32 or in the states' dtype if that is wider.

        Raises:
            ValueError: `kept` has a wrong shape or dtype.
        """
        shape = torch.Size([len(hidden_states) // self.passes, *hidden_states.shape[1:-1]])
        if has_values(self.kept) and (self.kept.shape != shape or self.kept.dtype != torch.bool):
            raise ValueError(
                f"token_loss.kept has the shape {list(self.kept.shape)} and the dtype {self.kept.dtype}; "
                f"expected torch.bool {list(shape)}."
            )
        rows = self._rows(hidden_states)
        if is_plain_projection(lm_head) and _is_eager(rows):
            return _ProjectedLoss.apply(*as_product(rows, lm_head), self.function, torch.is_grad_enabled())
        logits = lm_head(rows)
        return self.function(logits, slice(0, len(logits)))

    def from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits [P · B, T, V]: a scalar."""
        rows = self._rows(logits)
        return self.function(rows, slice(0, len(rows)))

    def _rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """Select the kept tokens: [P · B, T, D] -> [N, D], or [N, P, D] with several passes."""
        if self.passes == 1:
            return outputs[self.kept]
        return torch.stack([one[self.kept] for one in outputs.chunk(self.passes)], dim=1)


def takes_token_loss(model: nn.Module) -> bool:
    """Return whether a model has the argument `token_loss`, as our encoder-decoders do."""
    return "token_loss" in signature(model.forward).parameters


class _ProjectedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        weight: torch.Tensor,
        function: Callable[[torch.Tensor, slice], torch.Tensor],
        wants_gradients: bool,
    ) -> torch.Tensor:
        """Rows [N, ..., D], weight [V, D] -> the summed loss; its gradients wait in `ctx`."""
        precision = torch.promote_types(rows.dtype, torch.float32)
        total = rows.new_zeros((), dtype=precision)
        row_gradient = torch.empty_like(rows)
        weight_gradient = rows.new_zeros(weight.t().shape, dtype=precision)  # transposed: adding is fastest
        size = max(1, rows_per_chunk(rows, weight) // math.prod(rows.shape[1:-1]))
        factors, factor_weight = in_autocast_dtype(rows, weight)
        for start in range(0, len(rows), size):
            place = slice(start, min(start + size, len(rows)))
            chunk = factors[place]
            logits = product(chunk, factor_weight).requires_grad_(wants_gradients)  # [n, ..., V]
            with torch.set_grad_enabled(wants_gradients):
                loss = function(logits, place)
            total += loss.detach()
            if wants_gradients:
                (gradient,) = torch.autograd.grad(loss, logits)
                row_gradient[place] = product(gradient, factor_weight.t())
                add_product_over_rows(weight_gradient, chunk.flatten(0, -2), gradient.flatten(0, -2))
        ctx.save_for_backward(row_gradient, weight_gradient.t().to(weight.dtype).contiguous())
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Scale the gradients by the gradient of the sum."""
        row_gradient, weight_gradient = ctx.saved_tensors
        return row_gradient * grad_output, weight_gradient * grad_output, None, None


def in_autocast_dtype(rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both in the dtype of autocast, if it is on: converted once, not for each product."""
    device = rows.device.type
    if not torch.is_autocast_enabled(device):
        return rows, weight
    dtype = torch.get_autocast_dtype(device)
    return rows.to(dtype), weight.to(dtype)


def rows_per_chunk(rows: torch.Tensor, weight: torch.Tensor) -> int:
    """Return how many rows have their logits in memory at a time."""
    elements = CHUNK_ELEMENTS.get(rows.device.type, CHUNK_ELEMENTS["cuda"])
    return max(MIN_CHUNK_ROWS, elements // len(weight))
