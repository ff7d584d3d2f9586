"""Atomic writing of files and folders, and their hashes."""

import hashlib
import os
import re
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vaswani.errors import RunError, UserError, is_full_disk, one_line
from vaswani.files.json_files import finite_json, without_non_finite

_HOST = socket.gethostname()[:40]
_UNFINISHED = "unfinished-"
_CONFIGURATION = "config.json"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically and durably; safe with concurrent writers.

    Raises:
        OSError: the file cannot be written; the old file stays.
    """
    unfinished = unfinished_path(path)
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, atomically, with null in place of NaN and infinity."""
    text = finite_json(without_non_finite(value), indent=2, ensure_ascii=False) + "\n"
    write_whole(path, text.encode())


def unfinished_path(path: Path) -> Path:
    """Return the temporary path of this thread for a file or folder (see `discard_unfinished`)."""
    owner = f"{_HOST}-{os.getpid()}-{threading.get_native_id()}"
    return path.with_name(f"{_UNFINISHED}{owner}-{path.name[:40]}")


def discard_unfinished(folder: Path) -> None:
    """Delete temporary files that dead processes of this machine left in a folder."""
    if os.name != "posix":  # other systems have no harmless test for a process
        return
    for path in folder.glob(f"{_UNFINISHED}*"):
        owner = re.match(rf"{_UNFINISHED}{re.escape(_HOST)}-(\d+)-\d+-", path.name)
        if owner and not _is_alive(int(owner[1])):
            remove(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        return True
    return True


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder with its contents; ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows cannot open folders
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_empty(output: Path, what: str) -> None:
    """Raise a UserError unless a folder is empty or does not exist yet.

    Args:
        output: the folder.
        what: the content, for the message, such as "the student".
    """
    if not os.path.lexists(output):
        return
    if not output.is_dir():
        raise UserError(f"output {output} is not an empty folder; give another one for {what} (it is a file)")
    names = sorted(path.name for path in output.iterdir())
    if names:
        reason = f"it holds {names[0]!r}"
        if any(name.startswith(_UNFINISHED) for name in names):
            reason = "a command was interrupted there, or is at work; if none is, delete the folder"
        raise UserError(f"output {output} is not an empty folder; give another one for {what} ({reason})")


@contextmanager
def whole_folder(output: Path, what: str) -> Iterator[Path]:
    """Yield a temporary folder whose files move into `output` when the block succeeds.

    After an error nothing is left, so the same command can be repeated. What a killed process leaves is not a
    model, because its configuration is missing.

    Args:
        output: a folder that is empty or does not exist yet; it may be a mount point.
        what: the content, for messages, such as "the student".

    Raises:
        UserError: `output` is not empty, or cannot be created.
        RunError: the files cannot be written.
    """
    moved: list[Path] = []
    unfinished, made = _make_unfinished(output, what)
    try:
        yield unfinished
        for path in unfinished.rglob("*"):
            sync(path)
        # Nothing loads a model without its configuration, which is therefore the last.
        for path in sorted(unfinished.iterdir(), key=lambda path: (path.name == _CONFIGURATION, path.name)):
            moved.append(path.rename(output / path.name))
        unfinished.rmdir()
        sync(output)
    except BaseException as error:
        _remove_all([unfinished, *moved], made)
        # safetensors raises its own error class for errors of the system.
        if isinstance(error, OSError) or is_full_disk(error) or "I/O error" in str(error):
            reason = "no space left on its disk" if is_full_disk(error) else one_line(error)
            raise RunError(f"cannot write {what} into {output}: {reason}; nothing was saved") from error
        raise


def check_output_folder(output: Path, what: str) -> None:
    """Raise a UserError unless `whole_folder` can create the folder and write into it."""
    unfinished, made = _make_unfinished(output, what)
    _remove_all([unfinished], made)


def _make_unfinished(output: Path, what: str) -> tuple[Path, list[Path]]:
    """Return a new folder in `output`, and the folders that were created for it, deepest first."""
    if "\ufffd" in os.fsencode(output).decode(errors="replace"):
        raise UserError(f"output {output} has a name that is not UTF-8; give another one for {what}")
    made = [folder for folder in (output, *output.absolute().parents) if not os.path.exists(folder)]
    unfinished = unfinished_path(output / "folder")
    try:
        if output.is_dir() and all(path.name.startswith(_UNFINISHED) for path in output.iterdir()):
            discard_unfinished(output)
        check_empty(output, what)
        unfinished.mkdir(parents=True)
    except OSError as error:
        _remove_all([], made)
        raise UserError(
            f"output {output} cannot be written to ({error.strerror}); give another one for {what}"
        ) from error
    return unfinished, made


def _remove_all(paths: list[Path], empty_folders: list[Path]) -> None:
    for path in paths:
        remove(path)
    for folder in empty_folders:
        with suppress(OSError):
            folder.rmdir()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hash of a file in hexadecimal digits, in bounded memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
