"""A headless Chromium, and pages in it that are watched: errors, and requests that leave the machine.

    page = pages.open(tmp_path / "page.html", viewport="phone", colors="dark")
    page.get_by_role("button", name="Translate").click()
    pages.check_accessibility(page)

`pages` is a fixture of `conftest.py`; when the test ends it fails if a page logged an error, raised one, or
asked for anything but files and 127.0.0.1.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

VIEWPORTS = {"desktop": {"width": 1280, "height": 800}, "phone": {"width": 360, "height": 740}}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # what leaves is seen, and gets nowhere
]


def find_chromium() -> str | None:
    """The program: $VASWANI_CHROMIUM, or the first of `NAMES` that is installed."""
    named = os.environ.get("VASWANI_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def start_chromium(program: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


_NOTHING_FADES = "!document.getAnimations().some(each => each instanceof CSSTransition)"


class WatchedPages:
    """Opens pages, each in a fresh context; `problems` says what went wrong in any of them."""

    def __init__(self, browser: Browser):
        self._browser = browser
        self._contexts = []
        self.problems: list[str] = []

    def open(self, address: Path | str, *, viewport: str = "desktop", colors: str = "light") -> Page:
        """Open a file or a URL.

        Args:
            viewport: `desktop`, or `phone`: 360 pixels wide and touched.
            colors: `light` or `dark`, what the user prefers.
        """
        phone = viewport == "phone"
        context = self._browser.new_context(
            viewport=VIEWPORTS[viewport],
            color_scheme=colors,
            device_scale_factor=2 if phone else 1,
            has_touch=phone,
            is_mobile=phone,
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        self._watch(page)
        page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return page

    def check_accessibility(self, page: Page) -> None:
        """Fail if axe finds a serious or critical problem on the page, once all fades have ended."""
        page.wait_for_function("!document.querySelector('.pending')")  # Gradio's, until an output is complete
        page.wait_for_function(_NOTHING_FADES)
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [
            f"{finding['id']}: {finding['help']}: {node['html'][:200]} {node['failureSummary']}"
            for finding in found
            if finding["impact"] in ("serious", "critical")
            for node in finding["nodes"]
        ]
        assert not serious, "\n".join(serious)

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def _watch(self, page: Page) -> None:
        page.on("console", lambda message: self._note(message.type == "error", "console", message.text))
        page.on("pageerror", lambda error: self._note(True, "error", error))
        page.on("request", lambda request: self._note(_leaves(request.url), "request", request.url))
        page.on("websocket", lambda socket: self._note(_leaves(socket.url), "request", socket.url))

    def _note(self, wrong: bool, kind: str, text: object) -> None:
        if wrong:
            self.problems.append(f"{kind}: {text}")


def _leaves(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob", "about") and parts.hostname != "127.0.0.1"
