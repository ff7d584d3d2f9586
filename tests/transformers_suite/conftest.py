"""The fetched tests are marked as the suite, and use their own markers beside this project's."""

from pathlib import Path

import pytest

UPSTREAM_MARKERS = (
    "accelerate_tests",
    "flash_attn_test",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "is_training_test",
    "torch_compile_test",
)


def pytest_configure(config: pytest.Config) -> None:
    for marker in UPSTREAM_MARKERS:
        config.addinivalue_line("markers", f"{marker}: used by transformers' own tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.suite)
