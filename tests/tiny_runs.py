"""Options of a run that takes a second, and the corpus of few dates that it trains on."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pytest
import torch
import yaml
from safetensors.torch import load_file

from vaswani.data.sources.dates import generate_dates
from vaswani.training.config.arguments import RunConfig
from vaswani.training.config.config_file import load_config
from vaswani.training.config.options import BaseConfig
from vaswani.training.runs import base as base_run

TINY_MODEL = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
TINY_RUN = {
    **TINY_MODEL,
    "vocab_size": 300,
    "learning_rate": 3e-3,
    "warmup_steps": 4,
    "max_steps": 6,
    "max_tokens_per_batch": 1200,
    "logging_steps": 1,
    "save_steps": 3,
    "use_cpu": True,
    "disable_tqdm": True,
}


def as_flags(options: dict) -> list[str]:
    """`{"d_model": 16}` -> `["--d_model", "16"]`."""
    flags = []
    for name, value in options.items():
        flags += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return flags


def in_file(options: dict, folder: Path) -> Path:
    """A configuration file with these options, in which some may have no effect beside others."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "options.yaml"
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    path.write_text(yaml.safe_dump(plain))
    return path


def resolved(options: dict, config_class: type[BaseConfig] = RunConfig) -> Any:
    """The configuration of a run with these options in a file."""
    with TemporaryDirectory() as folder:
        return load_config(in_file(options, Path(folder)), [], config_class)


def leave_out_slow_parts() -> None:
    """In this process: drawing curves, and waiting until a disk has all, take longer than such a run."""
    base_run.save_curves = lambda run: None
    os.fsync = lambda descriptor: None


@pytest.fixture(autouse=True)
def datasets_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Corpora are cached where the tests' other files are."""
    folder = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


def write_dates(folder: Path, **rows: int) -> dict[str, str]:
    """`{"train_file": path, ...}` of a small corpus of dates in three languages."""
    splits = generate_dates("de,en,fr", **rows)
    for name, split in splits.items():
        split.to_json(str(folder / f"{name}.jsonl"), force_ascii=False)
    return {f"{name}_file": str(folder / f"{name}.jsonl") for name in splits}


@pytest.fixture(scope="session")
def dates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """`{"train_file": path, ...}` of a corpus that a tiny model reads within a second."""
    return write_dates(tmp_path_factory.mktemp("dates"), train_rows=400, validation_rows=30, test_rows=40)


@pytest.fixture
def tiny_run(dates: dict[str, str], tmp_path: Path) -> dict:
    """Options of a run of a second; `as_flags` makes flags of them."""
    return {**TINY_RUN, **dates, "output_dir": str(tmp_path / "run")}


def weights(folder: str | Path) -> torch.Tensor:
    """All weights of the model that a run saved, in the order of their names."""
    tensors = load_file(Path(folder) / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])
