# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Functions of the model that faster kernels can replace.

The model is complete without kernels, in plain PyTorch. The plugin fills the slots with kernels
(`vaswani.kernels.registry`); for a model that is loaded without the plugin they stay empty.
"""

from collections.abc import Callable
from functools import partial
from typing import Any


class KernelSlot:
    """Decorator that sends calls of a plain function to a kernel, if one is set.

    A kernel takes the same arguments and returns the same result; it calls `plain` where it is not faster.
    """

    def __init__(self, plain: Callable[..., Any]):
        self.plain = plain
        self.kernel: Callable[..., Any] | None = None
        self.__name__ = plain.__name__
        self.__doc__ = plain.__doc__

    def put_before(self, kernel: Callable[..., Any]) -> None:
        """Put a kernel before the current implementation, which becomes the kernel's first argument."""
        self.kernel = partial(kernel, self.kernel or self.plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.kernel or self.plain)(*args, **kwargs)


@KernelSlot
def prepare_kernels() -> None:
    """Run before each model is built. The plugin's kernel fills the other slots at the first call."""
