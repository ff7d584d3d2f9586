"""The list of kernels, and how they are put in place.

A kernel is a module of this package that has

- a docstring whose first line says what the kernel computes and where,
- `unavailable() -> str | None`: the reason why the kernel cannot be used here, or None. It checks everything
  that the kernel relies on (processor, compiler, operators and undocumented names), and is cheap: expensive
  work, such as a compilation, waits for the first call;
- `hook_in() -> None`: puts the kernel in place, for our models only. A function fills its slot:
  `model_function.kernel = fast_function`, or `put_before` if a function has several kernels (see
  `vaswani.model.kernel_slots`). An attention implementation of the library is replaced in
  `vaswani.model.attention.ATTENTION_FUNCTIONS`, which belongs to our models; a new implementation is
  registered with `AttentionInterface` and `AttentionMaskInterface` together.

A module that cannot be imported is unavailable too, for instance after a newer torch has renamed something.
Kernels are hooked in when the first model is built, by `vaswani.model.kernel_slots.prepare_kernels`. Code
that calls the model's functions without a model calls `hook_in_kernels()` itself.
"""

from functools import cache
from importlib import import_module

# The order matters: for one slot, a later kernel goes first and leaves other cases to earlier kernels.
KERNELS: tuple[str, ...] = (
    *(
        "onednn",
        "products_native",
        "half_products",
        "dropout",
        "short_attention",
        "attention_native",
        "half_attention",
        "projected_loss",
        "search",
    ),
    *("sparse_native", "sparse_short", "sparse_flex"),
)


@cache
def hook_in_kernels() -> dict[str, str | None]:
    """Hook in every available kernel, once. Returns the same as `active_kernels`."""
    return {name: _hook_in(name) for name in KERNELS}


def active_kernels() -> dict[str, str | None]:
    """Return, by name of kernel, the reason why it is not used; None for an active kernel."""
    return dict(hook_in_kernels())


def _hook_in(name: str) -> str | None:
    try:
        kernel = import_module(f"vaswani.kernels.{name}")
        reason: str | None = kernel.unavailable()
        if reason is None:
            kernel.hook_in()
    except (ImportError, AttributeError) as error:  # a name of torch or transformers is gone
        return f"{type(error).__name__}: {error}"
    return reason
