"""A Hub on loopback, and processes that use it: of this environment, or of one without the plugin."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopback_hub import LoopbackHub, Run, loopback_hub
from tiny_runs import dates, tiny_run

__all__ = ["dates", "tiny_run"]  # fixtures

TOKEN = "hf_ada"  # of the user ada


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with loopback_hub(ada=TOKEN, eve="hf_eve") as served:
        yield served


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


@pytest.fixture
def run(hub: LoopbackHub, tmp_path: Path) -> Run:
    """Run Python code, or a command of `vaswani`, against the Hub; give back what it printed."""

    def run_process(
        code: str | list[str],
        *,
        python: Path | str = sys.executable,
        token: str | None = TOKEN,
        cache: str = "cache",
        expected: int = 0,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))
        }
        environment = inherited | hub.environment(str(tmp_path / cache), token) | variables
        command = ["-c", code] if isinstance(code, str) else ["-m", "vaswani.cli", *code]
        result = subprocess.run(
            [str(python), *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )
        assert result.returncode == expected, result.stderr + result.stdout
        return result

    return run_process
