"""Load a model with its tokenizers for PyTorch or for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.inference.onnx.loading import load_onnx_checkpoint
from vaswani.inference.quantization import check_quantization, quantize

Checkpoint = tuple[PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerBase]


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options for loading a model; see `FromPretrained.from_pretrained`."""

    device: str | torch.device | None = None
    dtype: str | torch.dtype | None = None
    quantization: str | None = None
    revision: str | None = None
    allow_mismatch: bool = False


def load_for_torch(name: str | Path, options: LoadOptions, auto_class: Any) -> Checkpoint:
    """Return a model with its source and target tokenizers; its weights are quantized if that is asked for.

    Args:
        name: a folder, or a name on the Hub.
        options: how to load the model.
        auto_class: Auto class that loads the model; None means the class that it was saved from.

    Raises:
        UserError: the model cannot be loaded (see `load_checkpoint`) or quantized.
    """
    check_quantization(options.quantization)
    model, source, target = load_checkpoint(
        name, options.device, options.dtype, options.revision, auto_class, options.allow_mismatch
    )
    return quantize(model, options.quantization), source, target


def load_for_onnx(name: str | Path, options: LoadOptions, auto_class: Any) -> Checkpoint:
    """Return a model that was exported to ONNX with its source and target tokenizers.

    Args:
        name: a folder, or a name on the Hub.
        options: how to load the model: on the CPU, and with the types of the export.
        auto_class: Auto class of the model; None accepts all.

    Raises:
        UserError: an option has no effect, or the model cannot be loaded (see `load_onnx_checkpoint`).
    """
    if str(options.device or "cpu") != "cpu":
        raise UserError(f"device {str(options.device)!r} cannot be used by engine=onnx; it runs on the 'cpu'")
    for field, value in {"dtype": options.dtype, "quantization": options.quantization}.items():
        if value is not None:
            raise UserError(
                f"{field}={value} has no effect with engine=onnx, whose types are those of the export; "
                "leave it out, or export with --quantization"
            )
    return load_onnx_checkpoint(name, options.revision, auto_class, options.allow_mismatch)


LOADERS: dict[str, Callable[[str | Path, LoadOptions, Any], Checkpoint]] = {
    "torch": load_for_torch,
    "onnx": load_for_onnx,
}
