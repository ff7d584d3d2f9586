"""Trainings from new weights with a tokenizer that is given, and with each kind that is trained."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

import library_tokenizers
from given_tokenizers import TEXTS, bert, gpt2, write_sentencepiece
from library_tokenizers import SOURCES, TARGETS
from tiny_runs import TINY_RUN, datasets_cache, leave_out_slow_parts, resolved
from vaswani import Translator
from vaswani.data.text_codec import TextCodec, source_tags
from vaswani.data.tokenization import load_tokenizers
from vaswani.distillation.config import DistillationConfig
from vaswani.distillation.run import DistillationRun
from vaswani.errors import UserError
from vaswani.training.config.pretraining_arguments import PretrainingConfig
from vaswani.training.runs.pretraining import pretrain
from vaswani.training.runs.translation import TrainingRun, train

__all__ = ["datasets_cache"]

leave_out_slow_parts()


def given(kind: str, folder: Path) -> Path:
    """A tokenizer on disk; returns what `tokenizer` names."""
    folder.mkdir()
    if kind == "sentencepiece":
        return write_sentencepiece(folder / "spm.model")
    if kind in library_tokenizers.KINDS:
        library_tokenizers.KINDS[kind](folder)
        return folder
    {"bert": bert, "gpt2": gpt2}[kind](folder).save_pretrained(folder)
    return folder


def options_for(tmp_path: Path, **more: Any) -> dict[str, Any]:
    file = tmp_path / "pairs.tsv"
    rows = zip(SOURCES, TARGETS, strict=True)
    file.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    run = {
        **TINY_RUN,
        "train_file": file,
        "output_dir": tmp_path / "run",
        "eval_strategy": "no",
        "max_steps": 2,
    }
    return {**run, **more}


def config_for(tmp_path: Path, **more: Any) -> Any:
    return resolved(options_for(tmp_path, **more))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sentencepiece", "bert", "gpt2", "marian", "marian of two vocabularies"])
def test_a_model_is_trained_with_a_given_tokenizer(kind: str, tmp_path: Path) -> None:
    name = given(kind, tmp_path / "tokenizer")
    train(config_for(tmp_path, tokenizer=name))
    source, target = load_tokenizers(tmp_path / "run")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    for side, tokenizer, size in (
        ("source", source, model.config.vocab_size),
        ("target", target, model.config.decoder_vocab_size),
    ):
        codec = TextCodec(tokenizer, side)  # type: ignore[arg-type]
        assert codec.ends_sequences()
        assert size == 1 + max(codec.vocabulary().values())
        texts = SOURCES if side == "source" else TARGETS
        assert codec.unknown_id() not in {token for row in codec.token_ids(texts) for token in row}
    assert model.config.pad_token_id == source.pad_token_id
    assert len(Translator.from_pretrained(tmp_path / "run", num_beams=1, max_length=6)(SOURCES[:2])) == 2


@pytest.mark.slow
def test_each_side_can_have_its_own_tokenizer(tmp_path: Path) -> None:
    names = {side: given("sentencepiece", tmp_path / side) for side in ("one", "two")}
    write_sentencepiece(names["two"], model_type="bpe", vocab_size=60)
    train(config_for(tmp_path, tokenizer=names["one"], target_tokenizer=names["two"]))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    source, target = load_tokenizers(tmp_path / "run")
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (len(source), len(target))
    assert len(source) != len(target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "char"])
def test_each_kind_of_tokenizer_is_trained(kind: str, tmp_path: Path) -> None:
    train(config_for(tmp_path, tokenizer_kind=kind, vocab_size=300))
    tokenizer = load_tokenizers(tmp_path / "run")[0]
    assert tokenizer.batch_decode(tokenizer(TEXTS).input_ids, skip_special_tokens=True) == TEXTS
    length = len(tokenizer(SOURCES[0]).input_ids) - 1
    assert length == len(SOURCES[0]) if kind in ("byte", "char") else length < len(SOURCES[0])
    word = [tokenizer.decode([token]) for token in tokenizer("ö").input_ids[:-1]]
    assert word == ["ö"] if kind == "char" else True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "kind", "auto_class"),
    [("masked", "bert", AutoModelForMaskedLM), ("causal", "gpt2", AutoModelForCausalLM)],
)
def test_a_language_model_is_trained_with_a_given_tokenizer(
    objective: str, kind: str, auto_class: Any, tmp_path: Path
) -> None:
    name = given(kind, tmp_path / "tokenizer")
    config = language_model_config(tmp_path, objective, name)
    if kind == "gpt2":
        with pytest.raises(UserError, match="no padding token"):
            pretrain(config)
        tokenizer = gpt2(name)
        tokenizer.add_special_tokens({"pad_token": "<pad>", "bos_token": "<s>"})
        tokenizer.save_pretrained(name)
        config = language_model_config(tmp_path, objective, name)
    pretrain(config)
    model = auto_class.from_pretrained(tmp_path / "run")
    tokenizer = load_tokenizers(tmp_path / "run")[0]
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id


def language_model_config(tmp_path: Path, objective: str, name: Path) -> Any:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS * 4))
    stack = "encoder" if objective == "masked" else "decoder"
    options = {
        "objective": objective,
        "train_file": file,
        "tokenizer": name,
        "output_dir": tmp_path / "run",
        "d_model": 16,
        f"{stack}_layers": 1,
        f"{stack}_attention_heads": 2,
        f"{stack}_ffn_dim": 16,
        "max_length": 32,
        "max_steps": 2,
        "max_tokens_per_batch": 300,
        "eval_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return resolved(options, PretrainingConfig)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"target_tokenizer": "somewhere"}, "target_tokenizer=somewhere needs tokenizer"),
        ({"tokenizer": __file__}, "is a file; expected a SentencePiece model"),
        ({"tokenizer": "no/such/tokenizer"}, "no/such/tokenizer"),
        (
            {"tokenizer": "sp.model"},
            "tokenizer=sp.model does not exist; give the file of a SentencePiece model",
        ),
        (
            {"tokenizer": "sp.model", "tokenizer_kind": "char"},
            "tokenizer_kind=char trains a tokenizer, and tokenizer=sp.model gives one; leave one of them out",
        ),
    ],
)
def test_an_unusable_tokenizer_raises_an_error_before_reading_the_corpus(
    options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told):
        TrainingRun(config_for(tmp_path, **options)).check()


def test_a_given_tokenizer_excludes_separate_vocabularies(tmp_path: Path) -> None:
    name = given("sentencepiece", tmp_path / "tokenizer")
    with pytest.raises(UserError, match="shared_vocab=false trains two vocabularies, and tokenizer="):
        TrainingRun(config_for(tmp_path, tokenizer=name, shared_vocab=False)).check()


def test_bpe_dropout_needs_a_tokenizer_of_merges(tmp_path: Path) -> None:
    name = given("sentencepiece", tmp_path / "tokenizer")
    with pytest.raises(UserError, match="needs a BPE tokenizer"):
        TrainingRun(config_for(tmp_path, tokenizer=name, bpe_dropout=0.1)).check()


def test_a_student_with_its_teachers_tokenizers_accepts_no_other(tmp_path: Path) -> None:
    options = options_for(tmp_path, teacher=tmp_path, tokenizer=given("bert", tmp_path / "tokenizer"))
    with pytest.raises(UserError, match="needs vocabulary=own"):
        DistillationRun(resolved(options, DistillationConfig)).check()


@pytest.mark.slow
@pytest.mark.parametrize("shared_vocab", [True, False])
def test_source_tags_are_single_tokens(
    shared_vocab: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(tmp_path, source_tags=["<a>", "<b>"], shared_vocab=shared_vocab)
    rows = [(f"<{'ab'[i % 2]}> {text}", TARGETS[i]) for i, text in enumerate(SOURCES)]
    lines = "".join(f"{source}\t{target}\n" for source, target in rows)
    options["train_file"].write_text("source\ttarget\n" + lines)
    options["validation_file"] = tmp_path / "validation.tsv"
    options["validation_file"].write_text(f"source\ttarget\n{SOURCES[0]}\t{TARGETS[0]}\n")
    with pytest.raises(UserError, match="source_tags=<c>: no source of the training data begins with it"):
        train(resolved({**options, "source_tags": ["<a>", "<c>"]}))
    train(resolved(options))
    assert "1 of 1 sources of the validation split begin with none of the tags '<a>', '<b>'" in caplog.text
    assert "of the train split" not in caplog.text
    source, target = load_tokenizers(tmp_path / "run")
    assert ("<a>" in target.get_vocab()) == shared_vocab
    translator = Translator.from_pretrained(tmp_path / "run", source_prefix="<b> ", num_beams=1)
    plain = Translator.from_pretrained(tmp_path / "run", num_beams=1)
    (ids,) = TextCodec(translator.source_tokenizer).token_ids([SOURCES[0]])
    assert ids[0] == source.get_vocab()["<b>"]
    caplog.clear()
    assert translator([SOURCES[0]]) == plain([f"<b> {SOURCES[0]}"])
    assert not caplog.records
    plain(SOURCES[:2])
    (record,) = caplog.records
    assert "begins with none of the model's tags ('<a>', '<b>')" in record.getMessage()


def test_a_vocabulary_of_sources_without_tags_does_not_demand_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(tmp_path, source_tags=["<a>"], max_steps=1)
    with options["train_file"].open("a") as file:
        file.write(f"<a> {SOURCES[0]}\t{TARGETS[0]}\n")
    train(resolved(options))
    assert "sources of the train split begin with none of the tags '<a>', such as" in caplog.text
    assert source_tags(load_tokenizers(tmp_path / "run")[0]) == ()


def test_a_tagged_vocabulary_for_sources_without_tags_no_longer_demands_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(tmp_path, source_tags=["<a>"], max_steps=1)
    untagged = options["train_file"].read_text().splitlines()
    options["train_file"].write_text(
        "\n".join([untagged[0], *(f"<a> {line}" for line in untagged[1:])]) + "\n"
    )
    train(resolved(options))
    assert source_tags(load_tokenizers(tmp_path / "run")[0]) == ("<a>",)
    options["train_file"].write_text("\n".join(untagged) + "\n")
    del options["source_tags"]
    caplog.clear()
    train(resolved({**options, "tokenizer": str(tmp_path / "run"), "output_dir": tmp_path / "untagged"}))
    assert source_tags(load_tokenizers(tmp_path / "untagged")[0]) == ()
    Translator.from_pretrained(tmp_path / "untagged", num_beams=1)(SOURCES[:1])
    assert "none of" not in caplog.text
