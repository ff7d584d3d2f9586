"""Ways to damage a file that a program wrote and reads again; and a child process that reads it."""

import os
import resource
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

ANOTHER_USER = 12345  # who owns nothing else
ROOM = 2 << 30  # bytes that a child may add to what this process has mapped
SECONDS = 60  # that it may take


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(b"\x93garbage\n" * 100)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT gives files to another user")
    os.chown(path, ANOTHER_USER, ANOTHER_USER)


def put_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_text("inside")


def put_a_broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def put_a_pipe(path: Path) -> None:
    """A named pipe, at which a reader would wait."""
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    damage.__name__: damage
    for damage in (
        *(cut, empty, flip_a_bit, fill_with_garbage, lengthen, give_away),
        *(Path.unlink, put_a_folder, put_a_broken_link, put_a_pipe),
    )
}


def restore(path: Path, content: bytes) -> None:
    """Put a file back as it was."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def status_of_child(work: Callable[[], int]) -> int:
    """Run a function in a fork of this process, in bounded time and memory; return its exit status."""
    child = os.fork()
    if not child:
        status = 99
        try:
            signal.alarm(SECONDS)
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, mapped + ROOM))
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
