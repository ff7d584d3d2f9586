"""Write vectors to files: JSON Lines as they come; NumPy arrays and safetensors at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import write_whole
from vaswani.files.line_files import LineWriter
from vaswani.inference.embed.embedding import Unit
from vaswani.inference.inputs import Texts

_ARRAYS = (".npy", ".safetensors")


def check_output(unit: Unit, name: str) -> None:
    """Raise a UserError unless a file of this name can hold the vectors of texts, words or tokens."""
    if unit != "text" and name.endswith(".npy"):
        raise UserError(
            f"{name} can hold one vector per text, not vectors of {unit}s; "
            "give a name that ends with .safetensors or .jsonl"
        )
    if not name.endswith(_ARRAYS):
        return
    folder = Path(name).parent
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UserError(f"cannot write {name}: {folder} is not a writable folder")
    if os.path.isdir(name):
        raise UserError(f"cannot write {name}: it is a folder; give the name of a file")


def added_fields(unit: Unit) -> list[str]:
    """Return the fields that `write_vectors` adds to the rows of a table."""
    return ["vector"] if unit == "text" else [f"{unit}s", "vectors"]


def write_vectors(results: Iterable[Any], texts: Texts, unit: Unit, name: str) -> None:
    """Write the results of all texts.

    A JSON line is {"index": 0, "vector": [...]}, or {"index": 0, "words": [...], "vectors": [[...], ...]}.
    For a table, it is the row with these fields, without `index`.
    """
    if name.endswith(_ARRAYS):
        texts.report.lines = _write_arrays(list(results), unit, Path(name))
        return
    with LineWriter(name) as writer:
        for index, result in enumerate(results):
            texts.take()
            place = {"index": index} if texts.row is None else {}
            writer.write(texts.record(**place, **_fields(result, unit)))


def _fields(result: Any, unit: Unit) -> dict[str, Any]:
    if unit == "text":
        return {"vector": _numbers(result)}
    pieces, vectors = result
    return {f"{unit}s": pieces, "vectors": [_numbers(vector) for vector in vectors]}


def _numbers(vector: torch.Tensor) -> list[float]:
    """Return a vector's numbers with only the digits that float32 needs, half as many as for float64."""
    return [float(str(number)) for number in vector.numpy()]


def _write_arrays(results: list[Any], unit: Unit, path: Path) -> int:
    """Write `vectors`, [N, d], and, for words or tokens, their number in each text as `lengths`."""
    if unit == "text":
        arrays = {"vectors": torch.stack(results) if results else torch.zeros(0, 0)}
    else:
        vectors = [result.vectors for result in results]
        lengths = torch.tensor([len(of_text) for of_text in vectors], dtype=torch.int64)
        arrays = {"vectors": torch.cat(vectors) if vectors else torch.zeros(0, 0), "lengths": lengths}
    content = BytesIO()
    if path.suffix == ".npy":
        np.save(content, arrays["vectors"].numpy())
    else:
        content.write(save(arrays))
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    return len(results)
