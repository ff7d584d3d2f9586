"""Compile C++ code on the machine it runs on, if there is a compiler, as `torch.compile` does.

The library is stored in the user's cache, under a name that changes with the source, the compiler and its
options. Without a compiler, outside Linux, on a processor without AVX2, and with `VASWANI_COMPILE=0` in the
environment there is no library, and PyTorch's operators compute instead.
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
TARGETS = {  # by the processor's capability, as PyTorch reports it
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
}
SECONDS = 30  # time limit of the compiler; it usually takes two or three
MAX_OUTPUT_CHARACTERS = 2000  # characters of a failed compiler's messages


class _NothingToCompile(Exception):  # noqa: N818  # not an error: most machines have no compiler
    """Nothing is compiled on this machine; the message says why."""


def native_library(
    source: Path, *, structures: Sequence[type[ctypes.Structure]] = (), **functions: Sequence[Any]
) -> ctypes.CDLL | None:
    """Return the library of a C++ file, compiled if the cache does not have it; None if that fails.

    Logs the reason for None: as a warning if the compiler failed, else as information.

    Args:
        source: the C++ file.
        structures: Python's copies of the file's structures. For `_NAME`, the file has a function
            `vaswani_size_of_NAME`, which returns the size of its structure `NAME`.
        functions: for each function that returns nothing, the types of its arguments.

    Raises:
        RuntimeError: a structure and its copy differ in size.
    """
    try:
        library = _library(source, _command(source))
        for name, types in functions.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, None
        for structure in structures:
            _check_size(library, structure, source)
        return library
    except _NothingToCompile as reason:
        logger.info("%s is not compiled, as %s. PyTorch's operators compute.", source.name, reason)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning(
            "%s could not be compiled, and PyTorch's operators compute instead, more slowly: %s %s\n"
            "Set CXX to another compiler, or VASWANI_COMPILE=0 to compile nothing.",
            source.name,
            error,
            getattr(error, "stderr", None) or "",
        )
    return None


def _check_size(library: ctypes.CDLL, structure: type[ctypes.Structure], source: Path) -> None:
    """Raise RuntimeError unless a structure has the same size in Python and in C++."""
    name = structure.__name__.removeprefix("_")
    size_of: Any = getattr(library, f"vaswani_size_of_{name}")
    size_of.restype = ctypes.c_int64
    if (native := size_of()) != (own := ctypes.sizeof(structure)):
        raise RuntimeError(
            f"{name} has {native} bytes in {source.name} and {own} bytes in {structure.__module__}; "
            "give both the same fields in the same order"
        )


def why_not_compiled(source: Path) -> str | None:
    """Return why a C++ file is not compiled on this machine, or None if it can be."""
    try:
        _command(source)
    except _NothingToCompile as reason:
        return str(reason)
    return None


def _command(source: Path) -> list[str]:
    """Return the compiler and its options, without the files."""
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
    """Load the library from the cache; or compile it, load it, and then store it in the cache."""
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
    """Run the compiler; kill it and its child processes if it takes too long."""
    with tempfile.TemporaryDirectory(prefix="vaswani-") as work:
        built, log = Path(work, "library.so"), Path(work, "messages.txt")
        arguments = [*command, "-o", str(built), str(source)]
        with log.open("wb") as messages:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": messages, "stderr": messages}
            process = subprocess.Popen(arguments, **streams, start_new_session=True)
            try:
                status = process.wait(SECONDS)
            except BaseException:  # the compiler hangs, or Ctrl-C
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
        if status:
            said = log.read_text(errors="replace")[:MAX_OUTPUT_CHARACTERS]
            raise subprocess.CalledProcessError(status, arguments, stderr=said)
        return built.read_bytes()


def _load(content: bytes, name: str) -> ctypes.CDLL:
    """Load a library from memory, so that a file changed after the check is never loaded."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC) if hasattr(os, "memfd_create") else _unnamed_file()
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    # It stays open: if another library got its number, the linker would mistake that library for this one.
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def _unnamed_file() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
