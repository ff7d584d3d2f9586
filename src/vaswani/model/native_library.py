# Copyright 2026 The vaswani authors.
# Licensed under the Apache License, Version 2.0.
"""C++ that is compiled on the machine it runs on, where there is a compiler, as `torch.compile` does.

The library lies in the user's cache, under a name that changes with the source, the compiler and what it is
told. Without a compiler, elsewhere than on Linux, on a processor without AVX2, and with `VASWANI_COMPILE=0`
in the environment there is none, and PyTorch's operators do the work.
"""

import atexit
import ctypes
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import torch

logger = logging.getLogger(__name__)

COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fopenmp", "-mtune=native", "-fPIC", "-shared")
TARGETS = {  # what PyTorch found the processor to be capable of
    "AVX2": ("-mavx2", "-mfma", "-mf16c"),
    "AVX512": ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"),
}
SECONDS = 120  # a compiler may take; it takes two or three


class _NothingToCompile(Exception):  # noqa: N818  # no error: most machines have no compiler
    """This machine compiles nothing, and why."""


def native_library(source: Path) -> ctypes.CDLL | None:
    """The library of a C++ file, which is compiled if the cache has none; None where that cannot be.

    Why it cannot be is logged: as a warning when the compiler failed, else as information.
    """
    try:
        return ctypes.CDLL(str(_compiled(source, _command(source))))
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


def _command(source: Path) -> list[str]:
    """The compiler and what it is told, but for the files."""
    if os.environ.get("VASWANI_COMPILE") == "0":
        raise _NothingToCompile("VASWANI_COMPILE is 0")
    if sys.platform != "linux":
        raise _NothingToCompile(f"{sys.platform} is not linux")
    if not source.is_file():  # as in a model's code that came from the Hub
        raise _NothingToCompile("its source is not there")
    target = TARGETS.get(torch.backends.cpu.get_cpu_capability())
    if target is None:
        raise _NothingToCompile(f"the processor has none of {', '.join(TARGETS)}")
    compiler = shlex.split(os.environ.get("CXX", "")) or list(filter(None, map(shutil.which, COMPILERS)))[:1]
    if not compiler:
        raise _NothingToCompile(f"there is no C++ compiler, neither CXX nor {', '.join(COMPILERS)}")
    return [*compiler, *FLAGS, *target]


def _compiled(source: Path, command: list[str]) -> Path:
    """The library's path. Several processes may compile it at a time: whoever is last puts it there."""
    version = sha256("\0".join([source.read_text(), *command]).encode()).hexdigest()[:16]
    name = f"{source.stem}-{version}.so"
    folder = _cache()
    if not (folder / name).is_file():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = Path(work, name)
            arguments = [*command, "-o", str(built), str(source)]
            subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=SECONDS)
            built.replace(folder / name)
    return folder / name


def _cache() -> Path:
    """Where libraries are kept: in the user's cache, if the user and nobody else can write there.

    If not, in a folder that ends with the process.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vaswani")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        with tempfile.TemporaryFile(dir=folder):
            if status.st_uid == os.getuid() and not status.st_mode & 0o022:
                return folder
    except OSError:
        pass
    own = tempfile.mkdtemp(prefix="vaswani-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)
