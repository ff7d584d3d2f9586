"""A corpus of few dates, on which a tiny model trains within a second."""

from pathlib import Path

import datasets
import pytest
from tiny_runs import TINY_RUN

from vaswani.data.dates import generate_dates


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Corpora are cached where the tests' other files are."""
    folder = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`{"train_file": path, ...}` of a small corpus of dates in three languages."""
    folder = tmp_path_factory.mktemp("dates")
    splits = generate_dates("de,en,fr", train_rows=400, validation_rows=30, test_rows=40)
    for name, rows in splits.items():
        rows.to_json(str(folder / f"{name}.jsonl"), force_ascii=False)
    return {f"{name}_file": str(folder / f"{name}.jsonl") for name in splits}


@pytest.fixture
def tiny_run(dates: dict[str, str], tmp_path: Path) -> dict:
    """Options of a run of a second; `as_flags` makes flags of them."""
    return {**TINY_RUN, **dates, "output_dir": str(tmp_path / "run")}
