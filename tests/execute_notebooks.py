"""Run the notebooks of the course at their normal size, each in a kernel, and save them with their outputs.

    python tests/execute_notebooks.py [NAME ...]

`make notebooks` does so for all of them. A notebook runs in an empty folder, in which `runs` is that of the
repository if there is one. Its metadata then have a hash of the code, by which a test tells whether the
outputs belong to it.
"""

import base64
import hashlib
import io
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
LONGEST_CELL = 600  # seconds
COLOURS = 96  # of a picture, so that it is small
HASH = "executed_code_sha256"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def code_hash(notebook: Any) -> str:
    """Of the source of all code cells."""
    return hashlib.sha256("\n\n".join(cell.source for cell in code_cells(notebook)).encode()).hexdigest()


def execute(path: Path, folder: Path, parameters: str = "") -> Any:
    """Return a notebook with the outputs of a kernel that runs in a folder.

    Args:
        path: of the notebook.
        folder: where the kernel starts.
        parameters: code that runs after the cell with the tag "parameters".
    """
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with_parameters(notebook, parameters)
    NotebookClient(
        notebook,
        timeout=LONGEST_CELL,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    ).execute()
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if picture := output.get("data", {}).get("image/png"):
                output.data["image/png"] = with_few_colours(picture)
    notebook.metadata = {
        "kernelspec": notebook.metadata.kernelspec,
        "language_info": {"name": "python"},
        HASH: code_hash(notebook),
    }
    return notebook


def with_parameters(notebook: Any, parameters: str) -> None:
    """Append code to the cell with the tag "parameters"."""
    if parameters:
        (cell,) = (cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", ()))
        cell.source += f"\n{parameters}"


def with_few_colours(picture: str) -> str:
    """Return a PNG in base64 with a palette."""
    from PIL import Image

    written = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore:IProgress not found"}
    for path in NOTEBOOKS:
        if len(sys.argv) > 1 and path.stem not in sys.argv[1:]:
            continue
        print(path.name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            if (ROOT / "runs").is_dir():
                Path(folder, "runs").symlink_to(ROOT / "runs")
            nbformat.write(execute(path, Path(folder)), path)


if __name__ == "__main__":
    main()
