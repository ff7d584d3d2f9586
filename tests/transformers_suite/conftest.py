"""Let the fetched tests use their own markers beside this project's."""

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
