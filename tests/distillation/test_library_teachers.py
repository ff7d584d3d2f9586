"""Teachers of the library, whose tokenizers tell sources and targets apart, or mark them with a language."""

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForSeq2SeqLM,
)

from library_tokenizers import KINDS, SOURCES, TARGETS, library_tokenizers
from library_translators import config_of
from tiny_runs import TINY_MODEL, as_flags, datasets_cache
from toy_translation import save_toy_checkpoint
from vaswani import Translator
from vaswani.data.text_codec import TextCodec, for_languages
from vaswani.data.tokenization import load_tokenizers, save_tokenizers
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun
from vaswani.distillation.teacher import check_same_vocabulary
from vaswani.distillation.teacher_targets import search_identity
from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.training.config.config_file import load_config

__all__ = ["datasets_cache", "library_tokenizers"]


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def teacher(kind: str, library_tokenizers: dict[str, Path], tmp_path: Path) -> Path:
    tokenizer = load_tokenizers(library_tokenizers[kind])[0]
    AutoModelForSeq2SeqLM.from_config(config_of(kind, tokenizer)).save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    return tmp_path / "teacher"


def options_for(teacher: Path, **more: Any) -> dict[str, Any]:
    corpus = teacher.parent / "train.tsv"
    rows = zip(SOURCES, TARGETS, strict=True)
    corpus.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    run = {"max_steps": 2, "max_tokens_per_batch": 400, "use_cpu": True, "disable_tqdm": True}
    return {
        **TINY_MODEL,
        **run,
        "teacher": [str(teacher)],
        "train_file": str(corpus),
        "baseline": False,
        "output_dir": str(teacher.parent / "student"),
        "eval_strategy": "no",
        **more,
    }


def run_of(teacher: Path, **more: Any) -> DistillationRun:
    return DistillationRun(load_config(None, as_flags(options_for(teacher, **more)), DistillationConfig))


@pytest.mark.slow
def test_a_student_is_trained_on_targets_as_the_teachers_tokenizer_encodes_them(teacher: Path) -> None:
    run = run_of(teacher, targets="references")
    trained_on = []
    build = run.build_trainer

    def build_trainer(splits: Any, tokenizers: Any, model: Any) -> Any:
        trained_on.extend([splits["train"], model.config])
        return build(splits, tokenizers, model)

    run.build_trainer = build_trainer  # type: ignore[method-assign]
    run.run()
    rows, shape = trained_on
    source_tokenizer, target_tokenizer = load_tokenizers(teacher)
    assert rows["input_ids"][:] == TextCodec(source_tokenizer, "source").token_ids(SOURCES)
    assert rows["labels"][:] == TextCodec(target_tokenizer, "target").token_ids(TARGETS)

    student = Translator(*load_checkpoint(run.config.output_dir))
    assert student.target_tokenizer.get_vocab() == target_tokenizer.get_vocab()
    assert student.start_options == Translator(*load_checkpoint(teacher)).start_options
    for option, language in student.start_options.items():
        assert getattr(student.model.generation_config, option) == language
    if "decoder_start_token_id" in student.start_options:
        assert shape.decoder_start_token_id == student.start_options["decoder_start_token_id"]


@pytest.mark.parametrize("kind", ["m2m100", "nllb", "mbart", "mbart50"], indirect=True)
@pytest.mark.parametrize("student", ["random", "teacher", "folder"])
def test_the_run_may_set_the_languages_of_the_teacher(teacher: Path, student: str) -> None:
    saved, _ = load_tokenizers(teacher)
    source_language, target_language = saved.tgt_lang, saved.src_lang  # the other way round
    languages = {"source_language": source_language, "target_language": target_language}
    run = run_of(teacher, student=str(teacher) if student == "folder" else student, **languages)
    expected = for_languages(saved, saved, **languages)
    for tokenizers in (run.teacher.tokenizers, run.build_tokenizers(run.read())):
        for found, wanted, side, texts in zip(
            tokenizers, expected, ("source", "target"), (SOURCES, TARGETS), strict=True
        ):
            ids = TextCodec(found, side).token_ids(texts)
            assert ids == TextCodec(wanted, side).token_ids(texts)
            assert ids != TextCodec(saved, side).token_ids(texts)
    translator = run.teachers_translator(num_beams=1)
    if translator.start_options:
        assert translator.start_options != Translator(*load_checkpoint(teacher)).start_options


@pytest.mark.parametrize("kind", ["nllb"], indirect=True)
def test_unknown_languages_are_refused_before_the_teacher_is_loaded(teacher: Path) -> None:
    (teacher / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"teacher=.*: source_language=deutsch.*"):
        run_of(teacher, source_language="deutsch").check()


@pytest.mark.slow
def test_a_student_from_a_folder_gets_the_prefix_that_its_teacher_reads(tmp_path: Path) -> None:
    folder = tmp_path / "teacher"
    save_toy_checkpoint(folder)
    run = run_of(folder, student=str(folder), source_prefix="to German: ")
    run.run()
    source, _ = load_tokenizers(run.config.output_dir)
    prefixed = TextCodec(source, "source").token_ids(SOURCES)
    plain, _ = load_tokenizers(folder)
    assert prefixed == TextCodec(plain, "source").token_ids([f"to German: {text}" for text in SOURCES])


@pytest.mark.parametrize("kind", ["mbart"], indirect=True)
@pytest.mark.parametrize("student", ["random", "teacher"])
def test_a_student_has_the_start_token_of_the_target_language(teacher: Path, student: str) -> None:
    run = run_of(teacher, targets="references", student=student)
    tokenizers = run.teacher.tokenizers
    (language,) = TextCodec(tokenizers[1], "target").start_options().values()
    assert run.teacher.model.config.decoder_start_token_id == language
    assert run.build_model(tokenizers).config.decoder_start_token_id == language


def test_a_teacher_translates_into_the_language_of_its_tokenizer(kind: str, teacher: Path) -> None:
    translator = Translator(*load_checkpoint(teacher), num_beams=1, max_length=6)
    begun_with = []
    generate = translator.model.generate

    def recording(**options: Any) -> Any:
        generated = generate(**options)
        begun_with.extend(generated[:, :2].tolist())
        return generated

    translator.model.generate = recording  # type: ignore[method-assign]
    translator(SOURCES[:2])
    language = TextCodec(translator.target_tokenizer, "target").frame()
    if kind in ("m2m100", "nllb", "mbart50"):
        assert {row[1] for row in begun_with} == set(language.leading)
    elif kind == "mbart":
        assert {row[0] for row in begun_with} == {language.trailing[-1]}
    else:
        assert translator.start_options == {}


@pytest.mark.parametrize("kind", ["m2m100", "nllb", "mbart", "mbart50"], indirect=True)
def test_a_model_and_a_tokenizer_of_different_target_languages_are_refused(teacher: Path) -> None:
    model, *tokenizers = load_checkpoint(teacher)
    ((option, language),) = Translator(model, *tokenizers).start_options.items()
    setattr(model.generation_config, option, language)
    Translator(model, *tokenizers)
    other = TextCodec(tokenizers[0], "source").frame()
    setattr(model.generation_config, option, [*other.leading, other.trailing[-1]][0])
    with pytest.raises(UserError, match=f"target language is token {language}, and the model has {option}="):
        Translator(model, *tokenizers)


@pytest.mark.parametrize("kind", ["m2m100", "nllb"], indirect=True)
@pytest.mark.parametrize("side", ["src_lang", "tgt_lang"])
def test_translations_into_other_languages_are_cached_apart(teacher: Path, side: str) -> None:
    model, *tokenizers = load_checkpoint(teacher)
    before = search_identity(Translator(model, *tokenizers))
    other = {"src_lang": "tgt_lang", "tgt_lang": "src_lang"}[side]
    setattr(tokenizers[0], side, getattr(tokenizers[0], other))
    tokenizers[0]([""])  # from now on in the language that is set
    assert search_identity(Translator(model, *tokenizers)) != before


@pytest.mark.parametrize("kind", ["nllb"], indirect=True)
def test_limits_are_checked_before_the_teacher_translates(teacher: Path) -> None:
    run = run_of(teacher, targets="teacher", soft_target_weight=0, max_target_length=2)
    run._rows_with_teacher_targets = None  # type: ignore[assignment, method-assign]
    with pytest.raises(UserError, match="max_target_length=2 leaves no room for text beside the 2 special"):
        run.run()


@pytest.mark.parametrize("kind", ["mbart"], indirect=True)
def test_a_student_of_library_layers_accepts_only_the_dropouts_they_have(teacher: Path) -> None:
    run = run_of(teacher, student="teacher", dropout=0.3)
    assert run.build_model(run.teacher.tokenizers).config.dropout == 0.3
    run = run_of(teacher, student="teacher", word_dropout=0.2)
    with pytest.raises(UserError, match=r"whose word_dropout is None, not 0\.2; leave word_dropout out"):
        run.build_model(run.teacher.tokenizers)


def test_models_with_different_source_prefixes_are_not_combined(tmp_path: Path) -> None:
    """Neither as teachers or as teacher and student, nor in an ensemble; and each has its own cache."""
    folders, prints = [], []
    for name, prefix in (("german", "to German: "), ("french", "to French: ")):
        save_toy_checkpoint(tmp_path / name)
        tokenizer, _ = for_languages(*load_tokenizers(tmp_path / name), source_prefix=prefix)
        save_tokenizers(tokenizer, tokenizer, tmp_path / name)
        folders.append(tmp_path / name)
        prints.append(search_identity(Translator.from_pretrained(tmp_path / name))["source_tokenizer"])
    assert prints[0] != prints[1]
    tokenizers = [load_tokenizers(folder) for folder in folders]
    check_same_vocabulary(tokenizers[0], tokenizers[0], "both")
    with pytest.raises(UserError, match=r"both expect different prefixes .*'to German: ' and 'to Fr"):
        check_same_vocabulary(*tokenizers, "both")
    with pytest.raises(
        UserError, match=r"expect different prefixes of a source \('to German: ' and 'to French: '\)"
    ):
        Translator.from_pretrained(folders)
