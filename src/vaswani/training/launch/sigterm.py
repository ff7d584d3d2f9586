"""SIGTERM outside the training loop: a run ends with one line that says what it has done.

Schedulers, and machines that shut down, send it some time before SIGKILL. In the loop see `StopOnSignal`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from vaswani.errors import StoppedError


class Terminated(BaseException):
    """SIGTERM came. Like KeyboardInterrupt, no library takes it for an error of its own."""


class HeldBack:
    """A handler that only notes the signal.

    Attributes:
        came: whether it has come.
    """

    def __init__(self) -> None:
        self.came = False

    def __call__(self, *_: Any) -> None:
        self.came = True


@contextmanager
def ends_on_sigterm(tell: Callable[[], str]) -> Iterator[None]:
    """Let SIGTERM end what is done within.

    Args:
        tell: returns what the message says of it, after "stopped by SIGTERM".

    Raises:
        StoppedError: the signal came.
    """
    with _handler(_raise):
        try:
            yield
        except Terminated as error:
            raise StoppedError(f"stopped by SIGTERM {tell()}") from error


@contextmanager
def sigterm_held_back() -> Iterator[None]:
    """Let SIGTERM wait for the end of what is done within, such as the writing of the final model.

    Raises:
        Terminated: at the end, if the signal came.
    """
    held = HeldBack()
    with _handler(held):
        yield
    if held.came:
        raise Terminated


def _raise(*_: Any) -> NoReturn:
    raise Terminated


@contextmanager
def _handler(handler: Callable) -> Iterator[None]:
    """Python leaves signals to the main thread; in others, nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
