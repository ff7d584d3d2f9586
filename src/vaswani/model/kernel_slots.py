# Copyright 2026 The vaswani authors. Licensed under the Apache License, Version 2.0.
"""Functions of the model that a kernel may compute faster.

The model computes everything by itself, in plain PyTorch. The plugin fills the slots with kernels
(`vaswani.kernels.registry`); a model that was loaded without the plugin leaves them empty.
"""

from collections.abc import Callable
from functools import partial
from typing import Any


class KernelSlot:
    """Decorator of a plain function, whose calls go to the slot's kernel where there is one.

    A kernel takes the same arguments and returns the same result; it calls `plain` where it has no advantage.
    """

    def __init__(self, plain: Callable[..., Any]):
        self.plain = plain
        self.kernel: Callable[..., Any] | None = None
        self.__name__ = plain.__name__
        self.__doc__ = plain.__doc__

    def put_before(self, kernel: Callable[..., Any]) -> None:
        """Let a kernel go before what computes now, which becomes the kernel's first argument."""
        self.kernel = partial(kernel, self.kernel or self.plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.kernel or self.plain)(*args, **kwargs)


@KernelSlot
def prepare_kernels() -> None:
    """Run before each model is built. The plugin's version fills the other slots the first time."""
