"""The base class of models that run in ONNX Runtime."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


class OnnxPreTrainedModel(PreTrainedModel):
    """A transformers model without parameters. ONNX Runtime runs it on the CPU; its outputs are float32."""

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states and logits: float32, whatever the dtype of the weights."""
        return torch.float32
