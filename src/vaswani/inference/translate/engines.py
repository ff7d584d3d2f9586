"""The engines of a `Translator` by name, and how each loads a model with its tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerBase

from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint, local_folder
from vaswani.hub.vocabulary import check_vocabulary
from vaswani.inference.quantization import check_quantization, quantize
from vaswani.inference.translate.ctranslate2_engine import CTranslate2Engine
from vaswani.inference.translate.ctranslate2_folder import WEIGHTS, read_ctranslate2_folder
from vaswani.inference.translate.engine import Engine
from vaswani.inference.translate.onnx_model import load_onnx
from vaswani.inference.translate.torch_engine import TorchEngine
from vaswani.interop.to_ctranslate2 import check_engine

EngineName = Literal["torch", "ctranslate2", "onnx"]
Loaded = tuple[Engine, PreTrainedTokenizerBase, PreTrainedTokenizerBase]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is loaded; see `Translator.from_pretrained`."""

    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    quantization: str | None = None
    revision: str | None = None
    allow_mismatch: bool = False


def load_engine(engine: str, name: str | Path, options: LoadOptions) -> Loaded:
    """Load a model for an engine, with its source and target tokenizers.

    Args:
        engine: one of `ENGINES`.
        name: a folder, or a name on the Hub, of what the engine runs.
        options: of the loading.

    Raises:
        UserError: the engine is unknown or not installed, or cannot load the model.
    """
    if engine not in ENGINES:
        raise UserError(f"engine={engine!r} is unknown; expected {', '.join(ENGINES)}")
    return ENGINES[engine](name, options)


def _load_torch(name: str | Path, options: LoadOptions) -> Loaded:
    check_quantization(options.quantization)
    model, source, target = load_checkpoint(
        name, options.device, options.dtype, options.revision, AutoModelForSeq2SeqLM, options.allow_mismatch
    )
    return TorchEngine(quantize(model, options.quantization)), source, target


def _load_ctranslate2(name: str | Path, options: LoadOptions) -> Loaded:
    if options.quantization is not None:
        raise UserError(
            f"quantization={options.quantization} has no effect with engine=ctranslate2, whose types are "
            f"dtypes; give dtype {options.quantization}, or export with --quantization"
        )
    check_engine(None)
    path = local_folder(name, options.revision, weights=WEIGHTS)
    folder = read_ctranslate2_folder(path, allow_mismatch=options.allow_mismatch)
    dtype: Any = options.dtype
    compute_type = "default" if dtype is None else str(dtype).removeprefix("torch.")
    return CTranslate2Engine(folder, options.device, compute_type), *folder.tokenizers


def _load_onnx(name: str | Path, options: LoadOptions) -> Loaded:
    if str(options.device or "cpu") != "cpu":
        raise UserError(f"device {str(options.device)!r} cannot be used by engine=onnx; it runs on the 'cpu'")
    for field, value in {"dtype": options.dtype, "quantization": options.quantization}.items():
        if value is not None:
            raise UserError(
                f"{field}={value} has no effect with engine=onnx, whose types are those of the export; "
                "leave it out, or export with --quantization"
            )
    path = local_folder(name, options.revision, weights="*.onnx*")
    model = load_onnx(path)
    source, target = load_tokenizers(path)
    check_vocabulary(path, model, source, target, allow_mismatch=options.allow_mismatch)
    return TorchEngine(model), source, target


ENGINES: dict[str, Callable[[str | Path, LoadOptions], Loaded]] = {
    "torch": _load_torch,
    "ctranslate2": _load_ctranslate2,
    "onnx": _load_onnx,
}
