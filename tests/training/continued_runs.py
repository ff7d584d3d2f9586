"""Small trainings that continue with a trained encoder-decoder."""

from pathlib import Path
from typing import Any

import pytest

from library_tokenizers import SOURCES, TARGETS
from tiny_runs import as_flags
from vaswani.training.config.arguments import ContinuedRunConfig
from vaswani.training.config.config_file import load_config


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    rows = zip(SOURCES, TARGETS, strict=True)
    path.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    return path


def options_for(model: Path, pairs: Path, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "train_file": pairs,
        "output_dir": pairs.parent / "run",
        "max_source_length": 60,
        "max_target_length": 60,
        "max_tokens_per_batch": 400,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "eval_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        **more,
    }


def config_for(*args: Any, **more: Any) -> ContinuedRunConfig:
    config = load_config(None, as_flags(options_for(*args, **more)))
    assert isinstance(config, ContinuedRunConfig)
    return config
