"""SIGTERM outside the training loop: a run ends with one line that reports what it has done.

Schedulers, and machines that shut down, send it some time before SIGKILL. In the loop see `StopOnSignal`.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from vaswani.errors import StoppedError


class Terminated(BaseException):
    """SIGTERM arrived. A BaseException, as KeyboardInterrupt, so that no library handles it as an error."""


class DeferredSignal:
    """A handler that only records the signal.

    Attributes:
        received: whether the signal has arrived.
    """

    def __init__(self) -> None:
        self.received = False

    def __call__(self, *_: Any) -> None:
        self.received = True


@contextmanager
def ends_on_sigterm(describe_progress: Callable[[], str]) -> Iterator[None]:
    """Let SIGTERM end the body of this context.

    Args:
        describe_progress: returns the rest of the message, after "stopped by SIGTERM".

    Raises:
        StoppedError: the signal arrived.
    """
    with _handler(_raise):
        try:
            yield
        except Terminated as error:
            raise StoppedError(f"stopped by SIGTERM {describe_progress()}") from error


@contextmanager
def deferred_sigterm() -> Iterator[None]:
    """Delay SIGTERM until the end of this context, such as while the final model is written.

    Raises:
        Terminated: at the end, if the signal arrived.
    """
    deferred = DeferredSignal()
    with _handler(deferred):
        yield
    if deferred.received:
        raise Terminated


def _raise(*_: Any) -> NoReturn:
    raise Terminated


@contextmanager
def _handler(handler: Callable) -> Iterator[None]:
    """Set a handler of SIGTERM in the main thread; other threads cannot set one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
