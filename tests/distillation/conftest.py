"""Fixtures that whole runs share."""

import pytest

from tiny_runs import cache_of_its_own, tiny_run, write_dates

__all__ = ["cache_of_its_own", "tiny_run"]


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`{"train_file": path, ...}` of a corpus of very few dates: a teacher translates it in a second."""
    return write_dates(tmp_path_factory.mktemp("few-dates"), train_rows=96, validation_rows=8, test_rows=8)
