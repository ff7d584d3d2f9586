"""Linear layers by oneDNN, on CPUs where PyTorch would take MKL.

For the narrow weights of a Transformer and a few thousand rows, oneDNN's products with weights as they are
run 10 to 15 % faster than MKL's on Intel's processors, forward and for the gradient of the states; for the
gradient of the weights MKL's are the faster ones there. On other processors MKL reaches half of what it could
or less, and oneDNN computes everything.

A decoding step multiplies a few rows by every weight of the decoder, and MKL rearranges each weight in every
step. oneDNN takes weights that were rearranged ("packed") before: on two cores it multiplies 4 rows of 512
numbers by 2048 × 512 weights three times as fast, 32 rows 1.6 times, 128 rows 1.3 times. Packing costs about
one step, so it is done for a whole search, and forgotten afterwards: weights may change between searches.
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

MIN_ROWS = 256  # below, a call costs more than it saves
# Preparing a new shape takes oneDNN 0.3 ms, which a smaller product never saves. Which of them computes must
# depend on the shape alone: a run that is resumed ends with the same bits as one that was not.
MIN_MULTIPLICATIONS = 1 << 22
MIN_PACKED_WEIGHTS = 512 * 512  # below, calling oneDNN costs more than it saves
MIN_PACKED_ROWS = 4  # below, a search is over before the packing has paid for itself

# oneDNN keeps what it prepares for the shape of a product, and PyTorch keeps it once more in each thread:
# 0.6 MB for each shape, by default of the last 1,024. Texts have ever new shapes, so a process would grow by
# more than half a gigabyte.
CACHED_SHAPES = 128
CACHE_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


def _is_intel() -> bool:
    """Whether MKL is written for this processor; elsewhere than on Linux, the processor's name tells."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


IS_INTEL_CPU = _is_intel()


def unavailable() -> str | None:
    """The reason why oneDNN cannot compute products here or would not be faster; None if there is none."""
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
    """Compute the linear layers of the models."""
    operators.linear.kernel = linear
    operators.output_projection.kernel = output_projection


def is_available() -> bool:
    """Whether oneDNN is there, faster than MKL, and not switched off."""
    return IS_BUILT and bool(torch.backends.mkldnn.enabled)


def is_plain(states: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the product is computed now, by a whole weight: nothing traced, no shard, not quantized."""
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
    """The same onto the vocabulary, with packed weights only: training has a pass of its own for it."""
    if has_values(states) and (packed := packed_weight(weight)) is not None:
        return onednn_product(states, packed, bias)
    return operators.output_projection.plain(states, weight, bias)


def product_by(module: Any, num_rows: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """The product by a module's weight without gradients, whose kernel is chosen once.

    Args:
        module: a `Linear`, an `OutputProjection` or an `Int8Linear`.
        num_rows: that each input will have.
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
    """The gradients of the states, weight and bias of `states @ weight.T + bias`.

    In a backward pass whose gradients are differentiated again (`create_graph=True`) by PyTorch's operators,
    whose own gradients are known.

    Args:
        ctx: holds the states [..., K] and the weight [N, K].
        grad: of the product, [..., N].
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
    """`states @ weight.T + bias`: float32 [..., K] and [N, K], as they are or packed -> [..., N]."""
    if not getattr(_this_thread, "has_bounded_caches", False):
        _bound_caches()
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")


_this_thread = threading.local()
_environment_lock = threading.Lock()


def _bound_caches() -> None:
    """Let oneDNN and PyTorch keep fewer shapes.

    Both read their limit from the environment when a thread computes its first product. The environment is
    left as it was, and a limit that the user has set stays.
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
    """Whether oneDNN multiplies states [..., K] by a weight [N, K] faster than PyTorch would."""
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
    """`left.T @ right`, without gradients, as for the gradient of a weight: [M, N] and [M, K] -> [N, K]."""
    if IS_INTEL_CPU or not _gains(left, right, len(left), left.numel() * right.shape[1]):
        return left.t() @ right
    if right.shape[1] > left.shape[1]:  # the wider one takes the place of the weight
        return onednn_product(left.t(), right.t(), None)
    return onednn_product(right.t(), left.t(), None).t()


# The packed weights of the search that runs in this context, by the identity of the weight.
_packed_weights: ContextVar[dict[int, torch.Tensor] | None] = ContextVar("packed_weights", default=None)


def packed_weight(weight: torch.Tensor) -> torch.Tensor | None:
    weights = _packed_weights.get()
    return None if weights is None else weights.get(id(weight))


@contextmanager
def packed_weights(modules: Iterable[nn.Module], num_rows: int) -> Iterator[None]:
    """Compute the products of those modules that gain from it with packed weights, until the block ends.

    Args:
        modules: of any kind; only a `Linear` or an `OutputProjection` in float32 on the CPU is packed.
        num_rows: that each of their inputs will have.
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
        return False  # something else, or somebody replaced what it does
    weight = module.weight
    return (
        type(weight) is nn.Parameter
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.numel() >= MIN_PACKED_WEIGHTS
    )
