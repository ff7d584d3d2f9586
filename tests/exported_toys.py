"""Toys of each kind and their exports to ONNX, which all tests share, because an export takes seconds."""

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
    "causal_without_positions": {"position_from_mask": False, "position_embedding": "none"},
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
ExportedToys = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def exported_toys(tmp_path_factory: pytest.TempPathFactory) -> ExportedToys:
    """A function from a name of `SAVED` to the folders of the toy and its export, which are not changed."""
    base = tmp_path_factory.getbasetemp()
    all_toys = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exported_toys"
    all_toys.mkdir(exist_ok=True)

    def of(name: str) -> tuple[Path, Path]:
        folder = all_toys / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(name)
                SAVED[name](unfinished / "model")
                export_folder(str(unfinished / "model"), unfinished / "onnx", "onnx")
                unfinished.rename(folder)
        return folder / "model", folder / "onnx"

    return of
