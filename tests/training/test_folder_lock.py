"""Two runs in one folder: the second is refused, and an owner that died does not block."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest

from rank_processes import CONTEXT
from tiny_runs import as_flags
from vaswani.cli import run
from vaswani.errors import UserError
from vaswani.training.runs.folder_lock import LOCK_FILE, only_run_in

pytestmark = pytest.mark.process


def own(folder: Path, forks: bool = False) -> None:
    """Hold the folder until this process is killed."""
    with only_run_in(folder):
        if forks and not os.fork():
            time.sleep(60)
            os._exit(0)
        (folder / "begun").touch()
        time.sleep(60)


def started(folder: Path, **options: bool):
    process = CONTEXT.Process(target=own, args=(folder,), kwargs=options)
    process.start()
    while not (folder / "begun").exists():
        time.sleep(0.01)
    return process


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("command", ["train", "distill", "pretrain", "finetune"])
def test_a_folder_in_use_by_a_run_is_refused_before_reading_data(
    folder, tiny_run, monkeypatch, capsys, command
):
    for module in ("vaswani.training.runs.base.load_corpus", "vaswani.training.runs.pretraining.load_corpus"):
        monkeypatch.setattr(module, lambda *_: pytest.fail("the corpus was read"), raising=False)
    options = {name: tiny_run[name] for name in ("train_file", "validation_file", "use_cpu")}
    options |= {
        "train": {},
        "distill": {"teacher": str(folder / "nowhere")},
        "pretrain": {"objective": "masked"},
        "finetune": {"model": str(folder / "nowhere"), "task": "classification"},
    }[command]
    owner = started(folder)
    before = contents(folder)
    for resume in ("false", "true"):
        options |= {"output_dir": str(folder), "resume_from_checkpoint": resume}
        assert run([command, *as_flags(options)]) == 2
        assert capsys.readouterr().err == (
            f"vaswani: output_dir={folder} is in use by process {owner.pid} on {socket.gethostname()}: wait "
            "until that run ends, stop it, or choose another --output_dir\n"
        )
    assert contents(folder) == before
    owner.kill()
    owner.join()


def test_a_killed_owner_with_living_forks_does_not_block_the_folder(folder):
    owner = started(folder, forks=True)
    with pytest.raises(UserError, match=f"in use by process {owner.pid} on "), only_run_in(folder):
        pass
    os.kill(owner.pid, signal.SIGKILL)
    owner.join()
    with only_run_in(folder):
        assert (folder / LOCK_FILE).read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
    assert not (folder / LOCK_FILE).exists()


def take_turns(folder: Path, turns: int) -> None:
    while turns:
        try:
            with only_run_in(folder):
                inside = os.open(folder / "inside", os.O_CREAT | os.O_EXCL)
                os.close(inside)
                (folder / "inside").unlink()
                turns -= 1
        except UserError:
            time.sleep(0.0001)


def test_deleting_lock_files_never_admits_two_owners(folder):
    processes = [CONTEXT.Process(target=take_turns, args=(folder, 200)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert not folder.exists() or not list(folder.iterdir())


def test_a_folder_removed_during_creation_is_created_again(folder, monkeypatch):
    mkdir, calls = os.mkdir, []

    def removed_by_another(path: Path, *rest: int) -> None:
        calls.append(path)
        if len(calls) < 3:
            raise FileExistsError(17, "File exists", str(path))
        mkdir(path, *rest)

    monkeypatch.setattr("os.mkdir", removed_by_another)
    with only_run_in(folder):
        assert calls == [folder] * 3
    assert not folder.exists()


@pytest.mark.parametrize("below", [".", "of/runs"])
@pytest.mark.parametrize("other", [Path.touch, lambda path: path.symlink_to(path.parent / "nowhere")])
def test_a_path_that_is_not_a_folder_raises_an_error(folder, other, below):
    other(folder)
    with pytest.raises(OSError), only_run_in(folder / below):  # noqa: PT011 - the system says which
        pass


def test_a_refused_run_leaves_no_folder(folder, tiny_run, capsys):
    options = {**tiny_run, "output_dir": str(folder / "of" / "runs"), "max_tokens_per_batch": 5}
    assert run(["train", *as_flags(options)]) == 2
    assert "max_tokens_per_batch=5 is too small" in capsys.readouterr().err
    assert not folder.exists()


def test_a_file_system_without_locks_gives_a_warning(folder, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    warnings: list[str] = []
    monkeypatch.setattr("vaswani.files.file_locks.logger.warning", warnings.append)
    with only_run_in(folder):
        assert folder.is_dir()
    path = folder / LOCK_FILE
    assert warnings == [
        f"{path} cannot be locked (Function not implemented): see that nobody else writes there."
    ]
