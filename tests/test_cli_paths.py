"""Every path argument of a command, replaced by an awkward one: a one-line error that names it.

The cases are made from valid commands: each of their paths is replaced by each awkward one.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from every_command import commands, save_models
from vaswani.cli import run

NEW = Path("/new")  # in the place of each case's own folder


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def link(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    return path


AWKWARD: dict[str, Callable[[Path], Path]] = {
    "missing": lambda folder: folder / "no" / "such",
    "binary": lambda folder: write(folder / "binary", bytes(range(256))),
    "empty file": lambda folder: write(folder / "empty", b""),
    "empty folder": lambda folder: (folder / "folder").mkdir() or folder / "folder",
    "below a file": lambda folder: write(folder / "file", b"") / "below",
    "link to nothing": lambda folder: link(folder / "link", folder / "nothing"),
    "link to itself": lambda folder: link(folder / "loop", folder / "loop"),
    "too long": lambda folder: folder / ("x" * 300),
    "not UTF-8": lambda folder: folder / "\udcff",
}
PLACES = [
    (name, place)
    for name, (arguments, _) in commands(Path("/models"), NEW).items()
    for place, argument in enumerate(arguments)
    if argument.startswith("/")
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(("name", "place"), PLACES, ids=str)
def test_awkward_paths_are_accepted_or_give_a_one_line_error(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture, name: str, place: int
) -> None:
    is_output = commands(models, NEW)[name][0][place].startswith(str(NEW))
    for kind, make in AWKWARD.items():
        folder = tmp_path / kind.replace(" ", "_")
        (folder / "new").mkdir(parents=True)
        if name == "compare":
            shutil.copytree(models / "translator", folder / "new" / "student")
        arguments = list(commands(models, folder / "new")[name][0])
        arguments[place] = awkward = str(make(folder))
        capfd.readouterr()
        status = run(arguments)
        output, errors = capfd.readouterr()
        case = f"{kind}: {arguments} ended with {status} and said {errors}"
        assert "Traceback" not in errors, case
        assert "--debug prints" not in errors, case
        if status == 0:
            reads_text = kind in ("binary", "empty file") and name in (
                "translate",
                "summarize",
                "predict",
                "embed",
                "generate",
                "score",
                "align",
            )
            assert is_output or reads_text, case
            continue
        assert status == 2, case
        assert output == "", case
        last = errors.strip().splitlines()[-1]
        assert last.startswith("vaswani: "), case
        if kind != "not UTF-8":  # which is shown otherwise
            assert awkward.removesuffix("/below") in last or Path(awkward).name in last, case
