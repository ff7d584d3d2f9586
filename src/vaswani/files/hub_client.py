"""Time-outs for the Hub's client, and a message while it waits.

The library's client waits forever for a Hub that accepts a connection and does not answer, and falls back to
the cache silently.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import Any
from weakref import WeakSet

from huggingface_hub import constants, get_session, set_client_factory
from huggingface_hub.errors import HTTPError

logger = logging.getLogger(__name__)

SECONDS_OF_SILENCE = 5.0  # then a message says what the client waits for
UPLOAD_PATIENCE = 6  # the Hub answers uploads more slowly

_problems: list[str] = []  # problems of the requests since the last answer
_clients: WeakSet[Any] = WeakSet()  # clients with time-outs


def use_patient_client() -> None:
    """Give the Hub's client time-outs, unless the program has set its own client.

    A request waits for each part of an answer for HF_HUB_DOWNLOAD_TIMEOUT or HF_HUB_ETAG_TIMEOUT seconds
    (default 10), whichever is longer, and six times as long for uploads. The second time-out in a row raises
    an error that the library does not retry.
    """
    _problems.clear()
    client = get_session()
    if _is_librarys(client):
        set_client_factory(partial(_patient_client, like=client))


def last_problem() -> str | None:
    """Describe why the last request since `use_patient_client` had no answer; None if it had one."""
    return _problems[-1] if _problems else None


def _is_librarys(client: Any) -> bool:
    """Return True for the library's own client: it has the library's request hook and no time-out."""
    hooks = {str(hook.__module__).partition(".")[0] for hook in client.event_hooks["request"]}
    return client not in _clients and "huggingface_hub" in hooks and client.timeout.read is None


def _patient_client(like: Any) -> Any:
    """Return a new client with time-outs and the settings of the library's client, `like`."""
    client: Any = type(like)(
        event_hooks=like.event_hooks, follow_redirects=like.follow_redirects, timeout=like.timeout
    )
    _clients.add(client)
    send = client.send

    def send_patiently(request: Any, **options: Any) -> Any:
        seconds = _set_timeouts(request)
        place = f"{request.url.scheme}://{request.url.netloc.decode()}{request.url.path}"
        told = threading.Timer(SECONDS_OF_SILENCE, logger.warning, ["Waiting for %s to answer.", place])
        told.daemon = True
        told.start()
        try:
            response = send(request, **options)
        except HTTPError as error:
            is_silent = type(error).__name__.endswith("Timeout")
            _problems.append(
                f"{constants.ENDPOINT} did not answer within {seconds:g} seconds"
                if is_silent
                else f"the connection to {constants.ENDPOINT} failed ({type(error).__name__})"
            )
            if is_silent and len(_problems) > 1:
                raise ConnectionError(_problems[-1]) from error
            raise
        finally:
            told.cancel()
        _problems.clear()
        if response.status_code >= 500:
            _problems.append(f"{constants.ENDPOINT} answered {response.status_code}")
        return response

    client.send = send_patiently
    return client


def _set_timeouts(request: Any) -> float:
    """Limit the wait for each part of an answer, and return the limit."""
    seconds = float(max(constants.HF_HUB_DOWNLOAD_TIMEOUT, constants.HF_HUB_ETAG_TIMEOUT))
    if request.method not in ("GET", "HEAD"):
        seconds *= UPLOAD_PATIENCE
    given = request.extensions.get("timeout", {})
    bounded = {
        name: min(given.get(name) or seconds, seconds) for name in ("connect", "read", "write", "pool")
    }
    request.extensions = {**request.extensions, "timeout": bounded}
    return bounded["read"]
