"""C++ is compiled once if possible; otherwise the log gives the reason and results are the same."""

import ctypes
import logging
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vaswani.kernels import native_library as module
from vaswani.kernels.native_library import native_library

SOURCE = 'extern "C" int answer() { return 42; }'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to compile, a separate cache, and a supported processor."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("VASWANI_COMPILE", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(module, "TARGETS", {module.torch.backends.cpu.get_cpu_capability(): ()})
    if not any(map(module.shutil.which, module.COMPILERS)):
        pytest.skip("NO C++ COMPILER, nothing to compile with")
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    return path


def libraries(source: Path) -> list[Path]:
    return sorted(source.parent.glob("cache/vaswani/*.so"))


def test_a_source_is_compiled_once_and_again_after_a_change(source: Path) -> None:
    assert native_library(source).answer() == 42
    (first,) = libraries(source)
    made = first.stat().st_mtime_ns
    assert native_library(source).answer() == 42
    assert first.stat().st_mtime_ns == made
    source.write_text(SOURCE.replace("42", "43"))
    assert native_library(source).answer() == 43
    assert len(libraries(source)) == 2
    assert not [path for path in first.parent.iterdir() if path.suffix != ".so"]  # nothing is left lying


def test_structures_of_other_sizes_are_refused(source: Path) -> None:
    class _Pair(ctypes.Structure):
        _fields_ = (("first", ctypes.c_int64), ("second", ctypes.c_int64))

    source.write_text(f'{SOURCE}\nextern "C" long long vaswani_size_of_Pair() {{ return 16; }}')
    assert native_library(source, structures=[_Pair]) is not None
    source.write_text(source.read_text().replace("16", "24"))
    with pytest.raises(
        RuntimeError, match=r"Pair has 24 bytes in answer\.cpp and 16 bytes in test_native_lib"
    ):
        native_library(source, structures=[_Pair])


def test_concurrent_compilations_share_one_library(source: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert [each.answer() for each in pool.map(native_library, [source] * 6)] == [42] * 6
    assert len(libraries(source)) == 1


def test_the_compiler_can_be_chosen(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = module._command(source)
    monkeypatch.setenv("CXX", f"{first} -DUNUSED=1")
    assert native_library(source).answer() == 42
    monkeypatch.delenv("CXX")
    native_library(source)
    assert len(libraries(source)) == 2


def test_a_compiler_failure_is_logged(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    source.write_text("this is no C++")
    assert native_library(source) is None
    assert "answer.cpp could not be compiled" in caplog.text
    assert "error" in caplog.text
    assert "VASWANI_COMPILE=0 to compile nothing" in caplog.text
    assert not libraries(source)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "c++ 'no end"])
def test_an_invalid_compiler_is_logged(
    compiler: str, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert native_library(source) is None
    assert "could not be compiled" in caplog.text
    assert ("No closing quotation" if "'" in compiler else compiler) in caplog.text


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        ("switch", "VASWANI_COMPILE is 0"),
        ("platform", "darwin is not linux"),
        ("processor", "the processor has none of AVX2"),
        ("source", "its source is not there"),
        ("compiler", "there is no C\\+\\+ compiler"),
    ],
)
def test_unavailable_compilation_starts_no_compiler(
    obstacle: str,
    reason: str,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=module.__name__)
    if obstacle == "switch":
        monkeypatch.setenv("VASWANI_COMPILE", "0")
    elif obstacle == "platform":
        monkeypatch.setattr(module.sys, "platform", "darwin")
    elif obstacle == "processor":
        monkeypatch.setattr(module, "TARGETS", {"AVX2": ()})
        monkeypatch.setattr(module.torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX")
    elif obstacle == "source":
        source.unlink()
    else:
        monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(module.subprocess, "Popen", None)
    assert native_library(source) is None
    assert re.search(reason, caplog.text)


def test_an_unwritable_cache_still_gives_a_library(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = source.parent / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert native_library(source).answer() == 42


def test_a_cache_that_others_can_write_is_not_trusted(source: Path) -> None:
    folder = source.parent / "cache" / "vaswani"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert native_library(source).answer() == 42
    assert not libraries(source)


COMPUTE = """
import torch
from vaswani.kernels import sparse_native
from vaswani.kernels.registry import hook_in_kernels
from vaswani.kernels.sparse_attention import sparse_attention
from vaswani.model.sparse_pattern import SparsePattern
hook_in_kernels()
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 1000, 16, requires_grad=True) for _ in range(3)]
output = sparse_attention(*inputs, SparsePattern(2, 16))
output.square().sum().backward()
print(sparse_native.library() is None, output.sum().item(), *(each.grad.norm().item() for each in inputs))
"""


@pytest.mark.process
@pytest.mark.slow
def test_sparse_attention_gives_the_same_results_without_the_library() -> None:
    results = []
    for switch in ("1", "0"):
        environment = {**os.environ, "VASWANI_COMPILE": switch}
        command = [sys.executable, "-c", COMPUTE]
        run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        results.append(run.stdout.split())
    assert results[1][0] == "True"
    assert list(map(float, results[0][1:])) == pytest.approx(list(map(float, results[1][1:])), rel=1e-4)
