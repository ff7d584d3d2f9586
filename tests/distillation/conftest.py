"""Fixtures that whole runs share."""

from pathlib import Path

import pytest

from tiny_runs import TINY_RUN, as_flags, datasets_cache, tiny_run, write_dates
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import train

__all__ = ["datasets_cache", "tiny_run"]


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`{"train_file": path, ...}` of a corpus of very few dates: a teacher translates it in a second."""
    return write_dates(tmp_path_factory.mktemp("few-dates"), train_rows=96, validation_rows=8, test_rows=8)


@pytest.fixture(scope="session")
def teacher(dates, tmp_path_factory) -> Path:
    """A folder with a teacher of two layers that has learned a little."""
    folder = tmp_path_factory.mktemp("teacher") / "run"
    options = {
        **TINY_RUN,
        **dates,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "max_steps": 150,
        "max_target_length": 16,
    }
    options |= {"generation_num_beams": 1, "save_steps": 150, "learning_rate": 1e-2, "warmup_steps": 10}
    del options["test_file"]
    train(load_config(None, as_flags({**options, "output_dir": folder})))
    return folder
