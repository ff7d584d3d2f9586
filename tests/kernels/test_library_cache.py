"""Compiled libraries are loaded only if undamaged and owned by the user; else they are compiled again."""

import logging
import os
import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from test_native_library import libraries, source

from damage import ANOTHER_USER, DAMAGES, give_away, status_of_child
from vaswani.kernels import native_library as module
from vaswani.kernels.native_library import native_library

__all__ = ["source"]  # fixture

ANSWER, PLANTED = 42, 66


@pytest.fixture
def answer(source: Path) -> Callable[[], tuple[int, list[str]]]:
    """Load the library in a process of its own: what it answers, and the warnings."""
    log = source.with_name("warnings.txt")

    def work() -> int:
        logging.getLogger("vaswani").addHandler(logging.FileHandler(log))
        library = native_library(source)
        return 98 if library is None else library.answer()

    def load() -> tuple[int, list[str]]:
        log.write_text("")
        return status_of_child(work), log.read_text().splitlines()

    return load


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_compiled_again(
    damage: str, source: Path, answer: Callable[[], tuple[int, list[str]]]
) -> None:
    assert answer() == (ANSWER, [])
    (library,) = libraries(source)
    content = library.read_bytes()
    DAMAGES[damage](library)
    result, warnings = answer()
    assert result == ANSWER
    assert len(warnings) == (damage != "unlink")
    assert all(str(library) in line and "compiled again" in line for line in warnings)
    assert library.read_bytes() == content
    assert answer() == (ANSWER, [])


def plant(source: Path) -> Path:
    """A whole library of the right name that gives another answer."""
    (library,) = libraries(source)
    other = source.with_name("other.cpp")
    other.write_text(source.read_text().replace(str(ANSWER), str(PLANTED)))
    content = module._compile(other, module._command(other))
    planted = library.with_name(f"{library.stem.rpartition('-')[0]}-{sha256(content).hexdigest()}.so")
    library.unlink()
    planted.write_bytes(content)
    planted.chmod(0o600)
    return planted


@pytest.mark.parametrize("target", ["file", "folder"])
@pytest.mark.parametrize(
    ("hostile", "words"),
    [
        (give_away, f"it belongs to another user ({ANOTHER_USER})"),
        (lambda path: path.chmod(0o777), "other users can write to it (mode 0777)"),
        (lambda path: path.chmod(0o720), "other users can write to it (mode 0720)"),
    ],
    ids=["owner", "all", "group"],
)
def test_a_library_writable_by_another_user_is_not_loaded(
    hostile: Callable[[Path], None],
    words: str,
    target: str,
    source: Path,
    answer: Callable[[], tuple[int, list[str]]],
) -> None:
    answer()
    planted = plant(source)
    assert answer() == (PLANTED, [])  # else it would be
    hostile(planted if target == "file" else planted.parent)
    result, warnings = answer()
    assert result == ANSWER
    assert len(warnings) == 1
    assert str(planted if target == "file" else planted.parent) in warnings[0]
    assert words in warnings[0]
    assert ("set XDG_CACHE_HOME" in warnings[0]) == (target == "folder")


def test_a_symbolic_link_to_the_cache_folder_is_not_followed(
    source: Path, answer: Callable[[], tuple[int, list[str]]]
) -> None:
    answer()
    plant(source)
    folder = source.parent / "cache" / "vaswani"
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))
    result, warnings = answer()
    assert result == ANSWER
    assert len(warnings) == 1
    assert str(folder) in warnings[0]


def test_cache_files_are_private_for_any_umask(
    source: Path, answer: Callable[[], tuple[int, list[str]]]
) -> None:
    mask = os.umask(0)
    try:
        assert answer() == (ANSWER, [])
    finally:
        os.umask(mask)
    (library,) = libraries(source)
    assert library.stat().st_mode & 0o777 == 0o600
    for folder in (library.parent, library.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    library.parent.chmod(0o755)
    assert answer() == (ANSWER, [])
    assert library.parent.stat().st_mode & 0o777 == 0o700


def test_an_unwritable_folder_gives_one_warning_and_its_libraries_load(
    source: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], tuple[int, list[str]]]
) -> None:
    answer()
    for cache in ("/proc/nowhere", "relative"):
        with monkeypatch.context() as patched:
            patched.setenv("XDG_CACHE_HOME", cache)
            result, warnings = answer()
            assert result == ANSWER
            assert len(warnings) == 1
            assert f"{cache}/vaswani" in warnings[0]
            assert "set XDG_CACHE_HOME" in warnings[0]
    assert not Path("relative").exists()


def test_a_library_that_does_not_load_is_deleted(
    source: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], tuple[int, list[str]]]
) -> None:
    compiler = source.with_name("compiler")
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nonsense > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    result, warnings = answer()
    assert result == 98
    assert "could not be compiled" in warnings[0]
    assert not libraries(source)


def test_a_hanging_compiler_is_stopped_with_its_child_processes(
    source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler, started = source.with_name("compiler"), source.with_name("pid")
    compiler.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {started}\nwait\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(module, "SECONDS", 0.5)
    assert native_library(source) is None
    assert len(caplog.records) == 1
    assert "timed out after 0.5 seconds" in caplog.text
    for _ in range(100):  # the kill takes effect in a moment
        try:
            os.kill(int(started.read_text()), 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        os.kill(int(started.read_text()), signal.SIGKILL)
        raise AssertionError("What the compiler has started goes on.")
