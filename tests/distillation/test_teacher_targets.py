"""The teacher's translations on disk: those of its beam search, whole, and the same after an interruption."""

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from toy_translation import toy_model, toy_sources, toy_tokenizer, toy_tokenizers
from vaswani.data.sources.corpus_spec import TEXT_FEATURES
from vaswani.distillation.output_cache import OutputCache
from vaswani.distillation.teacher_targets import (
    TeacherTarget,
    decode_targets,
    read_targets,
    search_identity,
    with_teacher_targets,
)
from vaswani.errors import UserError
from vaswani.inference.translate.results import Hypothesis, Translation
from vaswani.inference.translate.translation import Translator

SOURCES = [*toy_sources(18, seed=-1), "", *toy_sources(6, seed=-2)]


def toy_translator(**options: Any) -> Translator:
    return Translator(toy_model(), toy_tokenizer(), **options)


def open_cache(folder: Path, num_rows: int = len(SOURCES), **share: int) -> OutputCache:
    return OutputCache(folder, "targets", {}, num_rows, rows_per_shard=4, **share)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# Decoding.


@pytest.mark.parametrize("as_column", [False, True])
def test_the_best_translation_of_each_row_is_stored(tmp_path: Path, as_column: bool) -> None:
    cache, translator = open_cache(tmp_path), toy_translator(num_beams=3)
    decode_targets(cache, translator, Dataset.from_dict({"s": SOURCES})["s"] if as_column else SOURCES)
    best = [translation.hypotheses[:1] for translation in translator.translate(SOURCES)]
    targets = read_targets(cache)
    assert [target.text for target in targets] == translator(SOURCES)
    assert [target.complete for target in targets] == [any(b.complete for b in found) for found in best]
    assert len({target.text for target in targets}) > 10


def test_cut_off_translations_and_too_long_sources_are_recorded(tmp_path: Path) -> None:
    sources = ["one two", "one " * 40]
    translators = {
        "short": toy_translator(max_length=2),
        "positions": Translator(
            toy_model(position_embedding="learned", max_position_embeddings=30), toy_tokenizer()
        ),
    }
    targets = {}
    for name, translator in translators.items():
        cache = open_cache(tmp_path / name, len(sources))
        decode_targets(cache, translator, sources)
        targets[name] = read_targets(cache)
    assert [(target.complete, target.problem) for target in targets["short"]] == [(False, None)] * 2
    assert all(target.text for target in targets["short"])
    short, too_long = targets["positions"]
    assert short.problem is None
    assert too_long.text == ""
    assert "the model has positions for 30" in str(too_long.problem)


def test_a_shard_after_its_header_is_a_text_of_json_lines(tmp_path: Path) -> None:
    cache = open_cache(tmp_path)
    decode_targets(cache, toy_translator(), SOURCES)
    header, *lines = cache.path(4).read_text(encoding="utf-8").splitlines()
    assert json.loads(header).keys() == {"sha256"}
    assert [json.loads(line).keys() for line in lines] == [{"text", "complete", "problem"}] * 4


def test_targets_with_any_characters_survive_a_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a\nb", "a\u2028b\x85\r", '"\\', "日本 🙂"]
    cache, translator = open_cache(tmp_path, len(texts)), toy_translator()
    translations = [Translation("one", (Hypothesis(text, True),)) for text in texts]
    monkeypatch.setattr(translator, "translate", lambda *_, **__: iter(translations))
    decode_targets(cache, translator, ["one"] * len(texts))
    assert [target.text for target in read_targets(cache)] == texts


def test_an_interrupted_run_that_is_resumed_leaves_the_same_bytes(tmp_path: Path) -> None:
    decode_targets(open_cache(tmp_path / "whole"), toy_translator(), SOURCES)
    rows_done = 0

    def interrupt(rows: int) -> None:
        nonlocal rows_done
        rows_done += rows
        if rows_done > 9:
            raise KeyboardInterrupt

    folder = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        decode_targets(open_cache(folder), toy_translator(), SOURCES, progress=interrupt)
    assert open_cache(folder).missing_shards() == [2, 3, 4, 5, 6]  # at most the shard that it was at is lost
    with pytest.raises(UserError, match="lacks 5 of 7 shards"):
        read_targets(open_cache(folder))
    open_cache(folder).path(0).unlink()
    resumed = []
    decode_targets(open_cache(folder), toy_translator(), SOURCES, progress=resumed.append)
    assert sum(resumed) == len(SOURCES) - 4
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_processes_together_leave_the_same_bytes_as_one(tmp_path: Path) -> None:
    decode_targets(open_cache(tmp_path / "one"), toy_translator(), SOURCES)
    for process in range(3):
        share: list[int] = []
        cache = open_cache(tmp_path / "three", process_index=process, num_processes=3)
        decode_targets(cache, toy_translator(), SOURCES, progress=share.append)
        assert 0 < sum(share) < len(SOURCES)
    assert files_of(tmp_path / "three") == files_of(tmp_path / "one")


# What the translations depend on.


def test_the_identity_of_a_search_is_that_of_its_options() -> None:
    identity = search_identity(toy_translator())
    assert identity == search_identity(toy_translator()) == json.loads(json.dumps(identity))
    assert identity == search_identity(toy_translator(max_tokens_per_batch=100))
    other_generation = toy_translator()
    other_generation.model.generation_config.no_repeat_ngram_size = 3
    source, other_target = toy_tokenizers(separate=True)
    others = [
        toy_translator(num_beams=5),
        toy_translator(length_penalty=1.0),
        toy_translator(max_length=20),
        toy_translator(max_source_length=20),
        Translator(toy_model(), source, other_target),
        Translator(toy_model(), other_target, source),
        other_generation,
    ]
    assert len({json.dumps(search_identity(translator)) for translator in others}) == len(others)
    assert all(search_identity(translator) != identity for translator in others)


def test_a_tokenizer_is_the_same_after_it_was_used_with_padding() -> None:
    identity = search_identity(toy_translator())
    translator = toy_translator()
    translator.source_tokenizer(["one", "one two"], padding=True, truncation=True, max_length=2)
    assert search_identity(translator) == identity
    translator.source_tokenizer(["one"])


# What the student is given.

ROWS = Dataset.from_dict({"source": ["s0", "s1", "s2", "s3"], "target": ["r0", "r1", "r2", "r3"]}).cast(
    TEXT_FEATURES
)
TARGETS = [
    TeacherTarget("t0", True, None),
    TeacherTarget("t1", False, None),
    TeacherTarget(" ", True, None),
    TeacherTarget("", False, "it is too long"),
]


def test_complete_teacher_translations_replace_the_references() -> None:
    rows, lacking = with_teacher_targets(ROWS.add_column("row", range(4)), TARGETS, keep_references=False)
    assert rows.features == TEXT_FEATURES
    assert rows.to_dict() == {"source": ["s0", "s1", "s2", "s3"], "target": ["t0", "r1", "r2", "r3"]}
    assert lacking == 3


def test_the_references_can_stay_beside_the_teacher() -> None:
    rows, lacking = with_teacher_targets(ROWS.select([2, 0]), [TARGETS[2], TARGETS[0]], keep_references=True)
    assert rows.features == TEXT_FEATURES
    assert rows.to_dict() == {"source": ["s2", "s0", "s0"], "target": ["r2", "r0", "t0"]}
    assert lacking == 1


@pytest.mark.parametrize("keep_references", [False, True])
def test_rows_without_a_reference_need_a_translation(keep_references: bool) -> None:
    rows = Dataset.from_dict({"source": ["s0", "s1", "s2"], "target": ["", "r1", ""]}, features=TEXT_FEATURES)
    found, lacking = with_teacher_targets(rows, TARGETS[:3], keep_references)
    assert sorted((row["source"], row["target"]) for row in found) == [("s0", "t0"), ("s1", "r1")]
    assert lacking == 2


@pytest.mark.parametrize("keep_references", [False, True])
def test_other_targets_have_another_datasets_fingerprint(keep_references: bool) -> None:
    fingerprints = [
        with_teacher_targets(ROWS, [target] * 4, keep_references).rows._fingerprint
        for target in (TARGETS[0], TARGETS[0]._replace(text="t1"), TARGETS[0])
    ]
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]


def test_targets_that_do_not_match_the_rows_raise_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        with_teacher_targets(ROWS, TARGETS[:3], keep_references=False)
