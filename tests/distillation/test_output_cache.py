"""A cache matches its inputs, survives interruptions, and detects damage."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, concatenate_datasets, load_from_disk
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MarianMTModel

from damage import DAMAGES
from toy_translation import toy_model
from vaswani.distillation.fingerprints import fingerprint_model, fingerprint_rows
from vaswani.distillation.output_cache import MANIFEST, OutputCache
from vaswani.errors import RunError, UserError
from vaswani.files.atomic_files import unfinished_path
from vaswani.inference.translate.ensembling import Ensemble

IDENTITY: dict[str, Any] = {"teacher": "a" * 64, "rows": "b" * 64, "temperature": 2.0}


def open_cache(folder: Path, identity: dict[str, Any] | None = None, **options: Any) -> OutputCache:
    arguments = {"kind": "numbers", "num_rows": 10, "rows_per_shard": 3, **options}
    return OutputCache(folder, identity=identity or IDENTITY, **arguments)


def fill(cache: OutputCache) -> None:
    for shard in cache.missing_shards():
        cache.write(shard, bytes(cache.rows_of(shard)) * 100)


# Shards.


def test_shards_hold_every_row_once_and_in_order(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    rows = [cache.rows_of(shard) for shard in range(cache.num_shards)]
    assert [row for shard in rows for row in shard] == list(range(10))
    assert [len(shard) for shard in rows] == [3, 3, 3, 1]
    assert open_cache(tmp_path / "other", num_rows=9).num_shards == 3


def test_what_is_written_is_read(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    assert cache.missing_shards() == [0, 1, 2, 3]
    contents = [b"", b"\n", b"text\n", bytes(range(256))]
    for shard, content in enumerate(contents):
        cache.write(shard, content)
    assert cache.missing_shards() == []
    assert list(open_cache(tmp_path).read_all()) == contents


def test_shards_left_out_by_an_interruption_are_the_missing_ones(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    fill(cache)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    cache.path(1).unlink()
    cache.path(3).unlink()
    again = open_cache(tmp_path)
    assert again.missing_shards() == [1, 3]
    with pytest.raises(UserError, match="lacks 2 of 4 shards; run the teacher again"):
        again.read_all()
    fill(again)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


@pytest.mark.parametrize("num_processes", [1, 2, 3, 7])
def test_processes_share_the_shards_whenever_each_of_them_begins(tmp_path: Path, num_processes: int) -> None:
    open_cache(tmp_path, rows_per_shard=1).write(4, b"of an earlier run")
    written = []
    for process in range(num_processes):  # each looks after those before it have written all of theirs
        share = {"process_index": process, "num_processes": num_processes}
        cache = open_cache(tmp_path, rows_per_shard=1, **share)
        for shard in cache.missing_shards():
            cache.write(shard, b"")
            written.append(shard)
    assert sorted(written) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_shard_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = open_cache(tmp_path)
    before = sorted(tmp_path.iterdir())

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RunError, match=r"cannot write .*shard-000002: No space left on device"):
        cache.write(2, b"content")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("damage", sorted(set(DAMAGES) - {"give_away"}))
def test_a_damaged_shard_is_reported_and_recomputed(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(tmp_path)
    fill(cache)
    contents = list(cache.read_all())
    DAMAGES[damage](cache.path(2))
    is_gone = damage in ("unlink", "put_a_folder", "put_a_broken_link", "put_a_pipe")
    words = (
        "lacks 1 of 4 shards" if is_gone else "shard-000002 is truncated or damaged; delete it and run again"
    )
    with pytest.raises(UserError, match=words):
        list(open_cache(tmp_path).read_all())
    assert open_cache(tmp_path).missing_shards() == [2]
    messages = [record.message for record in caplog.records]
    assert messages == ([] if damage == "unlink" else [f"{cache.path(2)} is damaged and is computed again."])
    fill(cache)
    assert list(cache.read_all()) == contents
    assert cache.missing_shards() == []


@pytest.mark.parametrize("place", [20, -20, 79])
def test_any_flipped_bit_of_a_shard_is_detected(tmp_path: Path, place: int) -> None:
    cache = open_cache(tmp_path)
    fill(cache)
    data = bytearray(cache.path(2).read_bytes())
    data[place] ^= 1
    cache.path(2).write_bytes(data)
    assert cache.missing_shards() == [2]


def test_unfinished_files_of_dead_processes_are_deleted(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    child = subprocess.Popen(["true"])
    child.wait()
    of_the_dead, of_the_living = (
        unfinished_path(cache.path(0)).with_name(unfinished_path(cache.path(0)).name.replace(ours, str(pid)))
        for ours, pid in ((str(os.getpid()), child.pid), (str(os.getpid()), os.getppid()))
    )
    of_the_dead.write_text("half")
    of_the_living.write_text("half")
    open_cache(tmp_path)
    assert not of_the_dead.exists()
    assert of_the_living.exists()


# The manifest.


def test_the_same_cache_opens_again(tmp_path: Path) -> None:
    identity = {**IDENTITY, "search": {"num_beams": 4, "lengths": (1, 2)}}
    open_cache(tmp_path / "a" / "b", identity)
    manifest = (tmp_path / "a" / "b" / MANIFEST).read_bytes()
    open_cache(tmp_path / "a" / "b", dict(reversed(identity.items())))
    assert (tmp_path / "a" / "b" / MANIFEST).read_bytes() == manifest


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"identity": {**IDENTITY, "teacher": "c" * 64}}, "different teacher"),
        ({"identity": {**IDENTITY, "teacher": ["a" * 64, "c" * 64]}}, "different teacher"),
        ({"identity": {**IDENTITY, "temperature": 1.0}}, "temperature=2.0, now 1.0"),
        ({"identity": {"teacher": "a" * 64, "rows": "b" * 64}}, "temperature=2.0, now None"),
        ({"identity": {**IDENTITY, "search": {"num_beams": 5}}}, "num_beams=None, now 5"),
        ({"kind": "letters"}, "kind=numbers, now letters"),
        ({"num_rows": 11}, "num_rows=10, now 11"),
        ({"rows_per_shard": 4}, "rows_per_shard=3, now 4"),
        (
            {"identity": {**IDENTITY, "rows": "c" * 64, "temperature": 1.0}},
            "different rows, temperature=2.0, now 1.0",
        ),
    ],
)
def test_a_cache_with_another_identity_raises_an_error(
    tmp_path: Path, change: dict[str, Any], difference: str
) -> None:
    open_cache(tmp_path)
    with pytest.raises(UserError) as error:
        open_cache(tmp_path, **change)
    message = str(error.value)
    assert f"({difference}); give another teacher_cache folder, or delete this one" in message
    assert str(tmp_path) in message
    open_cache(tmp_path)  # which was left as it is


@pytest.mark.parametrize("damage", sorted(set(DAMAGES) - {"give_away"}))
def test_a_damaged_manifest_is_refused(tmp_path: Path, damage: str) -> None:
    fill(open_cache(tmp_path))
    DAMAGES[damage](tmp_path / MANIFEST)
    with pytest.raises(UserError) as failed:
        open_cache(tmp_path)
    assert str(tmp_path / MANIFEST) in str(failed.value) or "was computed with other settings" in str(
        failed.value
    )
    assert str(tmp_path) in str(failed.value)
    assert "delete" in str(failed.value)
    assert "\n" not in str(failed.value)


def test_shards_without_a_manifest_raise_an_error(tmp_path: Path) -> None:
    fill(open_cache(tmp_path))
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(UserError, match=rf"cannot use .*{MANIFEST}: No such file"):
        open_cache(tmp_path, {**IDENTITY, "temperature": 1.0})


def test_a_folder_that_cannot_be_created_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot use .*; give another teacher_cache folder"):
        open_cache(tmp_path / "file")


# Fingerprints of models.


def test_a_model_keeps_its_fingerprint_when_it_is_saved_and_moved(tmp_path: Path) -> None:
    config = MarianConfig(
        vocab_size=40,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        pad_token_id=1,
        decoder_start_token_id=1,
    )
    for model in (toy_model(), MarianMTModel(config)):
        model.save_pretrained(tmp_path / "a")
        (tmp_path / "a").rename(tmp_path / "b")
        loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "b")
        assert fingerprint_model(loaded) == fingerprint_model(model)
        loaded.set_attn_implementation("eager")  # changes only speed
        assert fingerprint_model(loaded) == fingerprint_model(model)
        (tmp_path / "b").rename(tmp_path / str(type(model)))


def test_any_change_of_a_model_changes_its_fingerprint() -> None:
    models = [toy_model() for _ in range(5)]
    with torch.no_grad():
        models[1].model.decoder.layers[0].fc1.bias[3] += 1e-6
    models[2].to(torch.bfloat16)
    models[3].config.activation_function = "gelu"
    weights = models[4].model.encoder.layers[0]
    weights.fc1.bias, weights.fc2.bias = weights.fc2.bias, weights.fc1.bias
    assert len({fingerprint_model(model) for model in models}) == 5
    assert fingerprint_model(models[0]) == fingerprint_model(toy_model())


def test_any_change_of_a_member_changes_the_fingerprint_of_an_ensemble() -> None:
    ensembles = [Ensemble([toy_model(), toy_model()]) for _ in range(3)]
    ensembles[1].members[1].config.activation_function = "gelu"
    with torch.no_grad():
        ensembles[2].members[1].model.decoder.layers[0].fc1.bias[3] += 1e-6
    assert len({fingerprint_model(ensemble) for ensemble in ensembles}) == 3
    assert fingerprint_model(ensembles[0]) == fingerprint_model(Ensemble([toy_model(), toy_model()]))


# Fingerprints of rows.

COLUMNS = {
    "text": ["ab", "c", "", "déjà vu", "日本"] * 3,
    "ids": [[1, 2], [], [3], [4, 5, 6], [7]] * 3,
    "length": [*range(15)],
}


def test_equal_rows_have_equal_fingerprints_however_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaswani.distillation.fingerprints.ROWS_HASHED_AT_ONCE", 4)
    rows, names = Dataset.from_dict(COLUMNS), list(COLUMNS)
    expected = fingerprint_rows(rows, names)
    rows.save_to_disk(tmp_path, num_shards=3)
    backwards = rows.select(range(14, -1, -1))
    same = [
        load_from_disk(tmp_path),
        concatenate_datasets([rows.select(range(7)), rows.select(range(7, 15))]),
        backwards.select(range(14, -1, -1)),
        backwards.flatten_indices().select(range(14, -1, -1)).flatten_indices(),
        rows.add_column("other", COLUMNS["length"]).with_format("torch"),
        concatenate_datasets([rows, rows]).select(range(15, 30)),
    ]
    assert {fingerprint_rows(dataset, names) for dataset in same} == {expected}
    assert fingerprint_rows(backwards, names) != expected


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("text", ["ab", "c"], ["a", "bc"]),
        ("text", ["ab", "c"], ["ab", "d"]),
        ("text", ["", "a"], ["a", ""]),
        ("text", ["", "a"], [None, "a"]),
        ("ids", [[1, 2], [3]], [[1], [2, 3]]),
        ("ids", [[1, 2], [3]], [[1, 2], [4]]),
        ("ids", [[], [1]], [None, [1]]),
        ("texts", [["a", "b"], ["c"]], [["a"], ["b", "c"]]),
        ("length", [1, 2], [2, 1]),
        ("length", [1, 2], [1, 2, 2]),
    ],
)
def test_other_rows_have_another_fingerprint(column: str, one: list[Any], other: list[Any]) -> None:
    fingerprints = {
        fingerprint_rows(Dataset.from_dict({column: values}), [column]) for values in (one, other)
    }
    assert len(fingerprints) == 2


def test_only_the_columns_that_are_named_count() -> None:
    rows = Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"]})
    changed = Dataset.from_dict({"source": ["a", "b"], "target": ["c", "e"]})
    assert fingerprint_rows(rows, ["source"]) == fingerprint_rows(changed, ["source"])
    assert fingerprint_rows(rows, ["source", "target"]) != fingerprint_rows(changed, ["source", "target"])
    assert fingerprint_rows(rows, ["source"]) != fingerprint_rows(rows, ["source", "target"])


def test_the_manifest_says_what_the_outputs_are(tmp_path: Path) -> None:
    open_cache(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["kind"] == "numbers"
    assert manifest["identity"] == IDENTITY
