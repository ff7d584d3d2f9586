"""Load a model with its tokenizers for PyTorch or for ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.inference.onnx.loading import load_onnx_checkpoint
from vaswani.inference.quantization import check_quantization, quantize

if TYPE_CHECKING:
    from typing_extensions import Self

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


class FromPretrained:
    """Adds `from_pretrained` to a class whose first arguments are a model and its tokenizer or tokenizers."""

    _auto_class: ClassVar[Any] = None  # loads the model; None means the class that it was saved from
    _has_target: ClassVar[bool] = False  # whether the class takes a source and a target tokenizer
    _engines: ClassVar[tuple[str, ...]] = ("torch",)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        quantization: str | None = None,
        revision: str | None = None,
        allow_mismatch: bool = False,
        engine: str = "torch",
        **options: Any,
    ) -> Self:
        """Load a model with its tokenizers.

        Args:
            name: the folder, or the name on the Hub, of a model of transformers or vaswani.
            device: None means a CUDA device if there is one, else the CPU.
            dtype: dtype of the weights; None means as saved.
            quantization: `"int8"` quantizes the weights after loading (see `vaswani.inference.quantization`);
                None leaves them as they are.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: accept tokenizers or weights that seem to belong to another model.
            engine: `"torch"`, or `"onnx"` for a folder of `vaswani export --to onnx` (some classes only).
            options: other arguments of the class.

        Raises:
            UserError: the model cannot be loaded (see `load_for_torch` and `load_for_onnx`), or the class
                does not run the engine.
        """
        if engine not in cls._engines:
            expected = " or ".join(cls._engines)
            raise UserError(f"engine={engine} cannot be used by {cls.__name__}; expected {expected}")
        auto_class = cls._class_to_load(name, revision)
        load = LoadOptions(
            device=device,
            dtype=dtype,
            quantization=quantization,
            revision=revision,
            allow_mismatch=allow_mismatch,
        )
        model, *tokenizers = LOADERS[engine](name, load, auto_class)
        return cls(model, *tokenizers[: 1 + cls._has_target], **options)  # type: ignore[call-arg]

    @classmethod
    def _class_to_load(cls, name: str | Path, revision: str | None) -> Any:
        """Return the Auto class that loads a model, or None for the class that it was saved from."""
        return cls._auto_class
