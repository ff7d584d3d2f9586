"""Toys of each kind and their exports to ONNX, which all tests share, because an export takes seconds.

A file of tests imports the fixtures that it uses: `saved_toys`, or both.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

import toy_prompting
import toy_translation
from tiny_causal import gpt2_like, ours
from toy_labels import TASKS, save_toy_answerer, save_toy_classifier, save_toy_decoder, save_toy_encoder
from vaswani.interop import export_folder

CAUSAL: dict[str, dict[str, Any]] = {
    "causal": {},
    "causal_counting_all": {"position_from_mask": False, "position_embedding": "learned"},
    "causal_without_positions": {"position_from_mask": False, "position_embedding": "none", "key_dim": 6},
}


def save_bare_encoder(folder: Path) -> None:
    AutoModel.from_pretrained(save_toy_encoder(folder)).save_pretrained(folder)


def save_bare_decoder(folder: Path) -> None:
    AutoModel.from_pretrained(save_toy_decoder(folder)).save_pretrained(folder)


def save_decoder_classifier(folder: Path) -> None:
    save_toy_decoder(folder)
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(folder, num_labels=3, pad_token_id=0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def save_causal(folder: Path, fields: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours(**fields).save_pretrained(folder)
    gpt2_like(with_bos=True).save_pretrained(folder)


SAVED: dict[str, Callable[[Path], Any]] = {
    **{task: partial(save_toy_classifier, task=task) for task in TASKS},
    "answerer": save_toy_answerer,
    "decoder_answerer": partial(save_toy_answerer, decoder=True),
    "encoder": save_bare_encoder,
    "decoder": save_bare_decoder,
    "decoder_classifier": save_decoder_classifier,
    "language_model": save_toy_decoder,
    "masked": save_toy_encoder,
    "translator": toy_translation.save_toy_checkpoint,
    "translator_of_two_vocabularies": partial(toy_translation.save_toy_checkpoint, separate=True),
    "prompted": toy_prompting.save_toy_checkpoint,
    **{name: partial(save_causal, fields=fields) for name, fields in CAUSAL.items()},
}
SavedToys = Callable[[str], Path]
ExportedToys = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def saved_toys(tmp_path_factory: pytest.TempPathFactory) -> SavedToys:
    """A function from a name of `SAVED` to the toy's folder, which is not changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toys"
    folder.mkdir(exist_ok=True)
    return lambda name: made_once(folder / name, SAVED[name])


@pytest.fixture(scope="session")
def exported_toys(saved_toys: SavedToys) -> ExportedToys:
    """A function from a name of `SAVED` to the folders of the toy and its export, which are not changed."""

    def of(name: str) -> tuple[Path, Path]:
        toy = saved_toys(name)
        return toy, made_once(
            toy.with_suffix(".onnx"), lambda folder: export_folder(str(toy), folder, "onnx")
        )

    return of


def made_once(folder: Path, make: Callable[[Path], Any]) -> Path:
    """A folder that the first of all processes makes."""
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            make(unfinished)
            unfinished.rename(folder)
    return folder
