"""Tests in this folder drive a real browser; without Chromium, they skip with a message."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import WatchedPages, find_chromium, start_chromium
from playwright.sync_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")


# One for each file: while Playwright runs, other tests could not use asyncio.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if (program := find_chromium()) is None:
        pytest.skip("no Chromium is installed: apt install chromium, or set VASWANI_CHROMIUM to its path")
    with start_chromium(program) as browser:
        yield browser


@pytest.fixture
def pages(browser: Browser) -> Iterator[WatchedPages]:
    watched = WatchedPages(browser)
    yield watched
    watched.close()
    assert not watched.problems
