"""Imports point downward only: none from a layer above, and none in a circle."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import vaswani

ROOT = Path(vaswani.__file__).parent
LAYERS = (  # from top to bottom
    *("cli", "demo", "distillation", "training", "insight", "evaluation", "inference", "interop"),
    *("hub", "data", "kernels", "model"),
)


def module_name(path: Path) -> str:
    """The module of a file, such as `data.batching`; the package itself is the empty string."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, functions included; what only the type checker imports is left out."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.stmt) and is_type_checking(child)):
            yield from walk(child)


def imported_names(node: ast.AST, package: list[str]) -> list[str]:
    """Full names that an import statement loads, most of them with the name of an object at the end."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*start, *(node.module or "").split(".")]).strip(".")
        return [f"{base}.{alias.name}" for alias in node.names]
    return []


def imports(name: str) -> set[str]:
    """The modules of this project that a module imports, inside functions too."""
    path = PATHS[name]
    package = ["vaswani", *path.relative_to(ROOT).parts[:-1]]
    found = set()
    for node in walk(ast.parse(path.read_text())):
        for full in imported_names(node, package):
            if full == "vaswani" or full.startswith("vaswani."):
                inside = full.removeprefix("vaswani").lstrip(".")
                while inside not in PATHS:
                    inside = inside.rpartition(".")[0]
                found.add(inside)
    return found


IMPORTS = {name: imports(name) for name in PATHS}


def layer_of(name: str) -> str:
    return name.partition(".")[0]


def test_every_folder_has_a_layer() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders - {"files"} <= set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_imports_from_above(layer: str) -> None:
    above = {"", *LAYERS[: LAYERS.index(layer)]} if layer != LAYERS[0] else set()
    names = [name for name in PATHS if layer_of(name) == layer]
    found = {(name, used) for name in names for used in IMPORTS[name] if layer_of(used) in above}
    assert found == set()


def test_shared_modules_import_no_layer() -> None:
    """Such as `files/`, `errors.py` and `bounds.py`; the package and its command import everything."""
    names = [name for name in PATHS if name not in ("", "__main__") and layer_of(name) not in LAYERS]
    assert {(name, used) for name in names for used in IMPORTS[name] if layer_of(used) in LAYERS} == set()


def test_model_imports_only_its_siblings() -> None:
    """The code on the Hub is loaded without this package: one folder, no subfolders, relative imports."""
    for name in (name for name in PATHS if layer_of(name) == "model"):
        assert {layer_of(used) for used in IMPORTS[name]} <= {"model"}, name
        for node in walk(ast.parse(PATHS[name].read_text())):
            is_absolute = isinstance(node, ast.ImportFrom) and node.level == 0
            assert not (is_absolute and str(node.module).startswith("vaswani")), name


def test_no_modules_import_in_a_circle() -> None:
    check_no_circle({name: used - {name, ""} for name, used in IMPORTS.items() if name})


def test_no_folders_of_training_import_in_a_circle() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for name, used in IMPORTS.items():
        if folder := folder_of_training(name):
            graph[folder] |= set(map(folder_of_training, used)) - {folder, ""}
    assert {"config", "launch", "runs", "trainer"} <= set(graph)
    check_no_circle(graph)


def folder_of_training(name: str) -> str:
    """The folder of `training/` that holds a module; the empty string for all other modules."""
    return name.removeprefix("training.").partition(".")[0] if name.startswith("training.") else ""


def check_no_circle(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")
