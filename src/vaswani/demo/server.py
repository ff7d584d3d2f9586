"""Serve a page on this machine only, until a signal ends it. Nothing is sent to other machines."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any

from vaswani.errors import UserError

if TYPE_CHECKING:
    import gradio as gr

ADDRESS = "127.0.0.1"
FONTS = ("system-ui", "sans-serif")
MONOSPACED = ("ui-monospace", "monospace")
LARGEST_REQUEST = 1 << 24  # bytes; a page of text is a few thousand


def usable_port(port: int) -> int:
    """Return the port after checking that it can be used; for 0, return a free port.

    Raises:
        UserError: the port is taken, or may not be used.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as after a server that has just ended
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {ADDRESS} cannot be used: {error.strerror}; give another with --port, or 0 "
                "for a free one"
            ) from error
        return int(probe.getsockname()[1])


def serve(page: gr.Blocks, port: int, announce: Callable[[str], None]) -> None:
    """Serve a page until SIGINT or SIGTERM.

    Args:
        page: the page from `build_demo`.
        port: port of 127.0.0.1; 0 means a free one.
        announce: called with the address when the page can be opened.

    Raises:
        UserError: the port is taken, or may not be used.
    """
    _keep_local_requests_local()
    stopped = Event()
    previous = {number: signal.signal(number, lambda *_: stopped.set()) for number in _SIGNALS}
    try:
        page.launch(
            server_name=ADDRESS,
            server_port=usable_port(port),
            prevent_thread_lock=True,
            quiet=True,
            **launch_options(),
        )
        announce(f"http://{ADDRESS}:{page.server_port}/")
        stopped.wait()
    finally:
        page.close(verbose=False)
        for number, handler in previous.items():
            signal.signal(number, handler)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch_options() -> dict[str, Any]:
    """Return options of `launch` that keep all data on this machine: no tunnel, no links, system fonts."""
    return {
        "share": False,
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "inbrowser": False,
        "theme": _theme(),
        "max_file_size": 1,  # of an upload, in bytes: the page has none
        "app_kwargs": {"middleware": _guards()},
    }


def _guards() -> list[Any]:
    """Refuse other host names, such as a website's that was redirected to this machine, and large bodies."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[ADDRESS, "localhost"])
    return [hosts, Middleware(_LimitedBodies)]


class _LimitedBodies:
    """ASGI middleware that answers a request by status 413 if its body would fill the memory.

    The body is larger than `LARGEST_REQUEST`; without a stated length, it is counted while it arrives.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.exceptions import HTTPException
        from starlette.responses import PlainTextResponse

        arrived = 0
        stated = dict(scope.get("headers", ())).get(b"content-length", b"0")

        async def counted() -> Any:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > LARGEST_REQUEST:
                raise HTTPException(413)
            return message

        too_large = int(stated) > LARGEST_REQUEST
        app = PlainTextResponse("the request is too large", 413) if too_large else self.app
        await app(scope, counted, send)


def _theme() -> gr.Theme:
    """Return Gradio's theme with fonts of the system and with enough contrast to read everything."""
    import gradio as gr

    theme = gr.themes.Default(primary_hue="blue", font=FONTS, font_mono=MONOSPACED)
    return theme.set(
        body_text_color_subdued="*neutral_600",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
    )


def _keep_local_requests_local() -> None:
    """Exclude this machine from proxies: Gradio asks its own server whether it has started."""
    for name in ("NO_PROXY", "no_proxy"):
        others = os.environ.get(name)
        os.environ[name] = f"{others},{ADDRESS}" if others else ADDRESS
