"""C++ that is compiled on the machine it runs on, where there is a compiler, as `torch.compile` does.

The library is kept in the user's cache, under a name that changes with the source, the compiler and its
options. Without a compiler, elsewhere than on Linux, on a processor without AVX2, and with
`VASWANI_COMPILE=0` in the environment there is none, and PyTorch's operators do the work.
"""

import ctypes
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from vaswani.kernels.library_cache import LibraryCache

logger = logging.getLogger(__name__)

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fopenmp", "-mtune=native", "-fPIC", "-shared")
TARGETS = {  # what PyTorch found the processor to be capable of
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
}
SECONDS = 30  # a compiler may take; it takes two or three
MOST_SAID = 2000  # characters of what a compiler that fails says


class _NothingToCompile(Exception):  # noqa: N818  # no error: most machines have no compiler
    """This machine compiles nothing, and why."""


def native_library(source: Path, **functions: Sequence[Any]) -> ctypes.CDLL | None:
    """The library of a C++ file, which is compiled if the cache has none; None where that cannot be.

    Why it cannot be is logged: as a warning when the compiler failed, else as information.

    Args:
        source: the C++ file.
        functions: the types of the arguments of its functions that return nothing.
    """
    try:
        library = _library(source, _command(source))
        for name, types in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, None
        return library
    except _NothingToCompile as reason:
        logger.info("%s is not compiled, as %s. PyTorch's operators compute.", source.name, reason)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning(
            "%s could not be compiled, and PyTorch's operators compute instead, more slowly: %s %s\n"
            "Another compiler can be set as CXX; VASWANI_COMPILE=0 goes without.",
            source.name,
            error,
            getattr(error, "stderr", None) or "",
        )
    return None


def why_not_compiled(source: Path) -> str | None:
    """The reason why a C++ file is not compiled on this machine, or None if it can be."""
    try:
        _command(source)
    except _NothingToCompile as reason:
        return str(reason)
    return None


def _command(source: Path) -> list[str]:
    """The compiler and what it is told, but for the files."""
    if os.environ.get("VASWANI_COMPILE") == "0":
        raise _NothingToCompile("VASWANI_COMPILE is 0")
    if sys.platform != "linux":
        raise _NothingToCompile(f"{sys.platform} is not linux")
    if not source.is_file():
        raise _NothingToCompile("its source is not there")
    target = TARGETS.get(torch.backends.cpu.get_cpu_capability())
    if target is None:
        raise _NothingToCompile(f"the processor has none of {', '.join(TARGETS)}")
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(None, map(shutil.which, COMPILERS)))[:1]
    if not compiler:
        raise _NothingToCompile(f"there is no C++ compiler, neither CXX nor {', '.join(COMPILERS)}")
    return [*compiler, *FLAGS, *target]


def _library(source: Path, command: list[str]) -> ctypes.CDLL:
    """The library from the cache, or compiled and, if it can be loaded, kept there."""
    headers = sorted(source.parent.glob("*.h"))
    texts = [file.read_text() for file in (source, *headers)]
    version = sha256("\0".join([*texts, *command]).encode()).hexdigest()[:16]
    name = f"{source.stem}-{version}"
    with LibraryCache() as cache:
        for content in cache.read(name):
            with suppress(OSError):  # compiled on another machine that shares the cache
                return _load(content, name)
        content = _compile(source, command)
        library = _load(content, name)
        cache.write(name, content)
    return library


def _compile(source: Path, command: list[str]) -> bytes:
    """Run the compiler; what it has started goes with it if it takes too long."""
    with tempfile.TemporaryDirectory(prefix="vaswani-") as work:
        built, log = Path(work, "library.so"), Path(work, "messages.txt")
        arguments = [*command, "-o", str(built), str(source)]
        with log.open("wb") as messages:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": messages, "stderr": messages}
            process = subprocess.Popen(arguments, **streams, start_new_session=True)
            try:
                status = process.wait(SECONDS)
            except BaseException:  # it hangs, or Ctrl-C
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
        if status:
            said = log.read_text(errors="replace")[:MOST_SAID]
            raise subprocess.CalledProcessError(status, arguments, stderr=said)
        return built.read_bytes()


def _load(content: bytes, name: str) -> ctypes.CDLL:
    """Load a library from memory, so that what is loaded is what was checked, whatever becomes of files."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _unnamed_file()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    # It stays open: were its number given to another library, the linker would take that for this one.
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
