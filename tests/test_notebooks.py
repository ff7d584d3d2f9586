"""The notebooks of the course run at a small size, and their committed outputs match their code."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
import pytest

from execute_notebooks import HASH, NOTEBOOKS, code_cells, code_hash, execute, with_parameters
from forking import ForkingPython
from tiny_runs import TINY_RUN, dates

__all__ = ["dates"]

INDEX = NOTEBOOKS[0].parent / "README.md"
LARGEST, LARGEST_PICTURE = 200_000, 40_000 * 4 // 3  # bytes of a file, and of a picture in base64
SMALL_TRAINING = {name: value for name, value in TINY_RUN.items() if name != "disable_tqdm"}
SMALL_TRAINING |= {"max_validation_rows": 4, "max_test_rows": 4, "eval_strategy": "no"}
# Values of the cell "parameters" with which a notebook takes seconds.
SMALL: dict[str, dict[str, object]] = {
    "01_attention_by_hand": {"num_samples": 4, "depth": 3},
    "02_positions": {"num_steps": 2},
    "03_the_model": {"depth": 2},
    "04_training": {"num_rows": 400, "num_steps": 6, "locales": "en,de"},
    "05_looking_at_attention": {"folder": "missing", "smaller": SMALL_TRAINING},
    "06_decoding": {"folder": "missing", "smaller": SMALL_TRAINING, "batches": [1, 2], "repetitions": 1},
    "07_distillation": {"num_rows": 300, "teacher_steps": 4, "student_steps": 2},
    "08_sparse_attention": {"lengths": [128], "repetitions": 1},
    "09_bert_and_gpt": {"num_steps": 3},
    "10_sharing": {},
}
# What no output holds: paths and machines of whoever ran it, and messages for nobody.
STRANGE = re.compile(r"/(?:home|root|tmp|usr|work|Users)/|0x[0-9a-f]{6}|[Ww]arning|\x1b|Traceback")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def small_parameters(path: Path, files: Mapping[str, str] | None = None) -> str:
    """The cell's values; a training reads the few dates of these files, for 200,000 take ten seconds."""
    values = dict(SMALL[path.stem])
    if "smaller" in values:
        values["smaller"] = SMALL_TRAINING | {"dataset": "none"} | dict(files or {})
    return "\n".join(f"{name} = {value!r}" for name, value in values.items())


def as_script(notebook: Any) -> str:
    """The code cells, in a process that draws nothing."""
    cells = [cell.source for cell in code_cells(notebook)]
    return "\n\n".join(["import matplotlib\nmatplotlib.use('agg')", *cells])


@pytest.mark.script
@pytest.mark.slow
@each_notebook
def test_a_notebook_runs_at_a_small_size(
    path: Path, forking_python: ForkingPython, tmp_path: Path, dates: dict[str, str]
) -> None:
    notebook = read(path)
    with_parameters(notebook, small_parameters(path, dates))
    result = forking_python.run(["-c", as_script(notebook)], tmp_path, {"HF_HUB_OFFLINE": "1"})
    assert result.returncode == 0, result.stderr


@pytest.mark.script
@pytest.mark.slow
@pytest.mark.process
def test_a_notebook_runs_in_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")
    path = NOTEBOOKS[0]
    notebook = execute(path, tmp_path, small_parameters(path))
    assert problems_of_outputs(notebook) == []
    assert any("image/png" in data for data in shown(notebook))


@each_notebook
def test_reduced_parameters_exist_in_the_parameters_cell(path: Path) -> None:
    cells = [cell for cell in code_cells(read(path)) if "parameters" in cell.metadata.get("tags", ())]
    names = (
        node for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)
    )
    found = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert SMALL[path.stem].keys() <= found
    assert len(cells) <= 1


@each_notebook
def test_the_outputs_match_the_code(path: Path) -> None:
    notebook = read(path)
    numbers = [cell.execution_count for cell in code_cells(notebook)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert notebook.metadata[HASH] == code_hash(notebook), "run `make notebooks`"
    assert problems_of_outputs(notebook) == []


@each_notebook
def test_a_notebook_is_small(path: Path) -> None:
    assert path.stat().st_size <= LARGEST
    assert max((len(data.get("image/png", "")) for data in shown(read(path))), default=0) <= LARGEST_PICTURE


@each_notebook
def test_a_notebook_links_to_the_next(path: Path) -> None:
    notebook = read(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith(f"# {int(path.stem[:2])}. ")
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith("https://")]
    assert all((path.parent / link.partition("#")[0]).exists() for link in links)
    following = NOTEBOOKS[NOTEBOOKS.index(path) + 1 :][:1]
    assert [each.name for each in following if each.name not in links] == []


def test_the_index_lists_every_notebook() -> None:
    linked = re.findall(r"\]\((\w+\.ipynb)\)", INDEX.read_text(encoding="utf-8"))
    assert linked == [path.name for path in NOTEBOOKS]


def shown(notebook: Any) -> list[dict[str, str]]:
    """What the cells display, by media type."""
    return [output.data for cell in code_cells(notebook) for output in cell.outputs if "data" in output]


def problems_of_outputs(notebook: Any) -> list[str]:
    """Outputs that are errors or contain private information."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    texts = [output.get("text", "") for output in outputs]
    texts += [data.get(kind, "") for data in shown(notebook) for kind in ("text/plain", "text/html")]
    return [text for text in texts if STRANGE.search(text)] + [
        str(output) for output in outputs if output.output_type == "error" or output.get("name") == "stderr"
    ]


@pytest.mark.parametrize(
    "output",
    [
        nbformat.v4.new_output("stream", name="stderr", text="a message"),
        nbformat.v4.new_output("stream", name="stdout", text="saved in /home/ada/run"),
        nbformat.v4.new_output("stream", name="stdout", text="UserWarning: something"),
        nbformat.v4.new_output("error", ename="ValueError", evalue="1", traceback=[]),
        nbformat.v4.new_output("execute_result", data={"text/plain": "<object at 0x7f2a3dcfce90>"}),
    ],
)
def test_private_outputs_are_detected(output: Any) -> None:
    cell = nbformat.v4.new_code_cell("1", outputs=[output])
    assert problems_of_outputs(nbformat.v4.new_notebook(cells=[cell]))
