"""Sessions of ONNX Runtime, and their inputs and outputs as tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vaswani.errors import UserError, one_line
from vaswani.interop.onnx_runtime import import_onnxruntime
from vaswani.interop.to_onnx import INSTALL


def open_session(path: Path, threads: int) -> Any:
    """Return the ONNX Runtime session of a file.

    Args:
        path: a file of an exported model.
        threads: number of threads of an operation.

    Raises:
        UserError: ONNX Runtime is not installed, or cannot read the file.
    """
    try:
        onnxruntime = import_onnxruntime()
    except ImportError as error:
        raise UserError(f"ONNX Runtime is not installed ({error}); {INSTALL}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4  # fatal errors; others are raised
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        raise UserError(f"{path} cannot be read ({one_line(error)}); export the model again") from error


def run_session(session: Any, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Run a session and return its outputs by name. Outputs and contiguous inputs are not copied."""
    names = [output.name for output in session.get_outputs()]
    outputs = session.run(names, {name: tensor.contiguous().numpy() for name, tensor in inputs.items()})
    return {name: torch.from_numpy(output) for name, output in zip(names, outputs, strict=True)}
