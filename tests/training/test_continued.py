"""Trainings that begin with a trained encoder-decoder, of vaswani or of the library."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from continued_runs import config_for, options_for, pairs
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from library_tokenizers import KINDS, SOURCES, TARGETS
from library_translators import OF_ANY_TOKENIZER, save_translator
from tiny import tiny_model
from tiny_runs import as_flags, datasets_cache, leave_out_slow_parts
from vaswani import Translator
from vaswani.data.text_codec import TextCodec, source_prefix
from vaswani.data.tokenization import load_tokenizers, save_tokenizers, train_tokenizer
from vaswani.errors import UserError
from vaswani.training.config.config_file import load_config
from vaswani.training.runs.translation import ContinuedRun, train

__all__ = ["datasets_cache", "pairs"]

leave_out_slow_parts()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.exhaustive(after=3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, *OF_ANY_TOKENIZER])
def test_a_model_of_the_library_trains_resumes_and_translates(kind: str, pairs: Path, tmp_path: Path) -> None:
    model = save_translator(kind, tmp_path / "model")
    train(config_for(model, pairs))
    run = tmp_path / "run"
    before, after = weights(model), weights(run)
    assert any(not torch.equal(before[name], after[name]) for name in before.keys() & after.keys())

    half = {"output_dir": tmp_path / "half", "save_steps": 2}
    train(config_for(model, pairs, **half))
    for left in (tmp_path / "half").glob("*.safetensors"):
        left.unlink()
    for later in (tmp_path / "half").glob("checkpoint-4"):
        later.rename(tmp_path / "away")
    train(config_for(model, pairs, **half, resume_from_checkpoint="true"))
    resumed = weights(tmp_path / "half")
    assert all(torch.equal(after[name], resumed[name]) for name in after)

    translator = Translator.from_pretrained(run, num_beams=1, max_length=8)
    assert len(translator(SOURCES[:2])) == 2
    source_tokenizer, target_tokenizer = load_tokenizers(model)
    assert TextCodec(translator.source_tokenizer).token_ids(SOURCES) == TextCodec(source_tokenizer).token_ids(
        SOURCES
    )
    for option, token in TextCodec(target_tokenizer, "target").start_options().items():
        assert getattr(translator.model.generation_config, option) == token
    assert "model" in (run / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mbart", "nllb"])
def test_learned_pairs_are_translated(kind: str, pairs: Path, tmp_path: Path) -> None:
    """Encoding, the language and the decoder's start are the same in training and translation."""
    model = save_translator(kind, tmp_path / "model")
    train(config_for(model, pairs, max_steps=300))
    outputs = Translator.from_pretrained(tmp_path / "run", max_length=40)(SOURCES)
    assert sum(output == target for output, target in zip(outputs, TARGETS, strict=True)) >= 3


def test_weights_are_loaded_and_not_initialized(pairs: Path, tmp_path: Path) -> None:
    model = save_translator("marian", tmp_path / "model")
    run = ContinuedRun(config_for(model, pairs, seed=3))
    run.check()
    built = run.build_model(run.build_tokenizers(None)).state_dict()  # type: ignore[arg-type]
    original = AutoModelForSeq2SeqLM.from_pretrained(model).state_dict()
    assert all(torch.equal(built[name], original[name]) for name in original)


def test_the_defaults_are_those_of_fine_tuning_and_of_translation(pairs: Path, tmp_path: Path) -> None:
    options = options_for(save_translator("marian", tmp_path / "model"), pairs)
    del options["learning_rate"]
    args = load_config(None, as_flags(options)).training
    assert (args.learning_rate, args.lr_scheduler_type, args.warmup_steps) == (5e-5, "linear", 0.1)
    assert (args.adam_beta2, args.adam_epsilon) == (0.999, 1e-8)
    assert (args.label_smoothing_factor, args.generation_num_beams, args.predict_with_generate) == (
        0.1,
        4,
        True,
    )


def test_a_kernel_that_a_converted_model_does_not_have_is_refused(pairs: Path, tmp_path: Path) -> None:
    model = save_translator("marian", tmp_path / "model")
    config = config_for(model, pairs, convert=True, attn_implementation="fastest")
    with pytest.raises(UserError, match="attn_implementation=fastest"):
        ContinuedRun(config).check()


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_bpe_dropout_needs_a_tokenizer_with_merges(kind: str, pairs: Path, tmp_path: Path) -> None:
    tokenizer = train_tokenizer([*SOURCES, *TARGETS], 300, kind=kind)
    save_tokenizers(tokenizer, tokenizer, tmp_path / "model")
    tiny_model(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    config = config_for(tmp_path / "model", pairs, max_steps=1, bpe_dropout=0.3)
    if kind == "byte":
        with pytest.raises(UserError, match="skips merges, and this tokenizer has none"):
            train(config)
        return
    train(config)
    train(config_for(tmp_path / "model", pairs, max_steps=1, output_dir=tmp_path / "plain"))
    split, plain = weights(tmp_path / "run"), weights(tmp_path / "plain")
    assert any(not torch.equal(split[name], plain[name]) for name in plain)


@pytest.mark.parametrize("part", ["encoder", "embeddings"])
def test_frozen_weights_do_not_change(part: str, pairs: Path, tmp_path: Path) -> None:
    model = save_translator("marian", tmp_path / "model")
    train(config_for(model, pairs, freeze=part, max_steps=2))
    before, after = weights(model), weights(tmp_path / "run")
    moved = {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}
    assert any(".decoder.layers" in name for name in moved)
    assert any(".encoder.layers" in name for name in moved) == (part == "embeddings")
    assert not any("embed" in name or "shared" in name for name in moved)


@pytest.mark.parametrize("kind", ["marian", "fsmt"])
def test_a_converted_model_has_type_vaswani_and_the_same_outputs(
    kind: str, pairs: Path, tmp_path: Path
) -> None:
    model = save_translator(kind, tmp_path / "model")
    run = ContinuedRun(config_for(model, pairs, convert=True))
    run.check()
    ours = run.build_model(run.build_tokenizers(None))  # type: ignore[arg-type]
    assert ours.config.model_type == "vaswani"
    theirs = AutoModelForSeq2SeqLM.from_pretrained(model)
    inputs: dict[str, Any] = {name: torch.tensor([[5, 6, 7]]) for name in ("input_ids", "decoder_input_ids")}
    inputs["use_cache"] = False  # with it FSMT computes without a causal mask
    torch.testing.assert_close(
        ours.eval()(**inputs).logits, theirs.eval()(**inputs).logits, rtol=1e-4, atol=1e-5
    )


def test_the_languages_of_a_run_are_saved_with_its_tokenizer(pairs: Path, tmp_path: Path) -> None:
    model = save_translator("nllb", tmp_path / "model")
    options = {"source_language": "deu_Latn", "target_language": "eng_Latn", "source_prefix": "the "}
    train(config_for(model, pairs, max_steps=1, **options))
    source, target = load_tokenizers(tmp_path / "run")
    assert (source.src_lang, target.tgt_lang, source_prefix(source)) == ("deu_Latn", "eng_Latn", "the ")
    translator = Translator.from_pretrained(tmp_path / "run")
    expected = target.convert_tokens_to_ids("eng_Latn")
    assert translator.model.generation_config.forced_bos_token_id == expected
    with_prefix, without = (
        TextCodec(Translator.from_pretrained(tmp_path / "run", source_prefix=prefix).source_tokenizer)
        for prefix in (None, "")
    )
    assert with_prefix.token_ids(["cat"]) == without.token_ids(["the cat"]) != without.token_ids(["cat"])
    (tmp_path / "run").rename(tmp_path / "prefixed")
    train(config_for(tmp_path / "prefixed", pairs, max_steps=1, source_prefix=""))
    assert source_prefix(load_tokenizers(tmp_path / "run")[0]) == ""


def test_the_share_of_unknown_tokens_is_reported(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_translator("marian", tmp_path / "model")
    pairs.write_text("source\ttarget\nthe cat\tΩΩ\nthe dog\tΩΩ\n")
    train(config_for(model, pairs, max_steps=1))
    told = json.loads((tmp_path / "run" / "corpus.json").read_text())["unknown_tokens"]
    assert told["source"] == 0
    assert 0 < told["target"] < 1
    assert f"unknown tokens: source 0.00%, target {told['target']:.2%}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bart", {"max_source_length": 65}, "max_source_length=65, but .* has positions for 64 tokens; set"),
        ("bart", {"convert": True}, "convert=true converts Marian and FSMT models, and .* type 'bart'"),
        ("nllb", {"target_language": "deu"}, "target_language=deu: .* no such language.* deu_Latn"),
        ("bart", {"d_model": 16}, "d_model has no effect here: .* keeps its own"),
        ("bart", {"vocab_size": 300}, "vocab_size has no effect here"),
        ("bart", {"attn_implementation": "fastest"}, "attn_implementation=fastest"),
    ],
)
def test_invalid_options_raise_an_error_before_reading_the_corpus(
    kind: str, options: dict[str, Any], message: str, pairs: Path, tmp_path: Path
) -> None:
    model = save_translator(kind, tmp_path / "model")
    with pytest.raises(UserError, match=message):
        ContinuedRun(config_for(model, pairs, **options)).check()


def test_a_model_that_is_not_an_encoder_decoder_is_refused(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"type 'bert'.*expected an encoder-decoder such as"):
        ContinuedRun(config_for(tmp_path / "model", pairs)).check()


def test_each_side_has_its_own_positions(pairs: Path, tmp_path: Path) -> None:
    model = save_translator("led", tmp_path / "model")
    ContinuedRun(config_for(model, pairs, max_source_length=200)).check()
    with pytest.raises(UserError, match=r"max_target_length=65, but .* has positions for 64 tokens"):
        ContinuedRun(config_for(model, pairs, max_target_length=65)).check()
    translator = Translator.from_pretrained(model, num_beams=1, max_length=200, device="cpu")
    assert translator.max_length == 64
    assert translator.sides.positions == 256


def test_evaluated_sources_beyond_the_positions_of_the_model_are_named(
    pairs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """References may be longer: only their loss needs positions."""
    model = save_translator("bart", tmp_path / "model")
    long = "the cat " * 80
    (tmp_path / "long.tsv").write_text(f"source\ttarget\n{long}\tthe cat\n")
    (tmp_path / "some.tsv").write_text(f"source\ttarget\n{long}\tthe cat\nthe cat\t{long}\n")
    message = (
        "none of 1 rows of the validation split fits the model, which has positions for 64 tokens of a "
        "source; give shorter texts, or a model with more positions"
    )
    with pytest.raises(UserError, match=f"^{message}$"):
        train(config_for(model, pairs, validation_file=tmp_path / "long.tsv"))
    train(config_for(model, pairs, max_steps=1, validation_file=tmp_path / "some.tsv"))
    assert "1 of 2 rows of the validation split have a source of more tokens" in caplog.text
    record = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert record["rows"] == 1
    assert record["examples"][0]["reference"].strip() == long.strip()
