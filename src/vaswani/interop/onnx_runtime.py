"""Importing ONNX Runtime without its reports."""

import os
from types import ModuleType


def import_onnxruntime() -> ModuleType:
    """Return ONNX Runtime, whose first import decides whether it reports its use to Microsoft: it does not.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # on by default since version 1.32
    import onnxruntime

    return onnxruntime
