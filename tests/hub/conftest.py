"""A Hub on loopback, and processes that use it: of this environment, or of one without the plugin."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from forking import ForkingPython
from loopback_hub import LoopbackHub, Run, loopback_hub
from tiny_runs import dates, tiny_run

__all__ = ["dates", "tiny_run"]  # fixtures

TOKEN = "hf_ada"  # of the user ada


@pytest.fixture(scope="session")
def served_hub() -> Iterator[LoopbackHub]:
    with loopback_hub(ada=TOKEN, eve="hf_eve") as served:
        yield served


@pytest.fixture
def hub(served_hub: LoopbackHub) -> LoopbackHub:
    served_hub.forget()
    return served_hub


def outside_variables() -> dict[str, str]:
    """The environment without what concerns the Hub and this interpreter."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}


@pytest.fixture(scope="session")
def python_without_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new virtual environment that has all packages of this one but the plugin."""
    folder = tmp_path_factory.mktemp("fresh") / "environment"
    venv.create(folder, symlinks=True, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    for kind in ("purelib", "platlib"):
        for package in Path(sysconfig.get_path(kind)).iterdir():
            link = packages / package.name
            if "vaswani" not in package.name and package.suffix != ".pth" and not link.exists():
                link.symlink_to(package)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def hub_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder HF_HOME of what `run` runs."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def forking_online(served_hub: LoopbackHub, hub_cache: Path) -> Iterator[ForkingPython]:
    """Copies of a process run commands against the Hub; they share a cache."""
    with ForkingPython(outside_variables() | served_hub.environment(str(hub_cache), token=None)) as python:
        yield python


@pytest.fixture(scope="session")
def forking_without_plugin(
    served_hub: LoopbackHub, tmp_path_factory: pytest.TempPathFactory, python_without_plugin: Path
) -> Iterator[ForkingPython]:
    """Copies of a process of an environment without the plugin; they share another cache."""
    environment = served_hub.environment(str(tmp_path_factory.mktemp("other_cache")), token=None)
    with ForkingPython(outside_variables() | environment, python_without_plugin) as python:
        yield python


def run_in_copies(python: ForkingPython, folder: Path) -> Run:
    def run_copy(
        arguments: list[str], *, token: str | None = TOKEN, expected: int = 0
    ) -> subprocess.CompletedProcess[str]:
        result = python.run(arguments, folder, {} if token is None else {"HF_TOKEN": token})
        assert result.returncode == expected, result.stderr + result.stdout
        return result

    return run_copy


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path, forking_online: ForkingPython) -> Run:
    """Run a command of `vaswani`, or `-c CODE`, against the Hub."""
    return run_in_copies(forking_online, tmp_path)


@pytest.fixture
def run_without_plugin(hub: LoopbackHub, tmp_path: Path, forking_without_plugin: ForkingPython) -> Run:
    """Run `-c CODE` against the Hub where there is no plugin."""
    return run_in_copies(forking_without_plugin, tmp_path)


@pytest.fixture
def run_python(hub: LoopbackHub, tmp_path: Path) -> Run:
    """Run `python ARGUMENTS` against the Hub, in a process with variables and a cache of its own."""

    def run_process(
        *arguments: str,
        python: Path | str = sys.executable,
        cache: str = "cache",
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        environment = hub.environment(str(tmp_path / cache), TOKEN) | variables
        result = subprocess.run(
            [str(python), *arguments],
            env=outside_variables() | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr + result.stdout
        return result

    return run_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    processes = {"run", "run_python", "run_without_plugin", "python_without_plugin"}  # fixtures
    for item in items:
        is_here = item.path.is_relative_to(Path(__file__).parent)
        if is_here and processes & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
