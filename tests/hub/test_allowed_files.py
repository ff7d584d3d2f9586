"""Only files on a list are pushed, and symbolic links are not followed."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import PushToHubMixin

from loopback_hub import LoopbackHub, Run
from tiny_runs import as_flags, leave_out_slow_parts
from toy_translation import save_toy_checkpoint, toy_model
from vaswani.cli import run as run_here
from vaswani.data.tokenization import TARGET_SUBFOLDER
from vaswani.errors import UserError
from vaswani.hub import push as module
from vaswani.hub.push import PUSHED, allowed_files, push_folder
from vaswani.hub.run_metadata import read_run_metadata
from vaswani.training.trainer import publishing
from vaswani.training.trainer.checkpoints import fault_of

SECRET = b"a secret"
HOSTILE = (
    *(".env", ".netrc", "id_rsa", "token", "tokenizer.json.bak", "tokenizer.json~", "Tokenizer.json"),
    *(
        "model.safetensors.secret",
        "notes.txt",
        "vocab",
        "a b.json",
        "-rf",
        "ö.txt",
        "credentials.json",
        ".git",
    ),
    *("training_args.bin", "optimizer.pt", "trainer_state.json", "pytorch_model.bin", "data.csv", "nested"),
)
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
MODEL = {"config.json", "generation_config.json", "model.safetensors"}


def add_hostile_files(folder: Path) -> None:
    for name in HOSTILE:
        (folder / name).write_bytes(SECRET)
    (folder / "nested").unlink()
    (folder / "nested").mkdir()
    for name in ("tokenizer.json", ".env"):
        (folder / "nested" / name).write_bytes(SECRET)
    os.mkfifo(folder / "vocab.txt")  # a name on the list, and nothing that can be read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_toy_checkpoint(tmp_path / "toy", separate=True)


@pytest.mark.slow
def test_only_files_of_known_names_are_allowed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = allowed_files(folder, PUSHED)
    assert set(expected) == {*TOKENIZER, *(f"{TARGET_SUBFOLDER}/{name}" for name in TOKENIZER)} | MODEL - {
        "config.json"
    }
    assert not caplog.records
    add_hostile_files(folder)
    add_hostile_files(folder / TARGET_SUBFOLDER)
    assert allowed_files(folder, PUSHED) == expected
    (message,) = caplog.messages
    assert all(f"'{name}'" in message for name in HOSTILE)
    assert f"in {folder / TARGET_SUBFOLDER} is not pushed" in message


def linkable(folder: Path) -> list[Path]:
    """All that a push reads, in the folder and below it."""
    below = [path for name in MODEL | TOKENIZER for path in folder.rglob(name)]
    return [
        *below,
        *(folder / name for name in module._READ),
        folder / TARGET_SUBFOLDER,
        folder / "vocab.txt",
    ]


@pytest.mark.parametrize("lead_to", ["a file elsewhere", "the file itself", "nowhere"])
def test_no_link_is_followed(folder: Path, tmp_path: Path, lead_to: str) -> None:
    outside = tmp_path / "outside"
    for path in linkable(folder):
        facts = read_run_metadata(folder)
        outside.mkdir()
        existed = path.exists()
        if existed:
            path.rename(outside / path.name)
        if lead_to == "a file elsewhere":
            (outside / "secret").write_bytes(SECRET)
            path.symlink_to(outside / "secret")
        else:
            path.symlink_to(outside / path.name if lead_to == "the file itself" else outside / "nothing")
        with pytest.raises(UserError) as failed:
            push_folder(folder, "ada/toy", facts)
        assert str(failed.value).startswith(f"{path} is a symbolic link, and links are not pushed")
        path.unlink()
        if existed:
            (outside / path.name).rename(path)
        (outside / "secret").unlink(missing_ok=True)
        outside.rmdir()


def dead_process_id() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


@pytest.mark.slow
def test_a_checkpoint_is_pushed_with_its_training_state_only(
    tiny_run: dict, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The copy that a training pushes of a checkpoint holds all that its manifest names, and is whole."""
    leave_out_slow_parts()
    assert run_here(["train", *as_flags({**tiny_run, "max_steps": 3, "hub_token": "hf_secret"})]) == 0
    run_folder = Path(tiny_run["output_dir"])
    checkpoint = run_folder / "checkpoint-3"
    names = {str(path.relative_to(checkpoint)): path for path in checkpoint.rglob("*") if path.is_file()}
    own = {name: path.read_bytes() for name, path in names.items()}
    add_hostile_files(checkpoint)
    for name in ("optimizer.pt", "trainer_state.json"):
        (checkpoint / name).write_bytes(own[name])  # hostile files took the place of its own
    config = read_run_metadata(checkpoint).config
    copy = publishing._linked_copy(checkpoint, config)
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert copied == own.keys() - {"training_args.bin"}
    assert fault_of(copy) is None
    assert not any(SECRET in (copy / name).read_bytes() for name in copied)
    left = copy.with_name(copy.name.replace(f"-{os.getpid()}-", f"-{dead_process_id()}-"))
    copy.rename(left)  # as of a training that was killed while it pushed
    publishing._linked_copy(checkpoint, config)
    assert not left.exists()
    (checkpoint / "vocab.txt").unlink()
    (checkpoint / "vocab.txt").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"vocab\.txt is a symbolic link"):
        publishing._linked_copy(checkpoint, config)


@pytest.mark.slow
def test_no_file_of_a_run_holds_the_token(tiny_run: dict) -> None:
    leave_out_slow_parts()
    assert run_here(["train", *as_flags({**tiny_run, "max_steps": 3, "hub_token": "hf_secret"})]) == 0
    files = [path for path in Path(tiny_run["output_dir"]).rglob("*") if path.is_file()]
    assert {"training_args.bin", "training_config.yaml"} <= {path.name for path in files}
    assert not [path for path in files if b"hf_secret" in path.read_bytes()]


def test_a_model_saved_beside_other_files_pushes_only_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: list[str] = []

    def upload(self: Any, folder: str, repo: str, files_timestamps: dict[str, float], **options: Any) -> None:
        newer = (path for path in Path(folder).iterdir() if path.exists())
        pushed.extend(
            path.name for path in newer if path.stat().st_mtime > files_timestamps.get(path.name, 0)
        )

    monkeypatch.setattr(PushToHubMixin, "_upload_modified_files", upload)
    monkeypatch.setattr("vaswani.hub.plain_card.HfApi.file_exists", lambda *arguments, **options: True)
    model = toy_model()
    model.save_pretrained(tmp_path)
    add_hostile_files(tmp_path)
    (tmp_path / "model-link.safetensors").symlink_to("/etc/passwd")
    model._upload_modified_files(tmp_path, "ada/toy", {}, token=None)
    code = {path.name for path in module.code_files(model.config)}
    assert set(pushed) == MODEL | code


@pytest.mark.slow
def test_a_push_and_a_training_publish_only_allowed_files(
    hub: LoopbackHub, run: Run, tmp_path: Path, folder: Path, tiny_run: dict
) -> None:
    add_hostile_files(folder)
    add_hostile_files(folder / TARGET_SUBFOLDER)
    warned = run(["push", "--model", str(folder), "--repo", "toy"]).stderr
    assert "'.env'" in warned
    published = hub.files("ada/toy")
    code = {path.name for path in module.code_files(toy_model().config)}
    target = {f"{TARGET_SUBFOLDER}/{name}" for name in TOKENIZER}
    assert set(published) == {*MODEL, *TOKENIZER, *target, *code, "README.md"}
    assert not any(SECRET in content for content in published.values())

    os.symlink("/etc/passwd", folder / TARGET_SUBFOLDER / "merges.txt")
    failed = run(["push", "--model", str(folder), "--repo", "other"], expected=2)
    assert "merges.txt is a symbolic link" in failed.stderr
    assert "ada/other" not in hub.repositories
