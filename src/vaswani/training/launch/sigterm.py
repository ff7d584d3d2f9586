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
    """A signal arrived. A BaseException, as KeyboardInterrupt, so that no library handles it as an error.

    Args:
        number: number of the signal.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class DeferredSignal:
    """A handler that only records the signal.

    Attributes:
        number: number of the signal that has arrived, or 0.
    """

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, number: int, *_: Any) -> None:
        self.number = number


def name_of_signal(number: int) -> str:
    """Return the name of a signal for messages."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


@contextmanager
def ends_on_sigterm(describe_progress: Callable[[], str]) -> Iterator[None]:
    """Let SIGTERM end the body of this context.

    Args:
        describe_progress: returns the rest of the message, after "stopped by SIGTERM" or "stopped by Ctrl-C".

    Raises:
        StoppedError: the signal arrived, or Ctrl-C after the last update (see `StopOnSignal`).
    """
    with _handler(_raise):
        try:
            yield
        except Terminated as error:
            told = f"stopped by {name_of_signal(error.number)} {describe_progress()}"
            raise StoppedError(told, error.number) from error


@contextmanager
def deferred_sigterm() -> Iterator[None]:
    """Delay SIGTERM until the end of this context, such as while the final model is written.

    Raises:
        Terminated: at the end, if the signal arrived.
    """
    deferred = DeferredSignal()
    with _handler(deferred):
        yield
    if deferred.number:
        raise Terminated(deferred.number)


def _raise(number: int, *_: Any) -> NoReturn:
    raise Terminated(number)


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
