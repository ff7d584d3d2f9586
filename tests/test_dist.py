"""The wheel and the source distribution hold all that is needed: both are installed in fresh environments."""

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import vaswani
from tiny_runs import TINY_RUN, as_flags, dates

__all__ = ["dates"]

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
NOT_DISTRIBUTED = {".gitignore", ".pre-commit-config.yaml"}
USE = """
import vaswani
from transformers import AutoModelForSeq2SeqLM
assert "site-packages" in vaswani.__file__, vaswani.__file__
model = AutoModelForSeq2SeqLM.from_pretrained("runs/dates")
print(type(model).__name__, vaswani.__version__)
print(vaswani.Translator.from_pretrained("runs/dates")(["27. Januar 1999"]))
"""


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command as a user would, without this project on any path, and return what it prints."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a distribution of the project in a folder, and return its file."""
    run([sys.executable, "-m", "hatchling", "build", "-d", target, "-t", kind], source)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.environ.get("CI"):
        import hatchling  # noqa: F401
    pytest.importorskip("hatchling", reason="hatchling builds distributions; pip install hatchling")
    return build(ROOT, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as the source distribution brings it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"vaswani-{vaswani.__version__}"


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built from the source distribution, as pip does."""
    return build(unpacked, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel; its dependencies are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    installer = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    run([*installer, "--no-deps", "--no-index", wheel], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file: the project's own .pth file in there, of an editable install, is not read.
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "lent.pth").write_text("\n".join(lent))
    return folder / "bin"


def tracked(folder: str = ".") -> set[str]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no clone of the repository: what belongs to the project is not known")
    return set(listed.stdout.splitlines())


def test_the_sdist_holds_the_project(unpacked: Path) -> None:
    held = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert tracked() - NOT_DISTRIBUTED <= held
    assert not {name for name in held if name.startswith(("runs/", "dist/")) or ".source/" in name}


def test_the_wheel_holds_the_package(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {name.removeprefix("src/") for name in tracked("src")} <= held
    assert {name.split("/")[0] for name in held} == {"vaswani", f"vaswani-{vaswani.__version__}.dist-info"}
    assert wheel.name == f"vaswani-{vaswani.__version__}-py3-none-any.whl"


def test_the_wheel_equals_the_wheel_built_from_the_sdist(wheel: Path, tmp_path: Path) -> None:
    archives = [zipfile.ZipFile(path) for path in (wheel, build(ROOT, tmp_path, "wheel"))]
    contents = [{name: archive.read(name) for name in archive.namelist()} for archive in archives]
    assert contents[0] == contents[1]


def test_an_installed_package_trains_and_translates_in_an_empty_folder(
    environment: Path, dates: dict[str, str], tmp_path: Path
) -> None:
    command = environment / "vaswani"
    assert "train" in run([command, "--help"], tmp_path)
    assert "  dates " in run([command, "configs"], tmp_path)
    assert "dataset: dates" in run([command, "configs", "show", "dates"], tmp_path)
    tiny = as_flags({**TINY_RUN, **dates, "max_steps": 2, "max_validation_rows": 5})
    run([command, "train", "--config", "dates", *tiny], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert run([environment / "python", "-c", USE], tmp_path).startswith(
        f"VaswaniForConditionalGeneration {vaswani.__version__}\n["
    )


def test_the_tests_of_the_sdist_run(unpacked: Path) -> None:
    """Some that read configurations, benchmarks and documents; helper modules lie beside them."""
    tests = ["tests/test_configs.py", "tests/test_systems.py", "tests/hub/test_model_card_file.py"]
    code = f"import sys; sys.path.insert(0, 'src'); import pytest; sys.exit(pytest.main(['-q', *{tests}]))"
    assert " passed" in run([sys.executable, "-c", code], unpacked)
