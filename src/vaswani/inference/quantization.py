"""Int8 weights for a model that is loaded, in memory only."""

from __future__ import annotations

import warnings

import torch
from transformers import PreTrainedModel

from vaswani.errors import UserError
from vaswani.kernels import int8_linear


def check_quantization(quantization: str | None) -> None:
    """Raise a UserError unless this machine has the quantization; None means none."""
    if quantization is None:
        return
    if quantization != "int8":
        raise UserError(f"quantization={quantization!r} is unknown; expected 'int8'")
    if reason := int8_linear.unavailable():
        raise UserError(f"quantization=int8 cannot be used here: {reason}; try dtype bfloat16")


def quantize(model: PreTrainedModel, quantization: str | None) -> PreTrainedModel:
    """Give the linear layers of a model int8 weights, where they are large enough to gain from it.

    The inputs of a layer are quantized while it runs, with a scale for each row, so that a result does not
    depend on the batch. The model is changed and cannot be saved or trained afterwards; one without such
    layers stays as it is, with a warning.

    Args:
        model: of transformers or vaswani, on the CPU in float32.
        quantization: `"int8"`, or None for none.

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
