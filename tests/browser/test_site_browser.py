"""The documentation site in a browser: from a folder or a server; search, colours and navigation."""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chromium import WatchedPages
from playwright.sync_api import Page, expect


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("from_folder", [True, False], ids=["folder", "server"])
def test_the_search_finds_words_without_a_network(
    pages: WatchedPages, site: Path, served: str, from_folder: bool
) -> None:
    page = pages.open(site / "index.html" if from_folder else f"{served}/index.html")
    page.get_by_role("button", name="Search").first.click()
    page.keyboard.type("alignment error rate")
    hit = page.locator("a", has_text="Word alignments").first
    expect(hit).to_be_visible()
    hit.click()
    page.wait_for_url("**/scoring.html**")
    expect(page.get_by_role("heading", name="Word alignments")).to_be_visible()


def scheme(page: Page) -> str:
    return page.locator("body").get_attribute("data-md-color-scheme") or ""


@pytest.mark.parametrize(
    ("colors", "before", "after"), [("light", "default", "slate"), ("dark", "slate", "default")]
)
def test_colours_follow_the_system_and_the_button(
    pages: WatchedPages, site: Path, colors: str, before: str, after: str
) -> None:
    page = pages.open(site / "index.html", colors=colors)
    assert scheme(page) == before
    page.locator("label[for^=__palette]:visible").click()
    assert scheme(page) == after


@pytest.mark.exhaustive(after=3)
@pytest.mark.parametrize(
    ("viewport", "colors"), [("desktop", "light"), ("desktop", "dark"), ("phone", "light")]
)
@pytest.mark.parametrize("name", ["index", "commands/train", "api/using_models", "paper"])
def test_pages_are_accessible(
    pages: WatchedPages, served: str, name: str, viewport: str, colors: str
) -> None:
    page = pages.open(f"{served}/{name}.html", viewport=viewport, colors=colors)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pages.check_accessibility(page)


def test_the_navigation_opens_on_a_phone(pages: WatchedPages, site: Path) -> None:
    page = pages.open(site / "index.html", viewport="phone")
    page.locator("label[for=__drawer]:visible").first.click()
    expect(page.locator("nav.md-nav--primary").get_by_text("Concepts", exact=True).first).to_be_visible()
