"""Quantize the weights of a loaded model to int8, in memory only."""

from __future__ import annotations

import warnings

import torch
from transformers import PreTrainedModel

from vaswani.errors import UserError
from vaswani.kernels import int8_linear


def check_quantization(quantization: str | None) -> None:
    """Raise a UserError unless this machine supports the quantization; None means no quantization."""
    if quantization is None:
        return
    if quantization != "int8":
        raise UserError(f"quantization={quantization!r} is unknown; expected 'int8'")
    if reason := int8_linear.unavailable():
        raise UserError(f"quantization=int8 cannot be used here: {reason}; try dtype bfloat16")


def quantize(model: PreTrainedModel, quantization: str | None) -> PreTrainedModel:
    """Quantize the weights of linear layers to int8, if a layer is large enough to become faster.

    Inputs of a layer are quantized when it runs, with one scale for each row; results depend on the batch
    only by rounding. The model is changed in place and cannot be saved or trained afterwards. A model
    without large layers stays as it is, with a warning.

    Args:
        model: a model of transformers or vaswani, on the CPU in float32.
        quantization: `"int8"`, or None for no quantization.

    Raises:
        UserError: the machine, the device or the dtype does not allow it.
    """
    check_quantization(quantization)
    if quantization is None:
        return model
    if model.device.type != "cpu" or model.dtype != torch.float32:
        dtype = str(model.dtype).removeprefix("torch.")
        raise UserError(
            f"quantization=int8 works on the CPU in float32; the model is on {model.device} in {dtype}: give "
            "device cpu and dtype float32, or leave quantization out"
        )
    if not int8_linear.quantize(model):
        warnings.warn(
            "quantization=int8 changes nothing: no linear layer of this model has "
            f"{int8_linear.MIN_WEIGHTS:,} weights, from which on it is faster",
            stacklevel=2,
        )
    return model
