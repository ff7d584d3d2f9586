"""Every file of a checkpoint, damaged in every way: one line that names it, or the model as it was.

Without `model_hashes.json`, as other software saves models, bits that flip inside a number of a weight, or
inside the text of a token, cannot be told from other weights and tokens: then the model loads, is finite and
is another. Nothing may crash or raise anything else.
"""

import json
import os
import random
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from limits import run_limited
from toy_translation import save_toy_checkpoint, toy_model, toy_rows
from vaswani import Translator
from vaswani.errors import RunError, UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.hub.hashes import HASHES, write_hashes

NOBODY = 65534  # a user who owns nothing
FLIPS = 16  # of each file
SOURCES = [source for source, _ in toy_rows(3, seed=5)]


@pytest.fixture(scope="module", params=["one file", "shards"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_toy_checkpoint(tmp_path_factory.mktemp("saved"), separate=True)
    for code in folder.glob("*.py"):
        code.unlink()  # for those without the plugin: never read here
    if request.param == "shards":
        (folder / "model.safetensors").unlink()
        toy_model(separate=True).save_pretrained(folder, max_shard_size="40KB")
        for code in folder.glob("*.py"):
            code.unlink()
    write_hashes(folder)
    return folder


def files_of(folder: Path) -> list[Path]:
    """All that is read back; where there are shards only the first and their index."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shards = [file for file in files if "-of-" in file.name]
    return [shards[0], Path("model.safetensors.index.json")] if shards else files


def result_of(folder: Path) -> str:
    """What a checkpoint computes: its logits, tokens and translations; or why it is refused."""
    try:
        model, source, target = load_checkpoint(folder, device="cpu")
        inputs = source(SOURCES, padding=True, return_tensors="pt")
        labels = target(SOURCES, padding=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(**inputs, decoder_input_ids=labels).logits
        texts = Translator(model, source, target)(SOURCES)
    except (UserError, RunError) as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    assert logits.isfinite().all()
    return json.dumps([logits.double().sum().item(), inputs["input_ids"].tolist(), labels.tolist(), texts])


Mutation = Callable[[Path], object]


def rewrite(change: Callable[[bytes], bytes]) -> Mutation:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


MUTATIONS: dict[str, Mutation] = {
    "half": rewrite(lambda content: content[: len(content) // 2]),
    "empty": rewrite(lambda content: b""),
    "one byte": rewrite(lambda content: content[:1]),
    "all but one byte": rewrite(lambda content: content[:-1]),
    "zeros": rewrite(lambda content: bytes(len(content))),
    "a list": rewrite(lambda content: b"[]"),
    "an object": rewrite(lambda content: b"{}"),
    "null": rewrite(lambda content: b"null"),
    "a number": rewrite(lambda content: b"1e400"),
    "a text": rewrite(lambda content: b'"text"'),
    "deep": rewrite(lambda content: b"[" * 100_000),
    "no UTF-8": rewrite(lambda content: b'{"a": "\xff\xfe"}'),
    "deleted": Path.unlink,
    "a folder": in_its_place,
    "unreadable": lambda file: file.chmod(0),
}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root reads every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def copy_of(folder: Path) -> Iterator[Path]:
    """Where another user may read it, which is not so below pytest's folders."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        copy = Path(shutil.copytree(folder, Path(place) / "model"))
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755)
        yield copy


def results_of(folder: Path, mutations: list[tuple[Path, str, Mutation]]) -> dict[tuple[str, str], str]:
    def compute() -> dict[tuple[str, str], str]:
        results = {}
        for file, name, mutate in mutations:
            with copy_of(folder) as copy:
                mutate(copy / file)
                with as_nobody():
                    results[str(file), name] = result_of(copy).replace(str(copy), "MODEL")
        return results

    return run_limited(compute, memory=3 << 30, seconds=300)


@pytest.mark.slow
def test_a_damaged_file_is_named_or_changes_nothing(saved: Path) -> None:
    whole = result_of(saved)
    assert not whole.startswith("refused")
    mutations = [(file, name, mutate) for file in files_of(saved) for name, mutate in MUTATIONS.items()]
    results = results_of(saved, mutations)
    for (file, name), result in results.items():
        if result == whole:
            continue
        assert result.startswith("refused: "), (file, name, result)
        check_message(Path(file), result)


def flip(number: int) -> Mutation:
    """Flip one bit, somewhere."""

    def flipped(content: bytes) -> bytes:
        place = random.Random(number).randrange(8 * len(content))
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)

    return rewrite(flipped)


def without_hashes(mutate: Mutation) -> Mutation:
    def change(file: Path) -> None:
        mutate(file)
        for hashes in (file.with_name(HASHES), file.parent.with_name(HASHES)):
            hashes.unlink(missing_ok=True)

    return change


@pytest.mark.slow
def test_a_flipped_bit_is_found(saved: Path) -> None:
    whole = result_of(saved)
    mutations = [(file, str(number), flip(number)) for file in files_of(saved) for number in range(FLIPS)]
    for (file, name), result in results_of(saved, mutations).items():
        assert result.startswith("refused: "), (file, name, result == whole)
        check_message(Path(file), result)


@pytest.mark.slow
def test_without_hashes_a_flipped_bit_causes_no_crash(saved: Path) -> None:
    files = [file for file in files_of(saved) if file.name != HASHES]
    mutations = [
        (file, str(number), without_hashes(flip(number))) for file in files for number in range(FLIPS)
    ]
    for (file, name), result in results_of(saved, mutations).items():
        assert result.startswith(("refused: ", "[")), (file, name, result)
        if result.startswith("refused: "):
            check_message(Path(file), result)


def check_message(file: Path, result: str) -> None:
    """One line that names the file, or its folder, and says what to do; no advice to run foreign code."""
    assert "\n" not in result
    assert f"MODEL/{file}" in result or f"MODEL/{file.parent}".removesuffix("/.") in result, result
    assert any(
        remedy in result
        for remedy in ("use another", "give ", "correct it", "delete it", "config.json cannot be used")
    )
    assert not any(advice in result for advice in ("trust_remote_code", "weights_only", "pip install"))


def test_a_model_saved_again_is_not_checked_against_old_hashes(tmp_path: Path) -> None:
    folder = save_toy_checkpoint(tmp_path)
    write_hashes(folder)
    model, *_ = load_checkpoint(folder, device="cpu")
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2.0)
    model.save_pretrained(folder)
    again, *_ = load_checkpoint(folder, device="cpu")
    assert torch.equal(again.get_input_embeddings().weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_weights_have_the_permissions_of_the_other_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        folder = save_toy_checkpoint(tmp_path)
        write_hashes(folder)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.rglob("*") if file.is_file()} == {
        0o666 & ~mask
    }
