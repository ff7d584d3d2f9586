"""Linear layers by oneDNN, on CPUs where PyTorch would use MKL.

For the narrow weights of a Transformer and a few thousand rows, oneDNN's products with unpacked weights are
10 to 15 % faster than MKL's on Intel processors, in the forward pass and for the gradient of the states; for
the gradient of the weights, MKL is faster there. On other processors MKL reaches half of the possible speed
or less, and oneDNN computes everything.

A decoding step multiplies a few rows by every weight of the decoder, and MKL rearranges each weight in every
step. oneDNN accepts weights that were rearranged ("packed") in advance: on two cores it multiplies 4 rows of
512 numbers by 2048 × 512 weights three times as fast, 32 rows 1.6 times, 128 rows 1.3 times. Packing costs
about one step, so weights are packed once for a whole search and discarded afterwards, because weights may
change between searches.
"""

import os
import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from vaswani.model import operators
from vaswani.model.input_checks import has_values
from vaswani.model.operators import Linear, OutputProjection

MIN_ROWS = 256  # with fewer, a call costs more than it saves
# oneDNN takes 0.3 ms to prepare a new shape, which a smaller product never saves. The choice of the library
# must depend on the shape alone, so that a resumed run ends with the same bits as an uninterrupted run.
MIN_MULTIPLICATIONS = 1 << 22
MIN_PACKED_WEIGHTS = 512 * 512  # with fewer, calling oneDNN costs more than it saves
MIN_PACKED_ROWS = 4  # with fewer, a search ends before packing has paid off

# oneDNN caches what it prepares for the shape of a product, and PyTorch caches it again in each thread: 0.6
# MB for each of the last 1,024 shapes by default. Texts always bring new shapes, so a process would grow by
# more than half a gigabyte.
CACHED_SHAPES = 128
CACHE_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def _is_intel() -> bool:
    """Return whether MKL is optimized for this processor; outside Linux, the processor's name decides."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


IS_INTEL_CPU = _is_intel()


def unavailable() -> str | None:
    """Return why oneDNN cannot compute products here or would not be faster; else None."""
    if not torch.backends.mkldnn.is_available():
        return "this PyTorch was built without oneDNN"
    if not torch.backends.mkl.is_available():
        return "this PyTorch was built without MKL, and takes the fastest library by itself"
    for name in ("_linear_pointwise", "_reorder_linear_weight"):
        if not hasattr(torch.ops.mkldnn, name):
            return f"this PyTorch has no operator mkldnn::{name}"
    return None


IS_BUILT = unavailable() is None


def hook_in() -> None:
    """Make oneDNN compute the linear layers of the models."""
    operators.linear.kernel = linear
    operators.output_projection.kernel = output_projection


def is_available() -> bool:
    """Return whether oneDNN is available, faster than MKL, and not switched off."""
    return IS_BUILT and bool(torch.backends.mkldnn.enabled)


def is_plain(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether a product runs now with a whole weight: not traced, sharded or quantized."""
    return has_values(states) and type(weight) is nn.Parameter


def linear(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`states @ weight.T + bias`: [..., K], [N, K] and [N] -> [..., N]."""
    if is_plain(states, weight):
        if (packed := packed_weight(weight)) is not None:
            return onednn_product(states, packed, bias)
        if gains_from_onednn(states, weight):
            return _Product.apply(states, weight, bias)
    return operators.linear.plain(states, weight, bias)


def output_projection(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Project onto the vocabulary as `linear`, by packed weights only: training computes it with the loss."""
    if has_values(states) and (packed := packed_weight(weight)) is not None:
        return onednn_product(states, packed, bias)
    return operators.output_projection.plain(states, weight, bias)


def product_by(module: Any, num_rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that multiplies by a module's weight without gradients; chooses its kernel once.

    Args:
        module: a `Linear`, an `OutputProjection` or an `Int8Linear`.
        num_rows: of every input.
    """
    if not isinstance(module, nn.Linear):
        return module.forward
    weight, bias = module.weight, module.bias
    if (packed := packed_weight(weight)) is not None:
        return lambda states: onednn_product(states, packed, bias)
    if type(module) is Linear and num_rows >= MIN_ROWS:
        return module.forward
    return lambda states: nn.functional.linear(states, weight, bias)


Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(states, weight)
        return onednn_product(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        def times(upstream: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return onednn_product(upstream, weight.t(), None)

        return gradients_of_product(ctx, grad, times, product_over_rows)


def gradients_of_product(
    ctx: Any, grad: torch.Tensor, times: Multiply, times_over_rows: Multiply
) -> tuple[torch.Tensor | None, ...]:
    """Return the gradients of the states, weight and bias of `states @ weight.T + bias`.

    If these gradients are differentiated again (`create_graph=True`), PyTorch's operators compute them,
    because they are differentiable.

    Args:
        ctx: holds the states [..., K] and the weight [N, K].
        grad: gradient of the product, [..., N].
        times: multiplies [..., N] by [N, K].
        times_over_rows: multiplies [M, N], transposed, by [M, K].
    """
    if torch.is_grad_enabled():
        times, times_over_rows = torch.matmul, lambda left, right: left.t() @ right
    states, weight = ctx.saved_tensors
    needs_states, needs_weight, needs_bias = ctx.needs_input_grad
    rows = grad.flatten(0, -2)
    return (
        times(grad, weight) if needs_states else None,
        times_over_rows(rows, states.flatten(0, -2)) if needs_weight else None,
        rows.sum(0) if needs_bias else None,
    )


def onednn_product(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`states @ weight.T + bias`: float32 [..., K] and [N, K], packed or not -> [..., N]."""
    if not getattr(_this_thread, "has_bounded_caches", False):
        _bound_caches()
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


_this_thread = threading.local()
_environment_lock = threading.Lock()


def _bound_caches() -> None:
    """Let oneDNN and PyTorch cache fewer shapes.

    Both read their limit from the environment when a thread computes its first product. This function
    restores the environment and keeps a limit that the user has set.
    """
    with _environment_lock:
        added = [name for name in CACHE_LIMITS if name not in os.environ]
        os.environ.update(dict.fromkeys(added, str(CACHED_SHAPES)))
        try:
            one = torch.ones(1, 1, dtype=torch.float32)
            torch.ops.mkldnn._linear_pointwise(one, one, None, "none", [], "")
        finally:
            for name in added:
                del os.environ[name]
    _this_thread.has_bounded_caches = True


def gains_from_onednn(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether oneDNN multiplies states [..., K] by a weight [N, K] faster than PyTorch."""
    num_outputs, width = weight.shape
    return _gains(states, weight, states.numel() // width, states.numel() * num_outputs)


def _gains(left: torch.Tensor, right: torch.Tensor, num_rows: int, num_multiplications: int) -> bool:
    return (
        num_rows >= MIN_ROWS
        and num_multiplications >= MIN_MULTIPLICATIONS
        and left.device.type == "cpu"
        and left.dtype == right.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and is_available()
    )


def product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`states @ weight.T`, without gradients: [..., K] and [N, K] -> [..., N]."""
    if gains_from_onednn(states, weight):
        return onednn_product(states, weight, None)
    return nn.functional.linear(states, weight)


def product_over_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`left.T @ right`, without gradients, for the gradient of a weight: [M, N] and [M, K] -> [N, K]."""
    if IS_INTEL_CPU or not _gains(left, right, len(left), left.numel() * right.shape[1]):
        return left.t() @ right
    if right.shape[1] > left.shape[1]:  # the wider matrix takes the place of the weight
        return onednn_product(left.t(), right.t(), None)
    return onednn_product(right.t(), left.t(), None).t()


# The packed weights of the search in this context, by the `id` of each weight.
_packed_weights: ContextVar[dict[int, torch.Tensor] | None] = ContextVar("packed_weights", default=None)


def packed_weight(weight: torch.Tensor) -> torch.Tensor | None:
    weights = _packed_weights.get()
    return None if weights is None else weights.get(id(weight))


@contextmanager
def packed_weights(modules: Iterable[nn.Module], num_rows: int) -> Iterator[None]:
    """Use packed weights within a `with` block, for modules that are faster with them.

    Args:
        modules: of any kind; only a `Linear` or an `OutputProjection` in float32 on the CPU is packed.
        num_rows: of each input of the modules.
    """
    autocast = torch.is_autocast_enabled("cpu")
    is_usable = (
        num_rows >= MIN_PACKED_ROWS and not torch.is_grad_enabled() and not autocast and is_available()
    )
    packed: dict[int, torch.Tensor] = {}
    for module in modules if is_usable else ():
        if _gains_from_packing(module):
            weight = module.weight
            packed[id(weight)] = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    token = _packed_weights.set(packed)
    try:
        yield
    finally:
        _packed_weights.reset(token)


def _gains_from_packing(module: nn.Module) -> TypeGuard[nn.Linear]:
    if type(module) not in (Linear, OutputProjection) or "forward" in vars(module):
        return False  # another class, or its `forward` was replaced
    weight = module.weight
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= MIN_PACKED_WEIGHTS
    )
