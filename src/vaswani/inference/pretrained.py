"""Loading a model with its tokenizers for inference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vaswani.errors import UserError
from vaswani.inference.loading import LOADERS, LoadOptions

if TYPE_CHECKING:
    from typing_extensions import Self


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
