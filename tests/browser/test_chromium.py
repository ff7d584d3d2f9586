"""What the watched pages notice."""

from pathlib import Path

import pytest
from chromium import WatchedPages, find_chromium


@pytest.fixture
def watched(pages: WatchedPages):
    """`pages`, without failing because of the problems that a test expects."""
    yield pages
    pages.problems.clear()


def write(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(f'<!doctype html><html lang="en"><title>A page</title><main><h1>A page</h1>{body}</main>')
    return path


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<script>console.error('told')</script>", "console: told"),
        ("<script>missing()</script>", "error: missing is not defined"),
        (
            "<script>new Image().src = 'https://example.org/a.png'</script>",
            "request: https://example.org/a.png",
        ),
        ("<script>new WebSocket('wss://example.org/')</script>", "request: wss://example.org/"),
    ],
)
def test_errors_and_requests_are_problems(
    watched: WatchedPages, tmp_path: Path, body: str, problem: str
) -> None:
    page = watched.open(write(tmp_path, body))
    for _ in range(100):  # a busy machine tells late
        if problem in watched.problems:
            break
        page.wait_for_timeout(100)
    assert problem in watched.problems


def test_a_valid_page_has_no_problems(pages: WatchedPages, tmp_path: Path) -> None:
    page = pages.open(write(tmp_path, "<p>Some text.</p>"))
    pages.check_accessibility(page)


def test_axe_reports_insufficient_contrast(pages: WatchedPages, tmp_path: Path) -> None:
    page = pages.open(write(tmp_path, '<p style="color: #eee; background: white">Some text.</p>'))
    with pytest.raises(AssertionError, match="color-contrast"):
        pages.check_accessibility(page)


def test_viewports_and_colors(pages: WatchedPages, tmp_path: Path) -> None:
    path = write(tmp_path, '<meta name="viewport" content="width=device-width">')
    asked = "[innerWidth, matchMedia('(prefers-color-scheme: dark)').matches]"
    assert pages.open(path).evaluate(asked) == [1280, False]
    assert pages.open(path, viewport="phone", colors="dark").evaluate(asked) == [360, True]


def test_chromium_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VASWANI_CHROMIUM", "/opt/chromium")
    assert find_chromium() == "/opt/chromium"
    monkeypatch.delenv("VASWANI_CHROMIUM")
    monkeypatch.setenv("PATH", "")
    assert find_chromium() is None
