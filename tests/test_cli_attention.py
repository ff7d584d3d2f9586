"""`vaswani attention` as a user runs it: models of every kind, options, wrong inputs."""

import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, MambaConfig, MambaForCausalLM

import library_translators
import toy_labels
from in_process import outcome
from toy_translation import save_toy_checkpoint, toy_marian, toy_tokenizer
from vaswani.insight.attention import load_attention_model, read_attention
from vaswani.insight.attention_page import page

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # those of the tokenizer
BERT = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 8}
GPT2 = {"n_embd": 8, "n_layer": 2, "n_head": 2}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_checkpoint(folder / "translator")
    toy_labels.save_toy_encoder(folder / "encoder")
    toy_labels.save_toy_decoder(folder / "decoder")
    return folder


def attention(capfd, *arguments: object) -> tuple[int, str, str]:
    return outcome(capfd, "attention", "--device", "cpu", *arguments)


def maps_of(text: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])["maps"]


def weights_of(held: dict) -> np.ndarray:
    packed = held["tokens"]
    steps = np.frombuffer(zlib.decompress(base64.b64decode(packed["weights"])), dtype="<u2")
    return steps.reshape(packed["shape"]) / page.STEPS


@pytest.mark.parametrize(
    ("kind", "texts", "expected"),
    [
        ("translator", ("one two",), ["encoder", "decoder", "cross"]),
        ("translator", ("one two", "1 2 3"), ["encoder", "decoder", "cross"]),
        ("encoder", ("one two",), ["encoder"]),
        ("encoder", ("one two", "three"), ["encoder"]),
        ("decoder", ("one two",), ["decoder"]),
    ],
)
def test_the_page_holds_the_attention(
    models: Path, tmp_path: Path, capfd, kind: str, texts: tuple[str, ...], expected: list[str]
) -> None:
    flags = [flag for pair in zip(("--source", "--target"), texts, strict=False) for flag in pair]
    output = tmp_path / "page.html"
    status, printed, errors = attention(capfd, "--model", models / kind, *flags, "--output", output)
    assert (status, printed) == (0, "")
    assert errors == f"vaswani: wrote {', '.join(expected)} attention to {output}, for a browser\n"
    text = output.read_text(encoding="utf-8")
    assert f"<title>Attention of {kind}</title>" in text
    held = maps_of(text)
    assert [each["kind"] for each in held] == expected
    for each, read in zip(held, read_attention(*load_attention_model(models / kind), *texts), strict=True):
        assert (each["tokens"]["queries"], each["tokens"]["keys"]) == ([*read.queries], [*read.keys])
        np.testing.assert_allclose(weights_of(each), read.weights, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        (lambda: BertModel(BertConfig(vocab_size=304, **BERT, **TOKENS)), ["encoder"]),
        (lambda: GPT2LMHeadModel(GPT2Config(vocab_size=304, **GPT2, **TOKENS)), ["decoder"]),
        (toy_marian, ["encoder", "decoder", "cross"]),
    ],
    ids=["bert", "gpt2", "marian"],
)
def test_models_of_the_library(tmp_path: Path, capfd, model, kinds: list[str]) -> None:
    model().save_pretrained(tmp_path / "model")
    toy_tokenizer().save_pretrained(tmp_path / "model")
    status, printed, _ = attention(
        capfd, "--model", tmp_path / "model", "--source", "one two three", "--output", "-"
    )
    assert status == 0
    held = maps_of(printed)
    assert [each["kind"] for each in held] == kinds
    for each in held:
        np.testing.assert_allclose(weights_of(each).sum(axis=-1), 1, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "source_language", "target_language"),
    [("nllb", "deu_Latn", "eng_Latn"), ("mbart", "de_DE", "fr_XX")],
)
def test_the_languages_of_a_multilingual_model(
    tmp_path: Path, capfd, kind: str, source_language: str, target_language: str
) -> None:
    model = library_translators.save_translator(kind, tmp_path)
    flags = ["--model", model, "--source", "ein Hund", "--target", "un chien", "--output", "-"]
    given = ["--source_language", source_language, "--target_language", target_language]
    as_saved, chosen, prefixed = (
        maps_of(attention(capfd, *flags, *more)[1])
        for more in ([], given, [*given, "--source_prefix", "Hund "])
    )
    keys, read = chosen[2]["tokens"]["keys"], chosen[1]["tokens"]["keys"]
    assert source_language in keys
    assert target_language in read
    assert source_language not in as_saved[2]["tokens"]["keys"]
    assert len(prefixed[2]["tokens"]["keys"]) > len(keys)


def test_the_page_is_written_to_a_file_or_standard_output(
    models: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--model", models / "encoder", "--source", "one"]
    assert attention(capfd, *flags)[0] == 0
    status, printed, errors = attention(capfd, *flags, "--output", "-")
    assert (status, printed) == (0, (tmp_path / "attention.html").read_text(encoding="utf-8"))
    assert errors == "vaswani: wrote encoder attention to standard output\n"


def test_dtype_changes_the_precision_of_the_weights(models: Path, capfd) -> None:
    flags = ["--model", models / "encoder", "--source", "one two three", "--output", "-"]
    whole, rounded = (
        maps_of(attention(capfd, *flags, "--dtype", dtype)[1]) for dtype in ("float32", "bfloat16")
    )
    assert not np.array_equal(weights_of(whole[0]), weights_of(rounded[0]))


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("translator", ["--source", " "], "the source is empty; give a text"),
        ("translator", ["--source", "one", "--target", " "], "the target is empty; give a text"),
        (
            "translator",
            ["--source", "one " * 1100],
            r"tokens, and attention is read for up to [\d,]+; shorten it",
        ),
        (
            "decoder",
            ["--source", "one", "--target", "two"],
            "reads one text; leave the target out, or append it",
        ),
        (
            "translator",
            ["--source", "one", "--target_language", "de"],
            "does not mark languages",
        ),
        (
            "encoder",
            ["--source", "one", "--source_language", "de"],
            "source_language=de is for an encoder-decoder, and .*encoder holds none; leave it out",
        ),
        ("nowhere/x/y", ["--source", "one"], "found no|does not exist"),
        ("encoder", ["--source", "one", "--output", "a.PNG"], "draw a .png with vaswani plot attention"),
        ("encoder", ["--source", "one", "--output", "none/page.html"], "create the folder .*none first"),
    ],
)
def test_wrong_inputs_give_a_one_line_error(
    models: Path, tmp_path: Path, capfd, monkeypatch, kind, flags, message
) -> None:
    monkeypatch.chdir(tmp_path)
    status, printed, errors = attention(capfd, "--model", models / kind, *flags)
    assert (status, printed) == (2, "")
    assert re.search(message, errors)
    assert errors.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_model_without_attention_gives_an_error(tmp_path: Path, capfd) -> None:
    torch.manual_seed(0)
    size = {"vocab_size": len(toy_tokenizer()), "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    MambaForCausalLM(MambaConfig(**size, **TOKENS)).save_pretrained(tmp_path / "mamba")
    toy_tokenizer().save_pretrained(tmp_path / "mamba")
    status, _, errors = attention(
        capfd, "--model", tmp_path / "mamba", "--source", "one", "--output", tmp_path / "page.html"
    )
    assert status == 2
    assert "MambaForCausalLM returns no attention weights; use a model that attends by softmax" in errors
    assert not (tmp_path / "page.html").exists()


def test_more_weights_than_a_page_holds_give_an_error(
    models: Path, tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setattr(page, "MAX_WEIGHTS", 10)
    output = tmp_path / "page.html"
    status, _, errors = attention(
        capfd, "--model", models / "encoder", "--source", "one two", "--output", output
    )
    assert status == 2
    assert "a page holds at most 10 weights" in errors
    assert not output.exists()
