"""Files and folders are written completely or not at all, also on full disks."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import check_empty, check_output_folder, unfinished_path, whole_folder


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def write_folder(output: Path, error: BaseException | None = None) -> None:
    with whole_folder(output, "the model") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("a")
        if error:
            raise error


def test_a_process_that_is_killed_while_it_moves_files_leaves_no_configuration(tmp_path: Path) -> None:
    """At each moment, the folder is either complete or not a model, and the next command reports it."""
    names = ["a.json", "config.json", "model.safetensors", "z.py"]
    for survived in range(len(names) + 1):
        output = tmp_path / str(survived)
        script = f"""
import os
from pathlib import Path
from vaswani.files.atomic_files import whole_folder
rename, left = Path.rename, [{survived}]
def dying(*paths):
    if left[0] == 0:
        os._exit(9)
    left[0] -= 1
    return rename(*paths)
Path.rename = dying
with whole_folder(Path({str(output)!r}), "the model") as folder:
    for name in {names}:
        (folder / name).write_text(name)
os._exit(0)
"""
        status = subprocess.run([sys.executable, "-c", script], check=False).returncode
        assert status == (0 if survived == len(names) else 9)
        found = [name for name in contents(output) if name in names]
        assert len(found) == survived
        assert ("config.json" in found) == (status == 0)
        if 0 < survived < len(names):
            with pytest.raises(UserError, match="a command was interrupted there, or is at work"):
                check_output_folder(output, "the model")


@pytest.mark.parametrize("name", ["new", "new/and/deep", "empty"])
def test_a_folder_is_written_completely_or_left_unchanged(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)
    for error in (OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError("wrong")):
        expected = RunError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            write_folder(tmp_path / name, error)
        assert contents(tmp_path) == before
    write_folder(tmp_path / name)
    assert contents(tmp_path / name) == ["inner", "inner/a"]
    with pytest.raises(UserError, match=r"is not an empty folder; .* \(it holds 'inner'\)"):
        check_empty(tmp_path / name, "the model")


def test_unfinished_files_of_a_killed_process_do_not_block_a_folder(tmp_path: Path, monkeypatch) -> None:
    output = tmp_path / "out"
    output.mkdir()
    with subprocess.Popen(["true"]) as dead:
        pass
    with monkeypatch.context() as other_process:
        other_process.setattr(os, "getpid", lambda: dead.pid)
        unfinished_path(output / "folder").mkdir()
    assert len(contents(output)) == 1
    with whole_folder(output, "the model") as folder:
        (folder / "a").write_text("a")
    assert contents(output) == ["a"]
    unfinished_path(output / "folder").mkdir()  # of a process that lives
    with pytest.raises(UserError, match="not an empty folder"):
        check_empty(output, "the model")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("file/out", "Not a directory"), ("x" * 300, "File name too long"), ("file", None)],
)
def test_an_impossible_output_path_raises_an_error_before_any_work(
    tmp_path: Path, name: str, reason: str
) -> None:
    (tmp_path / "file").write_text("text")
    expected = f"cannot be written to ({reason}); give another one for the model"
    if reason is None:
        expected = "is not an empty folder; give another one for the model (it is a file)"
    for check in (check_output_folder, lambda *given: whole_folder(*given).__enter__()):
        with pytest.raises(UserError) as error:
            check(tmp_path / name, "the model")
        assert str(error.value) == f"output {tmp_path / name} {expected}"
    check_output_folder(tmp_path / "new" / "deep", "the model")
    assert contents(tmp_path) == ["file"]


def test_a_full_disk_raises_an_error_that_names_the_output(tmp_path: Path) -> None:
    with pytest.raises(RunError) as error, whole_folder(tmp_path / "out", "the student"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(error.value) == (
        f"cannot write the student into {tmp_path / 'out'}: no space left on its disk; nothing was saved"
    )


# `student`, `convert` and `combine` on a disk of 100 KiB: statuses, messages and what they leave.
COMMANDS = """
import io, json, os, sys
from contextlib import redirect_stderr
from vaswani.cli import run
told = []
for command in json.loads(sys.argv[1]):
    with redirect_stderr(io.StringIO()) as errors:
        status = run(command)
    told.append([status, errors.getvalue().splitlines()[-1], os.listdir(sys.argv[2])])
print(json.dumps(told))
"""


@pytest.mark.slow
def test_commands_leave_nothing_on_a_full_disk(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    from toy_translation import save_toy_checkpoint, toy_tokenizer
    from vaswani import VaswaniEncoderConfig, VaswaniForMaskedLM

    shape = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    sides = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    save_toy_checkpoint(tmp_path / "translator")
    VaswaniForMaskedLM(VaswaniEncoderConfig(vocab_size=304, d_model=64, **shape)).save_pretrained(
        tmp_path / "encoder"
    )
    toy_tokenizer().save_pretrained(tmp_path / "encoder")
    BertForMaskedLM(BertConfig(vocab_size=400, **sides)).save_pretrained(tmp_path / "bert")
    disk = tmp_path / "disk"
    disk.mkdir()
    commands = [
        ["student", str(disk / "out"), "--teacher", str(tmp_path / "translator")],
        ["convert", str(tmp_path / "bert"), str(disk / "out")],
        ["combine", str(disk / "out"), "--encoder", str(tmp_path / "encoder")],
        ["combine", str(disk), "--encoder", str(tmp_path / "encoder")],  # a mount point
    ]
    mount = f"mount -t tmpfs -o size=100k tmpfs {disk}"
    enter = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*enter, mount], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    arguments = ["sh", sys.executable, "-c", COMMANDS, json.dumps(commands), str(disk)]
    done = subprocess.run(
        [*enter, f'{mount} && "$@"', *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for (status, message, left), command in zip(json.loads(done.stdout), commands, strict=True):
        output = next(argument for argument in command if argument.startswith(str(disk)))
        what = "the student" if command[0] == "student" else "the model"
        assert (status, left) == (1, []), message
        assert message == (
            f"vaswani: cannot write {what} into {output}: no space left on its disk; nothing was saved"
        )


def test_a_disk_error_inside_safetensors_is_reported_the_same_way(tmp_path: Path) -> None:
    told = r"cannot write the model into .*: .*File too large.*; nothing was saved"
    with pytest.raises(RunError, match=told), whole_folder(tmp_path / "out", "the model"):
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")
    assert not (tmp_path / "out").exists()
