"""Shapes and dtypes of the tensors in a weight file, without loading them."""

from __future__ import annotations

import math
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from vaswani.errors import UserError, one_line
from vaswani.files.json_files import unreadable


class StoredTensor(NamedTuple):
    """Shape and dtype of a tensor, from the header of its file; dtypes as in safetensors: F32, I8 ..."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """True for floating-point numbers."""
        return self.dtype.startswith(("F", "BF"))


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a weight file from its header.

    Raises:
        UserError: the file is missing, damaged, unreadable, or pickled with more than tensors.
    """
    if not file.is_file():
        raise UserError(unreadable(file, FileNotFoundError() if not file.exists() else IsADirectoryError()))
    try:
        file.open("rb").close()
        return _pickled_tensors(file) if file.suffix == ".bin" else _header(file)
    except UserError:
        raise
    except OSError as error:
        raise UserError(unreadable(file, error)) from error
    except (SafetensorError, RuntimeError, ValueError, KeyError, EOFError) as error:
        raise UserError(
            f"{file} is damaged or half-written ({one_line(error)}); use another checkpoint"
        ) from error


def _header(file: Path) -> dict[str, StoredTensor]:
    with safe_open(file, framework="pt") as weights:
        parts = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118  # no mapping
        return {
            name: StoredTensor(tuple(part.get_shape()), str(part.get_dtype())) for name, part in parts.items()
        }


def _pickled_tensors(file: Path) -> dict[str, StoredTensor]:
    try:
        weights = torch.load(file, map_location="meta", weights_only=True)
    except UnpicklingError as error:
        raise UserError(
            f"the weights in {file} cannot be loaded: they are pickled, and are truncated or hold more than "
            "tensors, which could be code and was not run; ask their author for safetensors"
        ) from error
    if not isinstance(weights, dict) or not all(map(torch.is_tensor, weights.values())):
        raise UserError(f"{file} does not hold tensors by name; use another checkpoint")
    return {
        name: StoredTensor(tuple(weight.shape), "F" if weight.is_floating_point() else str(weight.dtype))
        for name, weight in weights.items()
    }
