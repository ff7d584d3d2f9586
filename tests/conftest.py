"""What all tests share: no network, Ctrl-C as users know it, the same numbers in every run, no drawing."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from getpass import getuser
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # some tests import ONNX Runtime before our package does
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# `torch.compile` keeps what it has made for the processor, and uses it again although ATEN_CPU_CAPABILITY has
# changed: code for 8 numbers, compiled for 16, writes behind the end of its tensors.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    f"{tempfile.gettempdir()}/vaswani-tests-{getuser()}-{os.environ.get('ATEN_CPU_CAPABILITY', 'all')}",
)

import pytest
import torch

from forking import ForkingPython, import_everything, leave_out_of_collections
from tiny_runs import leave_out_slow_parts

# A shell ignores Ctrl-C in what it starts in the background, and the processes of tests would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]

leave_out_slow_parts()  # a test that is about them brings them back


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run one case of each test that is not marked slow")
    parser.addoption("--all", action="store_true", help="run what is marked exhaustive, too")


@pytest.hookimpl(trylast=True)  # the folders' own hooks add markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest tests start first, so that no process is left alone with one at the end.
    items.sort(key=lambda item: not (item.get_closest_marker("script") and item.get_closest_marker("slow")))
    if config.getoption("--fast"):
        kept = one_case_of_each_quick_test(items)
    elif config.getoption("--all"):
        return
    else:
        kept = without_exhaustive_cases(items)
    chosen = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept


def one_case_of_each_quick_test(items: list[pytest.Item]) -> list[pytest.Item]:
    """The first case of each test that is neither slow nor starts anything."""
    kept: dict[str, pytest.Item] = {}
    for item in items:
        if not any(
            item.get_closest_marker(name) for name in ("slow", "suite", "process", "script", "browser")
        ):
            kept.setdefault(item.nodeid.partition("[")[0], item)
    return list(kept.values())


def without_exhaustive_cases(items: list[pytest.Item]) -> list[pytest.Item]:
    """All but what `@pytest.mark.exhaustive` leaves out: a test, or its cases after the first so many."""
    cases: Counter[str] = Counter()
    kept = []
    for item in items:
        mark = item.get_closest_marker("exhaustive")
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if mark is None or cases[test] <= mark.kwargs.get("after", 0):
            kept.append(item)
    return kept


def pytest_collection_finish() -> None:
    """Keep imported objects out of garbage collections, of which each training makes one (half a second).

    For a few tests alone, it is not worth importing all.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        import_everything()
    else:
        leave_out_of_collections()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """Leave out of collections what the tests of a file have left behind, such as compiled code.

    Otherwise each training's collection takes longer the more tests have run before it.
    """
    yield
    leave_out_of_collections()


@pytest.fixture(scope="session")
def forking_python() -> Iterator[ForkingPython]:
    """Runs commands and scripts in copies of a process that has done the imports."""
    with ForkingPython(os.environ) as python:
        yield python


@pytest.fixture(scope="session")
def site(forking_python: ForkingPython, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation as a site, with `printed.txt`, what its build printed."""
    folder = tmp_path_factory.mktemp("site")
    arguments = ["docs/build_site.py", "--output", folder / "site", "--staging", folder / "staging"]
    done = forking_python.run([ROOT / arguments[0], *arguments[1:]], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "site" / "printed.txt").write_text(done.stdout + done.stderr)
    return folder / "site"
