"""The source uses the private names of libraries that `private_names.py` lists; the libraries have them."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import transformers

import vaswani
from private_names import MODEL_FIELDS, NEWER, OVERRIDDEN, USED
from vaswani.model.kernel_slots import prepare_kernels

EVERY = USED | OVERRIDDEN | MODEL_FIELDS
SOURCE = Path(vaswani.__file__).parent
LIBRARIES = ("transformers", "accelerate", "torch")
PYTHONS = {"_asdict", "_replace", "_exit"}  # documented, of named tuples and of `os`
SET_BY_THEM = {"_abc_impl", "_auto_class", "_backward_cls"}  # on our classes, when they are made


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != ""


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@cache
def trees() -> dict[str, ast.Module]:
    """The source, by path."""
    paths = sorted(SOURCE.rglob("*.py"))
    return {str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def names_defined(tree: ast.AST) -> set[str]:
    """Functions, classes, variables, attributes that are set, and keyword arguments."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            names.add(node.attr)
    return names


def names_used(tree: ast.AST) -> set[str]:
    """Attributes, `getattr` with a constant name, and what is imported from the libraries."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "setattr"):
            names.update(arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            names.update([*node.module.split("."), *(alias.name for alias in node.names)])
    return {name for name in names if is_private(name)}


def used_privately() -> dict[str, list[str]]:
    """Names that the source uses but does not define, and so belong to a library: the files of each."""
    ours = set().union(*map(names_defined, trees().values()))
    files: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for name in names_used(tree) - ours - PYTHONS:
            files.setdefault(name, []).append(path)
    return files


def overridden_privately() -> dict[str, list[str]]:
    """Private names of library classes that classes of ours define anew: the classes of each name."""
    classes: dict[str, list[str]] = {}
    prepare_kernels()  # which replace methods of our classes
    for module in pkgutil.walk_packages(vaswani.__path__, "vaswani."):
        if module.name.endswith("__main__"):
            continue
        if module.name.startswith("vaswani.demo.") and find_spec("gradio") is None:  # `make test-oldest`
            continue
        for cls in vars(importlib.import_module(module.name)).values():
            if not isinstance(cls, type) or cls.__module__ != module.name:
                continue
            for name in set(filter(is_private, vars(cls))) - SET_BY_THEM:
                if library_class(cls, name) is not None:
                    classes.setdefault(name, []).append(f"{module.name}.{cls.__name__}")
    return classes


def library_class(cls: type, name: str) -> type | None:
    """The class of a library that a class of ours inherits a name from."""
    for base in cls.__mro__[1:]:
        if base.__module__.split(".")[0] in LIBRARIES and (
            name in vars(base) or name in vars(base).get("__annotations__", {})
        ):
            return base
    return None


def find(path: str) -> object:
    """What a dotted path of modules, classes and attributes leads to.

    Raises:
        AttributeError: it leads nowhere.
    """
    module, _, rest = path.partition(":")
    found: object = importlib.import_module(module)
    for name in rest.split("."):
        if (
            isinstance(found, type)
            and not hasattr(found, name)
            and re.search(rf"\b{name}\b", source_of(found))
        ):
            return None  # an attribute of instances
        found = getattr(found, name)
    return found


def source_of(cls: type) -> str:
    return inspect.getsource(importlib.import_module(cls.__module__))


def last_names(paths: Iterable[str]) -> set[str]:
    return {path.rpartition(".")[2].rpartition(":")[2] for path in paths}


@pytest.mark.parametrize(
    ("listed", "found", "verb"),
    [(USED, used_privately, "uses"), (OVERRIDDEN | MODEL_FIELDS, overridden_privately, "overrides")],
    ids=["used", "overridden"],
)
def test_the_list_matches_the_names_used_in_the_source(listed: dict[str, str], found, verb: str) -> None:
    places = found()
    names = last_names(listed)
    for name in sorted(places.keys() - last_names(EVERY)):  # a kernel overrides what it uses
        pytest.fail(
            f"{', '.join(places[name])} {verb} {name}, a private name of a library. Use a public one, or add "
            "it with the reason to tests/private_names.py."
        )
    gone = sorted(names - places.keys() - (last_names(NEWER) if runs_on_the_oldest() else set()))
    assert not gone, f"nothing {verb} {', '.join(gone)} any more; remove it from tests/private_names.py"


def runs_on_the_oldest() -> bool:
    """Whether this is the oldest version of transformers that is supported."""
    pins = (Path(__file__).parent.parent / "constraints-oldest.txt").read_text().splitlines()
    return f"transformers=={transformers.__version__}" in pins


@pytest.mark.parametrize("path", sorted(EVERY))
def test_the_library_still_has_the_name(path: str) -> None:
    try:
        find(path)
    except (ImportError, AttributeError) as error:
        if path in NEWER and runs_on_the_oldest():
            return
        pytest.fail(
            f"{path} is gone ({error}). It is used because: {EVERY[path]} "
            "Find out what replaces it, and change the source and tests/private_names.py."
        )
    assert path not in NEWER or not runs_on_the_oldest(), f"{path} is not newer; remove it from NEWER"


@pytest.mark.parametrize("path", sorted(OVERRIDDEN))
def test_an_overridden_method_accepts_the_arguments_of_the_library(path: str) -> None:
    name, places = path.rpartition(".")[2], overridden_privately()
    theirs = find(path)
    if not inspect.isfunction(theirs):
        return  # an attribute
    for place in places.get(name, []):
        module, _, cls = place.rpartition(".")
        ours = inspect.signature(getattr(getattr(importlib.import_module(module), cls), name)).parameters
        if any(each.kind == each.VAR_KEYWORD for each in ours.values()):
            continue
        missing = inspect.signature(theirs).parameters.keys() - ours.keys() - {"args", "kwargs"}
        assert not missing, f"{place}.{name} does not take {', '.join(sorted(missing))}, which {path} takes"
