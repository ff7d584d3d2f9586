"""The base class of models that ONNX Runtime computes."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


class OnnxPreTrainedModel(PreTrainedModel):
    """A model without parameters, which ONNX Runtime computes on the CPU in float32 for transformers."""

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states and logits: float32, whatever the dtype of the weights."""
        return torch.float32
