"""`Translator` gives the same translations with CTranslate2 as with torch."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from library_translators import save_translator
from toy_translation import (
    save_toy_checkpoint,
    save_toy_reverse_checkpoint,
    toy_model,
    toy_sources,
    toy_tokenizer,
    toy_tokenizers,
)
from vaswani import Scorer, Translator
from vaswani.cli import run
from vaswani.data.tokenization import save_tokenizers
from vaswani.errors import RunError, UserError
from vaswani.inference.translate import ctranslate2_engine
from vaswani.inference.translate.ctranslate2_engine import CTranslate2Engine
from vaswani.inference.translate.engine import SearchOptions
from vaswani.interop import export_folder
from vaswani.interop.to_ctranslate2 import export_to_ctranslate2

ctranslate2 = pytest.importorskip("ctranslate2")
from ctranslate2.converters import TransformersConverter  # noqa: E402

SENTENCES = [*toy_sources(110, seed=-1), *toy_sources(20, seed=-2, longest=30), "", "日本 🙂"]
TWO, FIVE = (ids[0] for ids in toy_tokenizer()(["2", "5"]).input_ids)
PEOPLE = ["the big cat sees two dogs", "the small hen sees nine dogs", "cow"]


def export_toy(folder: Path, model: Any = None, separate: bool = False, **options: Any) -> Path:
    """Write a model as `vaswani export` does."""
    model, tokenizers = model or toy_model(separate), toy_tokenizers(separate)
    folder.mkdir(parents=True)
    export_to_ctranslate2(model, tokenizers, folder, **options)
    save_tokenizers(*tokenizers, folder)
    model.generation_config.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> Path:
    return export_toy(tmp_path_factory.mktemp("toy") / "exported")


def engine_translator(folder: Path, **options: Any) -> Translator:
    return Translator.from_pretrained(folder, engine="ctranslate2", **options)


def torch_translator(**options: Any) -> Translator:
    return Translator(toy_model(), toy_tokenizer(), **options)


def edit_json(path: Path, **values: Any) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, **values}))


def copied(folder: Path, to: Path, file: str = "generation_config.json", **values: Any) -> Path:
    """A copy of an export with other values in a JSON file."""
    shutil.copytree(folder, to)
    edit_json(to / file, **values)
    return to


# Same texts, scores and order as torch.


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_and_scores_are_equal(num_beams, separate, tmp_path):
    folder = export_toy(tmp_path / "exported", separate=separate)
    source, target = toy_tokenizers(separate)
    expected = list(Translator(toy_model(separate), source, target, num_beams=num_beams).translate(SENTENCES))
    found = list(engine_translator(folder, num_beams=num_beams).translate(SENTENCES))
    assert len({translation.text for translation in found}) > 50
    assert not all(translation.hypotheses[0].complete for translation in found if translation.hypotheses)
    for ours, theirs in zip(expected, found, strict=True):
        assert (ours.text, len(ours.hypotheses)) == (theirs.text, len(theirs.hypotheses))
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert one.complete == other.complete
            assert other.log_prob == pytest.approx(one.log_prob, rel=1e-4)
            assert other.score == pytest.approx(one.score, rel=1e-4)


def test_no_hypothesis_of_the_n_best_is_worse(exported):
    expected = torch_translator().translate(SENTENCES, n_best=4)
    same = 0
    for ours, theirs in zip(
        expected, engine_translator(exported).translate(SENTENCES, n_best=4), strict=True
    ):
        assert len(ours.hypotheses) == len(theirs.hypotheses)
        scores = [hypothesis.score for hypothesis in theirs.hypotheses]
        assert scores == sorted(scores, reverse=True)
        same += [one.text for one in ours.hypotheses] == [one.text for one in theirs.hypotheses]
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert other.score >= one.score - 1e-4 * abs(one.score)
    assert same > 0.95 * len(SENTENCES)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_translations_do_not_depend_on_batches(num_beams, exported):
    sentences = SENTENCES[90:]
    alone = [engine_translator(exported, num_beams=num_beams)([sentence])[0] for sentence in sentences]
    for max_tokens_per_batch in (1, 400, 10**6):
        translator = engine_translator(
            exported, num_beams=num_beams, max_tokens_per_batch=max_tokens_per_batch
        )
        assert translator(sentences) == alone
        assert translator(sentences[::-1]) == alone[::-1]


def test_sources_with_similar_limits_share_a_call(exported, monkeypatch):
    calls = []
    translate = CTranslate2Engine._translate

    def recording(self, rows, group, limit, call):
        calls.append((len(group), limit))
        return translate(self, rows, group, limit, call)

    monkeypatch.setattr(CTranslate2Engine, "_translate", recording)
    translator = engine_translator(exported, num_beams=2)
    translator(["one two three", "one two", "seven", "one " * 40, "one " * 41])
    assert calls[0][0] == 2  # the long ones
    assert calls[1][0] == 3
    assert calls[1][1] < calls[0][1]
    # A text that comes to the lowest limit of its call is searched again with its own.
    assert all(count <= 2 for count, _ in calls[2:])


# Each option moves the result, as torch's does.


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 2},
        {"mbr_metric": "chrf"},
        {"length_penalty": 0.0},
        {"length_penalty": -2.0},
        {"max_length": 5},
        {"num_beams": 1, "no_repeat_ngram_size": 1},
        {"num_beams": 1, "no_repeat_ngram_size": 2},
        {"num_beams": 1, "repetition_penalty": 1.5},
        {"num_beams": 1, "min_length": 9},
        {"num_beams": 1, "min_length_ratio": 1.4},
        {"max_length_ratio": 0.7},
        {"max_source_length": 4},
        {"source_prefix": "three "},
    ],
    ids=str,
)
def test_options_have_the_same_effect_as_with_torch(options, exported):
    found = list(engine_translator(exported, **options).translate(SENTENCES))
    default = list(engine_translator(exported).translate(SENTENCES))
    expected = list(torch_translator(**options).translate(SENTENCES))
    same = [one.text == other.text for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(SENTENCES) - 1  # a search that ends earlier
    moved = [(one.text, one.hypotheses[0].score if one.hypotheses else 0) for one in found]
    assert moved != [(one.text, one.hypotheses[0].score if one.hypotheses else 0) for one in default]
    for is_same, ours, theirs in zip(same, expected, found, strict=True):
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True) if is_same else ():
            assert other.log_prob == pytest.approx(one.log_prob, rel=1e-4)


def test_a_reverse_model_ranks_as_with_torch(exported, tmp_path):
    reverse = save_toy_reverse_checkpoint(tmp_path)
    scorer = Scorer.from_pretrained(reverse)
    default = torch_translator()(SENTENCES)
    expected = torch_translator(reverse_model=scorer)(SENTENCES)
    found = engine_translator(exported, reverse_model=reverse)(SENTENCES)
    assert sum(map(str.__ne__, found, expected)) <= 1  # a search that ends earlier
    assert sum(map(str.__ne__, found, default)) > 5


@pytest.mark.parametrize("with_scores", [False, True])
def test_where_tokens_are_excluded_hypotheses_have_the_models_probabilities(with_scores, exported):
    """The search of CTranslate2 differs there, but no score is of another distribution than the model's."""
    sentences = SENTENCES[:30]
    translator = engine_translator(exported, no_repeat_ngram_size=1)
    found = list(translator.translate(sentences, with_scores=with_scores))
    assert [one.text for one in found] == translator(sentences)
    assert all((one.hypotheses[0].score is not None) == with_scores for one in found)
    for translation in found if with_scores else ():
        tokens = translation.text.split()
        assert len(tokens) == len(set(tokens))
        ids = torch.tensor([toy_tokenizer()(translation.source).input_ids])
        target = toy_tokenizer()(translation.text).input_ids
        with torch.no_grad():
            logits = toy_model()(input_ids=ids, decoder_input_ids=torch.tensor([[1, *target[:-1]]])).logits[0]
        log_probs = logits.log_softmax(-1).gather(-1, torch.tensor(target)[:, None])
        assert translation.hypotheses[0].log_prob == pytest.approx(log_probs.sum().item(), rel=1e-4)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_prefixes_of_single_sentences(num_beams, exported):
    sentences = SENTENCES[:60]
    prefixes = [("", "7", "2 5", "9 9 9")[number % 4] for number in range(len(sentences))]
    options: dict[str, Any] = {"num_beams": num_beams, "max_length": 12}
    expected = list(torch_translator(**options).translate(sentences, prefixes=prefixes))
    found = list(engine_translator(exported, **options).translate(sentences, prefixes=prefixes))
    assert all(one.text.startswith(prefix) for one, prefix in zip(found, prefixes, strict=True))
    assert [one.text for one in found] != engine_translator(exported, **options)(sentences)
    same = [one.text == other.text for one, other in zip(found, expected, strict=True)]
    assert sum(same) >= len(sentences) - (num_beams > 1)  # a search that ends earlier
    assert any(one.text == prefix != "" for one, prefix in zip(found, prefixes, strict=True))
    for is_same, ours, theirs in zip(same, expected, found, strict=True):
        if is_same:
            assert theirs.hypotheses[0].log_prob == pytest.approx(ours.hypotheses[0].log_prob, rel=1e-4)


@pytest.mark.parametrize(
    "values",
    [
        {"no_repeat_ngram_size": 1},
        {"bad_words_ids": [[TWO], [FIVE, FIVE]]},
        {"suppress_tokens": [TWO, FIVE]},
        {"min_length": 9},
        {"min_new_tokens": 9},
        {"repetition_penalty": 1.5},
        {"forced_bos_token_id": TWO},
        {"eos_token_id": [2, TWO]},
    ],
    ids=str,
)
def test_generation_config_has_the_same_effect_as_with_torch(values, exported, tmp_path):
    folder = copied(exported, tmp_path / "copy", **values)
    model = toy_model()
    model.generation_config.update(**values)
    expected = list(Translator(model, toy_tokenizer(), num_beams=1).translate(SENTENCES))
    found = list(engine_translator(folder, num_beams=1).translate(SENTENCES))
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.text for one in found] != engine_translator(exported, num_beams=1)(SENTENCES)
    for ours, theirs in zip(expected, found, strict=True):
        for one, other in zip(ours.hypotheses, theirs.hypotheses, strict=True):
            assert (other.complete, other.log_prob) == (one.complete, pytest.approx(one.log_prob, rel=1e-4))


def test_a_forced_first_token_does_not_count_in_the_ranking(exported, tmp_path):
    """The tag of a language may be improbable. The best translation is the same in lists of any length."""
    folder = copied(exported, tmp_path / "copy", forced_bos_token_id=TWO)
    model = toy_model()
    model.generation_config.update(forced_bos_token_id=TWO)
    by_torch = Translator(model, toy_tokenizer(), num_beams=4)
    best = by_torch(SENTENCES[:20])  # without scores, in the order of the search
    for translator in (by_torch, engine_translator(folder, num_beams=4)):
        for n_best in (1, 4):
            found = [each.text for each in translator.translate(SENTENCES[:20], n_best=n_best)]
            assert found == best


def test_prefixes_of_other_rows_do_not_change_a_row_without_one(tmp_path):
    """A model whose best translation of this sentence is empty."""
    fields = {
        "position_embedding": "none",
        "embedding_norm": True,
        "final_norm": True,
        "layer_norm_eps": 1e-3,
    }
    fields |= {"scale_embedding": False, "activation_function": "silu"}
    save_toy_checkpoint(tmp_path / "model", True, **fields)
    export_folder(str(tmp_path / "model"), tmp_path / "exported", "ctranslate2")
    translator = engine_translator(tmp_path / "exported", num_beams=4)
    sentence = "six nine seven five seven nine five"
    assert translator([sentence]) == [""]
    found = translator.translate([sentence, sentence], prefixes=["", "3"])
    assert [each.text[:1] for each in found] == ["", "3"]


def test_a_source_end_token_is_not_added_twice(exported, tmp_path):
    folder = copied(exported, tmp_path / "copy", "config.json", add_source_eos=True)
    assert engine_translator(folder)(SENTENCES[:20]) == engine_translator(exported)(SENTENCES[:20])


def test_a_start_token_that_the_model_does_not_know_is_given(exported, tmp_path):
    folder = copied(exported, tmp_path / "copy", "config.json", decoder_start_token=None)
    expected = list(engine_translator(exported, no_repeat_ngram_size=1).translate(SENTENCES[:20]))
    assert list(engine_translator(folder, no_repeat_ngram_size=1).translate(SENTENCES[:20])) == expected
    edit_json(folder / "generation_config.json", decoder_start_token_id=2)
    assert engine_translator(folder)(SENTENCES[:20]) != [one.text for one in expected]


def test_int8_changes_the_scores_and_float32_does_not(exported, tmp_path):
    folder = export_toy(tmp_path / "int8", quantization="int8")
    expected = list(engine_translator(exported).translate(SENTENCES))
    for found in (
        engine_translator(folder).translate(SENTENCES),
        engine_translator(exported, dtype="int8").translate(SENTENCES),
    ):
        scores = [[one.score for one in each.hypotheses] for each in (*found, *expected)]
        assert scores[: len(SENTENCES)] != scores[len(SENTENCES) :]
    as_float32 = list(engine_translator(exported, dtype=torch.float32).translate(SENTENCES))
    assert as_float32 == expected


# Folders of others.


def convert(kind: str, folder: Path, files: tuple[str, ...]) -> tuple[Path, Path]:
    """Save a model of the library, and convert it by CTranslate2's own converter."""
    original = save_translator(kind, folder / "original")
    model = AutoModelForSeq2SeqLM.from_pretrained(original)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
        if kind == "marian":  # the decoder of OPUS-MT begins with a zero embedding
            model.get_input_embeddings().weight[-1] = 0.0
            model.final_logits_bias[:, -1] = -1e4  # the padding, which CTranslate2 leaves out
    model.save_pretrained(original)
    TransformersConverter(str(original), copy_files=list(files)).convert(str(folder / "converted"))
    return original, folder / "converted"


MARIAN_FILES = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")


@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_converted_marian_model_translates_as_with_torch(num_beams, tmp_path):
    original, folder = convert("marian", tmp_path, (*MARIAN_FILES, "generation_config.json"))
    options: dict[str, Any] = {"num_beams": num_beams, "max_length": 8}
    expected = list(Translator.from_pretrained(original, **options).translate(PEOPLE))
    found = list(engine_translator(folder, **options).translate(PEOPLE))
    assert len({one.text for one in found}) > 1
    for ours, theirs in zip(expected, found, strict=True):
        assert ours.text == theirs.text
        assert theirs.hypotheses[0].score == pytest.approx(ours.hypotheses[0].score, rel=1e-4)


def test_a_converted_multilingual_model_writes_the_target_language(tmp_path):
    files = ("tokenizer.json", "tokenizer_config.json")
    original, folder = convert("nllb", tmp_path, files)
    for language in ("deu_Latn", "eng_Latn"):
        options: dict[str, Any] = {"num_beams": 2, "max_length": 8, "target_language": language}
        expected = list(Translator.from_pretrained(original, **options).translate(PEOPLE, n_best=2))
        found = list(engine_translator(folder, **options).translate(PEOPLE, n_best=2))
        for ours, theirs in zip(expected, found, strict=True):
            assert ours.text == theirs.text
            assert theirs.hypotheses[0].log_prob == pytest.approx(ours.hypotheses[0].log_prob, rel=1e-4)
    german = engine_translator(folder, num_beams=2, max_length=8, target_language="deu_Latn")
    assert german(PEOPLE) != [one.text for one in found]


def test_an_unset_decoder_start_token_allows_any_start_token(exported, tmp_path):
    engine = engine_translator(exported).engine
    engine.check(SearchOptions(), {"decoder_start_token_id": 1})
    with pytest.raises(UserError, match=r"begins targets with '<s>'; set decoder_start_token to null in"):
        engine.check(SearchOptions(), {"decoder_start_token_id": 7})
    folder = copied(exported, tmp_path / "copy", "config.json", decoder_start_token=None)
    engine_translator(folder).engine.check(SearchOptions(), {"decoder_start_token_id": 7})


def test_a_converted_folder_without_tokenizer_is_refused(tmp_path):
    _, folder = convert("marian", tmp_path, ())
    with pytest.raises(UserError, match="has no tokenizer; copy the files of the original model's tokenizer"):
        engine_translator(folder)


def test_a_tokenizer_of_another_model_is_refused(exported, tmp_path, caplog):
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    tokens = [f"other {number}" for number in range(len(toy_tokenizer()))]
    (folder / "shared_vocabulary.json").write_text(json.dumps([*tokens[:1], "<s>", "</s>", *tokens[3:]]))
    with pytest.raises(UserError, match="lacks 302 of the model's 304 tokens, such as 'other 0'"):
        engine_translator(folder)
    engine_translator(folder, allow_mismatch=True)
    assert "allow_mismatch accepts them" in caplog.text


# Sources that are too long.


def test_a_source_beyond_the_positions_affects_only_its_row(tmp_path):
    folder = export_toy(tmp_path / "exported", max_positions=9)
    translator = engine_translator(folder, max_source_length=None)
    assert (translator.engine.source_positions, translator.engine.target_positions) == (9, 8)
    found = list(translator.translate(["one two", "one " * 40, "three"]))
    assert "the model has positions for 9" in str(found[1].problem)
    expected = torch_translator(max_length=8)(["one two", "three"])
    assert [found[0].text, found[2].text] == expected
    cut = engine_translator(folder, max_source_length=9)
    assert next(cut.translate(["one " * 40])).source_cut_off


def test_a_source_of_more_than_1024_tokens_is_not_truncated(exported):
    source = " ".join(["one", *["two"] * 1100, "nine"])
    options: dict[str, Any] = {"max_source_length": None, "num_beams": 1, "max_length": 4}
    (found,) = engine_translator(exported, **options).translate([source])
    (expected,) = torch_translator(**options).translate([source])
    assert found.hypotheses[0].log_prob == pytest.approx(expected.hypotheses[0].log_prob, rel=1e-4)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_banned_phrases_occur_in_no_text(num_beams, exported):
    plain = engine_translator(exported, num_beams=num_beams)(SENTENCES)
    banned = [" ".join(next(text for text in plain if len(text.split()) > 2).split()[:2]), "5"]
    options = {"num_beams": num_beams, "banned_phrases": banned}
    found = engine_translator(exported, **options)(SENTENCES)
    assert any(phrase in text for text in plain for phrase in banned)
    assert not any(phrase in text for text in found for phrase in banned)
    expected = torch_translator(**options)(SENTENCES)
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    assert same >= (len(SENTENCES) if num_beams == 1 else 0.8 * len(SENTENCES))


# What is refused, in one line with the remedy.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": 0.5},
            "temperature=0.5 is not supported by engine=ctranslate2; leave it out, or use",
        ),
        ({"coverage_penalty": 0.5}, "coverage_penalty=0.5 is not supported by engine=ctranslate2"),
        ({"required_phrases": ["1"]}, r"required_phrases=\['1'\] is not supported by engine=ctranslate2"),
        (
            {"repetition_penalty": 1.5},
            "repetition_penalty=1.5 with num_beams=4 is not supported by engine=ct",
        ),
    ],
)
def test_options_that_ctranslate2_lacks_are_refused(options, message, exported):
    with pytest.raises(UserError, match=message):
        engine_translator(exported, **options)


def test_options_that_an_engine_lacks_are_refused(exported, monkeypatch):
    monkeypatch.setattr(CTranslate2Engine, "supports", frozenset({"num_beams", "length_penalty"}))
    message = (
        "no_repeat_ngram_size=3 is not supported by engine=ctranslate2; leave it out, or use engine=torch"
    )
    with pytest.raises(UserError, match=message):
        engine_translator(exported, no_repeat_ngram_size=3)
    engine_translator(exported)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"repetition_penalty": 1.5},
            "repetition_penalty=1.5 with num_beams=4 is not supported by engine=ctr",
        ),
        ({"stop_strings": ["x"]}, "has stop_strings=..x.., which is not supported by engine=ctranslate2"),
        ({"eos_token_id": 9999}, "has eos_token_id=9999, and the model has no such token"),
        ({"max_new_tokens": -3}, "cannot be used"),
    ],
    ids=str,
)
def test_unsupported_generation_config_values_raise_an_error(values, message, exported, tmp_path):
    folder = copied(exported, tmp_path / "copy", **values)
    with pytest.raises(UserError, match=message):
        engine_translator(folder)


def test_neutral_values_of_a_generation_config_are_accepted(exported, tmp_path, caplog):
    neutral = {name: value for name, value in ctranslate2_engine.LACKING.items() if value not in (None, [])}
    folder = copied(exported, tmp_path / "copy", **neutral)
    assert engine_translator(folder)(SENTENCES[:3]) == engine_translator(exported)(SENTENCES[:3])
    assert "generation_config.json" not in caplog.text
    (folder / "generation_config.json").unlink()
    assert engine_translator(folder)(SENTENCES[:3]) == engine_translator(exported)(SENTENCES[:3])
    assert f"{folder} has no generation_config.json, which may suppress or force tokens" in caplog.text
    assert all(hasattr(GenerationConfig(), name) for name in neutral)


def test_a_folder_of_another_engine_raises_an_error(exported, tmp_path):
    checkpoint = save_toy_checkpoint(tmp_path / "toy")
    with pytest.raises(UserError, match=r"no model.bin.*vaswani export \S+toy OUT --to ctranslate2"):
        engine_translator(checkpoint)
    with pytest.raises(UserError, match=r"for CTranslate2\..*in Translator with engine='ctranslate2'"):
        Translator.from_pretrained(exported)
    with pytest.raises(UserError, match=r"for CTranslate2\..*in Translator with engine='ctranslate2'"):
        Translator.from_pretrained(exported, engine="onnx")
    (checkpoint / "decoder_model.onnx").touch()
    with pytest.raises(UserError, match="holds a model in ONNX, which runs with engine=onnx"):
        engine_translator(checkpoint)
    (tmp_path / "empty").mkdir()
    for engine in ("ctranslate2", "onnx"):
        with pytest.raises(UserError, match=r"empty holds no model \(it has no config.json\)"):
            Translator.from_pretrained(tmp_path / "empty", engine=engine)
    with pytest.raises(UserError, match="engine='tensorrt' is unknown; expected torch, ctranslate2, onnx"):
        Translator.from_pretrained(exported, engine="tensorrt")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="revision='main' applies to models on the Hub"):
        engine_translator(exported, revision="main")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dtype": "int4"},
            r"dtype 'int4' is not supported by engine=ctranslate2 on this cpu; it has .*int8",
        ),
        ({"device": "meta"}, "device 'meta' cannot be used by engine=ctranslate2 here: it has the CPU and"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"device": "gpu"}, "device 'gpu' cannot be used"),
    ],
)
def test_unavailable_devices_and_types_raise_an_error(options, message, exported):
    with pytest.raises(UserError, match=message) as error:
        engine_translator(exported, **{"device": "cpu", **options})
    assert "\n" not in str(error.value)


def test_a_missing_engine_is_named_with_the_command_that_installs_it(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'pip install "vaswani\[ctranslate2\]"'):
        engine_translator(exported)


def damaged(folder: Path, what: str) -> None:
    weights = folder / "model.bin"
    content = weights.read_bytes()
    if what == "truncated":
        weights.write_bytes(content[:-900])
    elif what == "empty":
        weights.write_bytes(b"")
    elif what == "version":
        weights.write_bytes(b"\x63" + content[1:])
    elif what == "name":
        weights.write_bytes(content.replace(b"TransformerSpec", b"TransformerXpec"))
    else:
        (folder / what).unlink()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("truncated", r"model.bin is damaged or half-written \(it ends .* bytes early\)"),
        ("empty", "model.bin is damaged or half-written"),
        ("version", "has version 99 of CTranslate2's format; versions 4 to 6 are supported"),
        ("name", "holds a TransformerXpec of CTranslate2, which does not translate"),
        ("config.json", "config.json is missing"),
        ("shared_vocabulary.json", "has no shared_vocabulary.json"),
        ("tokenizer.json", "tokenizer"),
    ],
)
def test_damaged_folders_raise_a_one_line_error(what, message, exported, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    damaged(folder, what)
    with pytest.raises(UserError, match=message) as error:
        engine_translator(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("quantization", ["float32", "float16", "bfloat16"])
def test_weights_that_are_not_numbers_are_refused(quantization, tmp_path):
    model = toy_model()
    with torch.no_grad():
        model.lm_head.weight[5, 3] = float("nan")
    folder = export_toy(tmp_path / "exported", model, quantization=quantization)
    with pytest.raises(UserError, match=r"model.bin holds NaN or infinity in .*; export another checkpoint"):
        engine_translator(folder)


def test_scores_that_are_not_numbers_end_the_translation(exported, monkeypatch):
    translator = engine_translator(exported)
    monkeypatch.setattr(ctranslate2_engine.math, "isfinite", lambda number: False)
    with pytest.raises(RunError, match="scores are not finite numbers in float32; try dtype float32"):
        translator(["one"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("CUDA failed with error out of memory", "lower max_tokens_per_batch"),
        ("odd\nfault", "CTranslate2 fails: odd fault"),
    ],
)
def test_failures_of_the_engine(error, message, exported, monkeypatch):
    translator = engine_translator(exported)

    def fail(*arguments: Any) -> Any:
        raise RuntimeError(error)

    monkeypatch.setattr(CTranslate2Engine, "_translate", fail)
    with pytest.raises(RunError, match=message):
        translator(["one"])


# The commands.


def test_commands_give_the_same_output_as_with_torch(exported, tmp_path, capsys):
    checkpoint = save_toy_checkpoint(tmp_path / "toy")
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    outputs = []
    for name, model in (("torch", checkpoint), ("ctranslate2", exported)):
        arguments = ["--model", str(model), "--engine", name, "--input", str(source), "--device", "cpu"]
        assert run(["translate", *arguments, "--output", str(tmp_path / name)]) == 0
        summary = [
            *arguments,
            "--num_beams",
            "1",
            "--documents",
            "line",
            "--output",
            str(tmp_path / f"{name}2"),
        ]
        assert run(["summarize", *summary]) == 0
        data = ["--data", str(source), str(source), "--device", "cpu", "--json"]
        assert run(["evaluate", "--model", str(model), "--engine", name, *data]) == 0
        record = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert record["engine"] == name
        outputs.append(
            [
                (tmp_path / name).read_text(),
                (tmp_path / f"{name}2").read_text(),
                record["chrf"],
                record["bleu"],
            ]
        )
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0][0].splitlines())) > 50
