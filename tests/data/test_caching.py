"""Cached data is read exactly as written; damaged entries are detected and rebuilt."""

import errno
import logging
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter

from damage import ANOTHER_USER, DAMAGES, fill_with_garbage, restore, status_of_child
from vaswani.data import caching as module
from vaswani.data.caching import LOCKS, MANIFEST, cached_folder
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec, TextCorpusSpec
from vaswani.data.text.sequences import PackedBlocks, make_sequences
from vaswani.data.tokenization import byte_tokenizer
from vaswani.errors import RunError, UserError

ROWS = [(f"source {number} of some", f"target {'word ' * number}") for number in range(12)]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "vaswani"


@pytest.fixture
def spec(tmp_path: Path) -> CorpusSpec:
    for side, texts in zip(("source", "target"), zip(*ROWS, strict=True), strict=True):
        (tmp_path / f"{side}.txt").write_text("".join(f"{text}\n" for text in texts))
    return CorpusSpec(train_file=[str(tmp_path / "source.txt"), str(tmp_path / "target.txt")])


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.name != LOCKS)


def texts(spec: CorpusSpec) -> Dataset:
    return load_corpus(spec).splits["train"]  # type: ignore[return-value]


def tokens(spec: CorpusSpec, **options: Any) -> Dataset:
    tokenizer = byte_tokenizer(purpose="translation")
    return tokenize_corpus(texts(spec), tokenizer, tokenizer, **options)  # type: ignore[return-value]


def sequences(spec: CorpusSpec) -> Dataset:
    corpus = load_corpus(TextCorpusSpec(train_file=spec.train_file[:1]))
    tokenizer = byte_tokenizer(purpose="causal")
    return make_sequences(corpus.splits["train"], tokenizer, PackedBlocks(20))  # type: ignore[return-value]


def truncated(spec: CorpusSpec) -> Dataset:
    return tokens(spec, max_target_length=20, truncated=("target",))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("read", [tokens, truncated, sequences])
def test_a_damaged_file_is_made_again(
    read: Callable[[CorpusSpec], Dataset],
    damage: str,
    cache: Path,
    spec: CorpusSpec,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = read(spec).to_list()
    files = sorted(path for folder in folders(cache) for path in folder.iterdir())
    assert len(files) == {tokens: 5, truncated: 7, sequences: 5}[read]
    for file in files:
        content = file.read_bytes()
        caplog.clear()
        DAMAGES[damage](file)
        assert read(spec).to_list() == expected
        if damage == "give_away":  # what it holds is what was written
            assert not caplog.records
            os.chown(file, os.getuid(), os.getgid())
        else:
            (record,) = caplog.records
            assert str(file.parent) in record.message
            assert file.name in record.message
            assert record.message.startswith("Making ")
        assert file.is_file()
        caplog.clear()
        assert read(spec).to_list() == expected
        assert not caplog.records
        restore(file, content)
    assert not list(cache.glob("unfinished-*"))


@pytest.mark.parametrize("place", ["file", "empty folder", "link"])
def test_a_cache_entry_that_is_no_valid_folder_is_replaced(
    place: str, cache: Path, spec: CorpusSpec, caplog: pytest.LogCaptureFixture
) -> None:
    expected = tokens(spec).to_list()
    for folder in folders(cache):
        shutil.rmtree(folder)
        if place == "link":
            folder.symlink_to(folder.with_name("nowhere"))
        else:
            folder.write_text("") if place == "file" else folder.mkdir()
        caplog.clear()
        assert tokens(spec).to_list() == expected
        assert [str(folder) in record.message for record in caplog.records] == [True]


def test_a_run_killed_while_writing_leaves_no_cache_entry_for_others(
    cache: Path, spec: CorpusSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: ArrowWriter, *arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(ArrowWriter, "finalize", die)
        assert status_of_child(lambda: len(texts(spec))) == -signal.SIGKILL
    (left,) = folders(cache)
    assert left.name.startswith("unfinished-")
    alive = left.with_name(left.name.replace(left.name.split("-")[-3], str(os.getppid())))
    shutil.copytree(left, alive)  # of a process that goes on
    assert len(texts(spec)) == len(ROWS)
    assert sorted(path.name.startswith("unfinished-") for path in folders(cache)) == [False, True]
    assert alive.exists()


def test_concurrent_readers_repair_a_damaged_cache_entry(cache: Path, spec: CorpusSpec) -> None:
    expected = texts(spec).to_list()
    for number in range(5):
        (folder,) = folders(cache)
        fill_with_garbage(folder / ("rows.arrow", MANIFEST)[number % 2])
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: texts(spec).to_list(), range(4))) == [expected] * 4


def test_waiting_for_another_process_to_fill_the_cache_is_logged(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SECONDS_OF_SILENCE", 0.1)
    begun, may_end = threading.Event(), threading.Event()

    def make_slowly(folder: Path) -> None:
        begun.set()
        may_end.wait(20)
        (folder / "rows").write_text("slow")

    def release(record: logging.LogRecord) -> bool:
        may_end.set()
        return True

    caplog.handler.addFilter(release)
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(cached_folder, "key", make_slowly)
        assert begun.wait(20)
        second = pool.submit(cached_folder, "key", lambda folder: (folder / "rows").write_text("fast"))
        assert slow.result() == second.result()
    caplog.handler.removeFilter(release)
    assert (cache / "key" / "rows").read_text() == "slow"
    assert caplog.messages == [f"Waiting for another process that is writing {cache / 'key'}."]


def test_a_failure_while_filling_the_cache_leaves_no_files(cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "rows.arrow").write_text("half")
        raise ValueError("no rows")

    with pytest.raises(ValueError, match="no rows"):
        cached_folder("key", fail)
    assert not folders(cache)


# A cache that cannot be written.


@pytest.mark.parametrize("read", [texts, tokens, sequences])
def test_a_full_disk_raises_an_error_with_the_folder_and_the_remedy(
    read: Callable[[CorpusSpec], Dataset], cache: Path, spec: CorpusSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ArrowWriter, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ArrowWriter, "finalize", fail)
    with pytest.raises(RunError) as failed:
        read(spec)
    assert str(failed.value).startswith(
        f"no space left on the disk of the cache {cache}: free some space, or set "
    )
    assert "HF_DATASETS_CACHE or HF_HOME" in str(failed.value)
    assert not folders(cache)


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder that other users can access."""
    if os.geteuid() != 0:
        pytest.skip("ONLY ROOT can be another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder, "cache"))
        yield Path(folder)


def test_another_user_reads_the_cache_but_gets_an_error_when_writing(
    open_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rows(folder: Path) -> None:
        (folder / "rows.txt").write_text("rows")

    def as_another_user() -> int:
        os.setuid(ANOTHER_USER)
        assert (cached_folder("whole", rows) / "rows.txt").read_text() == "rows"
        assert not caplog.records
        for key in ("damaged", "new"):
            with pytest.raises(UserError) as failed:
                cached_folder(key, rows)
            cache = open_folder / "cache" / "vaswani"
            assert str(failed.value) == (
                f"cannot write to the cache {cache} (Permission denied): "
                "set HF_DATASETS_CACHE or HF_HOME to a writable folder"
            )
        return 0

    cached_folder("whole", rows)
    (cached_folder("damaged", rows) / "rows.txt").write_text("rowz")
    assert status_of_child(as_another_user) == 0


@pytest.mark.parametrize("cache_home", ["file", "/proc/nowhere"])
def test_a_cache_folder_that_cannot_be_created_raises_an_error(
    cache_home: str, tmp_path: Path, spec: CorpusSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / cache_home)
    with pytest.raises(
        UserError, match=r"cannot write to the cache .*/vaswani \(.*\): set HF_DATASETS_CACHE"
    ):
        texts(spec)


def test_an_unreadable_source_file_is_not_reported_as_a_cache_error(
    cache: Path, spec: CorpusSpec, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def fail(folder: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/rows.jsonl")

    with pytest.raises(PermissionError, match=r"/elsewhere/rows\.jsonl"):
        cached_folder("key", fail)
