"""The base class of models that run in ONNX Runtime."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers import PreTrainedModel


class OnnxPreTrainedModel(PreTrainedModel):
    """A transformers model without parameters. ONNX Runtime runs it on the CPU; its outputs are float32.

    It cannot be saved, moved to another device or converted to another dtype.
    """

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states and logits: float32, whatever the dtype of the weights."""
        return torch.float32

    def save_pretrained(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise a ValueError: the folder of the export is the model."""
        raise ValueError("a model in ONNX is not saved again; copy the folder that it was loaded from.")

    def to(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return the model; raise a ValueError for another device than the CPU or another dtype."""
        for value in (*args, *kwargs.values()):
            is_dtype = isinstance(value, torch.dtype) and value != torch.float32
            is_device = isinstance(value, str | torch.device) and torch.device(value).type != "cpu"
            if is_dtype or is_device:
                raise ValueError(
                    f"a model in ONNX runs on the CPU, with the types of its export; {value} is not possible."
                )
        return self

    def half(self) -> Any:
        """Raise a ValueError."""
        return self.to(torch.float16)

    def bfloat16(self) -> Any:
        """Raise a ValueError."""
        return self.to(torch.bfloat16)

    def double(self) -> Any:
        """Raise a ValueError."""
        return self.to(torch.float64)

    def cuda(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Raise a ValueError."""
        return self.to("cuda")
