"""A `TextCodec` gives the tokens of its tokenizer, also when other threads use it."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import FSMTTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from library_tokenizers import KINDS, SOURCES, TARGETS, library_tokenizers, marian
from toy_translation import WORDS
from vaswani.data.text_codec import TextCodec, for_languages, has_one_vocabulary, with_source_tags
from vaswani.data.tokenization import byte_tokenizer, load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.errors import UserError

__all__ = ["library_tokenizers"]

TEXTS = [" ".join(WORDS), "one", "two one", ""]


def own_tokenizers() -> dict[str, PreTrainedTokenizerBase]:
    trained: dict[str, PreTrainedTokenizerBase] = {
        purpose: train_tokenizer([TEXTS], 290, purpose=purpose)  # type: ignore[arg-type]
        for purpose in ("translation", "masked", "causal")
    }
    return {**trained, "bytes": byte_tokenizer(purpose="causal")}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["translation", "masked", "causal", "bytes"])
def test_a_frame_truncates_tokens_as_the_tokenizer_does(name: str, side: str) -> None:
    tokenizer = own_tokenizers()[name]
    tokenizer.truncation_side = side
    codec = TextCodec(tokenizer)
    whole, frame = codec.token_ids(TEXTS), codec.frame()
    assert len(frame) == tokenizer.num_special_tokens_to_add()
    for most in range(len(frame), 14):
        expected = tokenizer(TEXTS, truncation=True, max_length=most)["input_ids"]
        assert [frame.cut(row, most) for row in whole] == expected
    assert codec.token_ids(TEXTS) == whole  # the tokenizer's own truncation does not last


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_limit_that_leaves_only_special_tokens_is_refused(most: int) -> None:
    frame = TextCodec(own_tokenizers()["masked"]).frame()
    with pytest.raises(UserError, match=f"max_length={most} leaves no room .* 2 special .* give 3 or more"):
        frame.check_room(max_length=most)
    frame.check_room(max_length=3, max_source_length=None)


# The tokenizers library is written in Rust, whose panics no `except Exception` catches.


def panicking(**parts: Any) -> Tokenizer:
    """A tokenizer with edited files that refer to missing parts."""
    content = json.loads(Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")).to_str())
    return Tokenizer.from_str(json.dumps({**content, **parts}))


@pytest.mark.parametrize("given", [None, "runs/tokenizer"])
def test_what_is_no_tokenizer_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=f"the tokenizer is {given!r}; give a tokenizer of transformers"):
        TextCodec(given)


def test_a_tokenizer_that_panics_when_it_encodes_is_named() -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[S]", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=panicking(post_processor=template))
    tokenizer.name_or_path = "runs/edited"
    with pytest.raises(UserError, match=r"^the tokenizer runs/edited fails \(no entry found"):
        TextCodec(tokenizer).token_ids(["a"])


def test_a_tokenizer_that_panics_when_it_decodes_is_named() -> None:
    backend = panicking()
    backend.decoder = decoders.Strip("a", 0, 5)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.name_or_path = "runs/edited"
    with pytest.raises(UserError, match=r"^the tokenizer runs/edited fails"):
        TextCodec(tokenizer).decode([[0, 1]])


def test_a_tokenizer_that_panics_when_it_is_loaded_is_named(tmp_path: Path) -> None:
    PreTrainedTokenizerFast(tokenizer_object=panicking(), unk_token="<unk>").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"the tokenizer in {tmp_path} fails"):
        load_tokenizers(tmp_path)


# Translation tokenizers of the library, which tell sources and targets apart.


def target_ids(kind: str, folder: Path, texts: list[str]) -> list[list[int]]:
    """What the library makes of targets; of FSMT's only if the languages change places."""
    if kind != "fsmt":
        return load_tokenizers(folder)[0](text_target=texts)["input_ids"]
    files = {
        "src_vocab_file": "vocab-tgt.json",
        "tgt_vocab_file": "vocab-src.json",
        "merges_file": "merges.txt",
    }
    swapped = FSMTTokenizer(langs=["de", "en"], **{name: str(folder / path) for name, path in files.items()})
    return swapped(texts)["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_both_sides_of_library_tokenizers(kind: str, library_tokenizers: dict[str, Path]) -> None:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    sources, targets = TextCodec(tokenizer, "source"), TextCodec(tokenizer, "target")
    assert targets.token_ids(TARGETS) == target_ids(kind, library_tokenizers[kind], TARGETS)
    assert sources.token_ids(SOURCES) == tokenizer(SOURCES)["input_ids"]
    assert targets.decode(targets.token_ids(TARGETS)) == TARGETS
    assert sources.decode(sources.token_ids(SOURCES)) == SOURCES
    assert targets.token_ids(TARGETS) != sources.token_ids(TARGETS)
    assert targets.ends_sequences()
    assert sources.ends_sequences()


@pytest.mark.parametrize("kind", KINDS)
def test_library_tokenizers_cut_both_sides_alike(kind: str, library_tokenizers: dict[str, Path]) -> None:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    for codec in (TextCodec(tokenizer, "source"), TextCodec(tokenizer, "target")):
        whole, frame = codec.token_ids(SOURCES), codec.frame()
        for most in range(len(frame) + 1, 6):
            expected = codec._view(
                **{"text" if codec.side == "source" else "text_target": SOURCES},
                truncation=True,
                max_length=most,
            )
            assert [frame.cut(row, most) for row in whole] == expected["input_ids"]


@pytest.mark.parametrize("kind", KINDS)
def test_vocabularies_of_library_tokenizers(kind: str, library_tokenizers: dict[str, Path]) -> None:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    assert has_one_vocabulary(tokenizer, tokenizer) is (kind not in ("fsmt", "marian of two vocabularies"))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_encode_sources_and_targets_at_once(kind: str, library_tokenizers: dict[str, Path]) -> None:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    work = [
        (TextCodec(tokenizer, side), SOURCES[number : number + 3] + TARGETS[number : number + 3])
        for number in range(12)
        for side in ("source", "target")
    ]

    def both_ways(job: tuple[TextCodec, list[str]]) -> tuple[list[list[int]], list[str]]:
        codec, texts = job
        ids = codec.token_ids(texts)
        return ids, codec.decode(ids)

    alone = [both_ways(job) for job in work]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(both_ways, work)) == alone


@pytest.mark.parametrize("kind", ["m2m100", "nllb", "mbart", "mbart50"])
@pytest.mark.parametrize("language", [None, "klingon"])
def test_an_unknown_target_language_raises_an_error(
    kind: str, language: str | None, library_tokenizers: dict[str, Path]
) -> None:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    tokenizer.tgt_lang = language
    TextCodec(tokenizer, "source").token_ids(SOURCES)
    with pytest.raises(UserError, match=f'"tgt_lang" in its tokenizer_config.json is {language!r}'):
        TextCodec(tokenizer, "target").token_ids(TARGETS)


def test_targets_changed_by_a_tokenizer_round_trip_are_reported(library_tokenizers: dict[str, Path]) -> None:
    targets = TextCodec(load_tokenizers(library_tokenizers["marian"])[0], "target")
    assert targets.texts_changed_by_tokens(TARGETS) == []
    (lost,) = targets.texts_changed_by_tokens([TARGETS[0], "zwei  Kühe"])
    assert lost == ("zwei  Kühe", targets.decode(targets.token_ids(["zwei Kühe"]))[0])
    assert "ü" not in lost[1]


def test_a_codec_is_copied_for_another_process(library_tokenizers: dict[str, Path]) -> None:
    for kind in ("marian", "fsmt"):
        codec = TextCodec(load_tokenizers(library_tokenizers[kind])[0], "target")
        expected = codec.token_ids(TARGETS)
        assert pickle.loads(pickle.dumps(codec)).token_ids(TARGETS) == expected


MULTILINGUAL = {
    "m2m100": ("de", "en"),
    "nllb": ("deu_Latn", "eng_Latn"),
    "mbart": ("de_DE", "en_XX"),
    "mbart50": ("de_DE", "en_XX"),
}


@pytest.mark.parametrize("kind", MULTILINGUAL)
def test_languages_are_chosen_and_saved(
    kind: str, library_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    source, target = MULTILINGUAL[kind]
    before = load_tokenizers(library_tokenizers[kind])  # of the other direction
    encoded = {side: TextCodec(before[0], side).token_ids(TARGETS[:1]) for side in ("source", "target")}
    reverse = for_languages(*before, source_language=source, target_language=target)
    save_tokenizers(*reverse, tmp_path)
    for tokenizers in (reverse, load_tokenizers(tmp_path)):
        # Both sides of one language are marked in the same way.
        assert TextCodec(tokenizers[0], "source").token_ids(TARGETS[:1]) == encoded["target"]
        assert TextCodec(tokenizers[1], "target").token_ids(TARGETS[:1]) == encoded["source"]
    assert TextCodec(before[0], "target").token_ids(TARGETS[:1]) == encoded["target"]  # a copy was changed


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_comes_before_sources_and_is_saved(
    kind: str, library_tokenizers: dict[str, Path], tmp_path: Path
) -> None:
    before = load_tokenizers(library_tokenizers[kind])
    with_prefix = for_languages(*before, source_prefix="the big ")
    assert (with_prefix[0] is with_prefix[1]) == (before[0] is before[1])
    save_tokenizers(*with_prefix, tmp_path)
    loaded = load_tokenizers(tmp_path)
    assert TextCodec(loaded[0]).token_ids(["cat"]) == TextCodec(before[0]).token_ids(["the big cat"])
    assert TextCodec(loaded[1], "target").token_ids(TARGETS) == TextCodec(before[1], "target").token_ids(
        TARGETS
    )


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("m2m100", {"target_language": "german"}, "target_language=german: .* no such language"),
        ("nllb", {"source_language": "eng"}, "source_language=eng: .* as in .*eng_Latn"),
        ("mbart50", {"target_language": "<s>"}, "target_language=<s>: .* no such language"),
        ("marian", {"target_language": "de"}, "does not mark languages; .* or give .* source_prefix"),
        ("marian", {"source_prefix": ">>deu<< "}, "source_prefix='>>deu<< ': .* has no tags"),
        ("m2m100", {"source_prefix": "読む: "}, "source_prefix='読む: ': .* no token for a part of it"),
    ],
)
def test_a_language_that_a_tokenizer_does_not_have_is_refused(
    kind: str, options: dict[str, str], message: str, library_tokenizers: dict[str, Path]
) -> None:
    with pytest.raises(UserError, match=message):
        for_languages(*load_tokenizers(library_tokenizers[kind]), **options)


@pytest.mark.parametrize("separate_vocabs", [False, True])
def test_a_tag_must_be_in_the_vocabulary_of_marian(separate_vocabs: bool, tmp_path: Path) -> None:
    marian(tmp_path, separate_vocabs)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text())
    tags = {">>deu<<": len(vocabulary), ">>fra<<": len(vocabulary) + 1}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary | tags))
    tokenizers = load_tokenizers(tmp_path)
    with pytest.raises(UserError, match=r"source_prefix='>>de<< ': .* no token .* such as >>deu<<"):
        for_languages(*tokenizers, source_prefix=">>de<< ")
    source, _ = for_languages(*tokenizers, source_prefix=">>deu<< ")
    first = TextCodec(source).token_ids(["the big cat"])[0][0]
    assert first == tags[">>deu<<"]
    french = TextCodec(source).token_ids([">>fra<< the big cat"])[0]
    assert french[0] == tags[">>fra<<"]
    assert tags[">>deu<<"] not in french
    assert TextCodec(source).token_ids([">>fr<< the big cat"])[0][0] == tags[">>deu<<"]
    texts = ["the big cat", ">>fr<< the big cat", ">>fra<< the big cat"]
    assert TextCodec(source).untagged(texts) == texts[1:2]
    assert TextCodec(tokenizers[0]).untagged(texts) == texts[:2]


def test_a_tag_must_be_one_that_the_tokenizer_was_trained_with() -> None:
    tokenizer = train_tokenizer([TEXTS], 290, tags=[">>deu<<", ">>fra<<"])
    with pytest.raises(UserError, match=r"source_prefix='>>fr<< ': .* no token .* such as >>fra<<"):
        for_languages(tokenizer, tokenizer, source_prefix=">>fr<< ")
    for prefix in (">>fra<< ", "to >>fr<<: "):
        assert for_languages(tokenizer, tokenizer, source_prefix=prefix)[0].source_prefix == prefix


def test_sources_of_a_model_whose_sources_all_have_tags_need_one(tmp_path: Path) -> None:
    tags = ["<2de>", "<2fr>"]
    plain = train_tokenizer([TEXTS], 290, tags=tags)
    save_tokenizers(*[with_source_tags(plain, tags)] * 2, tmp_path)
    tokenizer, _ = load_tokenizers(tmp_path)
    texts = ["the cat", "<2fr> the cat", ">>it<< the cat", " ", " <2de> the cat"]
    assert TextCodec(tokenizer).untagged(texts) == ["the cat", ">>it<< the cat", " <2de> the cat"]
    assert TextCodec(plain).untagged(texts) == []
    german, _ = for_languages(tokenizer, tokenizer, source_prefix="<2de> ")
    assert TextCodec(german).untagged(texts) == [">>it<< the cat"]
    firsts = [ids[0] for ids in TextCodec(german).token_ids(["the cat", "<2fr> the cat"])]
    assert firsts == tokenizer.convert_tokens_to_ids(tags)
    for prefix in ("<2it> ", "to German: "):
        with pytest.raises(
            UserError, match=f"source_prefix='{prefix}': .* no token for a tag .* tags such as <2"
        ):
            for_languages(tokenizer, tokenizer, source_prefix=prefix)
