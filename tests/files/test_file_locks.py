"""A file that only one process can open at a time, even if its owner renames or deletes it."""

import os
from pathlib import Path

import pytest

from vaswani.files.file_locks import open_locked


def test_a_locked_file_cannot_be_opened_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = open_locked(path)
    with pytest.raises(BlockingIOError):
        open_locked(path)
    os.close(descriptor)
    os.close(open_locked(path))


@pytest.mark.parametrize("is_renamed", [True, False])
def test_a_file_renamed_or_deleted_before_locking_is_not_overwritten(
    is_renamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, final = tmp_path / "file.partial", tmp_path / "file"
    path.write_text("whole")
    calls = []

    def flock(descriptor: int, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:  # between opening and locking
            path.rename(final) if is_renamed else path.unlink()

    monkeypatch.setattr("fcntl.flock", flock)
    descriptor = open_locked(path)
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert len(calls) == 2
    assert path.read_text() == "new"
    assert not is_renamed or final.read_text() == "whole"
