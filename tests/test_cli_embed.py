"""`vaswani embed` as a user runs it: lines in, vectors out, in each format."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from in_process import outcome
from standard_error import without_progress
from toy_translation import toy_tokenizer
from vaswani import VaswaniDecoderConfig, VaswaniEncoderConfig, VaswaniForCausalLM, VaswaniForMaskedLM
from vaswani.inference.embed.embedding import Embedder
from vaswani.inference.embed.scalar_mix import ScalarMix
from vaswani.inference.embed.word_vectors import stack_word_vectors

LINES = ["one two three", "", "four"]
TEXT = "".join(f"{line}\n" for line in LINES)
TOLERANCE: dict[str, Any] = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """An encoder of two layers that takes texts of up to 12 tokens."""
    torch.manual_seed(0)
    sizes = {
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "initializer_range": 0.5,
    }
    config = VaswaniEncoderConfig(vocab_size=304, d_model=8, max_position_embeddings=12, **sizes)
    return saved(VaswaniForMaskedLM(config), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def causal_model(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    sizes = {
        "decoder_layers": 2,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 16,
        "initializer_range": 0.5,
    }
    config = VaswaniDecoderConfig(vocab_size=304, d_model=8, **sizes)
    return saved(VaswaniForCausalLM(config), tmp_path_factory.mktemp("causal"))


def saved(model: torch.nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text(TEXT)
    return tmp_path / "in.txt"


def embed(capfd, *arguments: str | Path) -> tuple[int, str, str]:
    return outcome(capfd, "embed", *arguments)


def records(capfd, *arguments: str | Path) -> list[dict[str, Any]]:
    status, output, errors = embed(capfd, *arguments)
    assert status == 0, errors
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.slow
@pytest.mark.process
def test_standard_output_holds_only_one_vector_per_line(model: Path) -> None:
    command = [sys.executable, "-m", "vaswani", "embed", "--model", str(model)]
    done = subprocess.run(command, input=TEXT.encode() + b"t\xffwo\n", capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    written = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [record["index"] for record in written] == [0, 1, 2, 3]
    vectors = torch.tensor([record["vector"] for record in written])
    expected = Embedder.from_pretrained(model).embed([*LINES, "t\ufffdwo"])
    torch.testing.assert_close(vectors, expected, **TOLERANCE)
    counts = "4 lines; 1 empty; 1 not UTF-8 (their bad bytes were read as U+FFFD)\n"
    assert without_progress(done.stderr) == f"vaswani: embedded {counts}"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        (["--pooling", "max"], {"pooling": "max"}),
        (["--layers", "all"], {"layers": "all"}),
        (["--layers", "-1,0"], {"layers": [-1, 0]}),
        (["--layers", "-1,0", "--combine", "mean"], {"layers": [-1, 0], "combine": "mean"}),
        (["--normalize"], {"normalize": True}),
        (["--dtype", "bfloat16", "--device", "cpu"], {"dtype": "bfloat16"}),
    ],
)
def test_options_reach_the_vectors(
    model: Path, text: Path, capfd, flags: list[str], options: dict[str, Any]
) -> None:
    plain = records(capfd, "--model", model, "--input", text)
    written = records(capfd, "--model", model, "--input", text, *flags)
    assert written != plain
    vectors = torch.tensor([record["vector"] for record in written])
    torch.testing.assert_close(vectors, Embedder.from_pretrained(model, **options).embed(LINES), **TOLERANCE)


def test_a_batch_size_changes_nothing_but_speed(model: Path, text: Path, capfd) -> None:
    one, other = (
        records(capfd, "--model", model, "--input", text, "--max_tokens_per_batch", size)
        for size in ("1", "1000")
    )
    for mine, its in zip(one, other, strict=True):
        assert mine["vector"] == pytest.approx(its["vector"], abs=1e-5)


def test_a_scalar_mix_comes_from_its_file(model: Path, text: Path, tmp_path: Path, capfd) -> None:
    mix = ScalarMix(3)
    torch.nn.init.normal_(mix.layer_weights)
    save_file(mix.state_dict(), tmp_path / "mix.safetensors")
    flags = ["--layers", "all", "--combine", tmp_path / "mix.safetensors"]
    written = records(capfd, "--model", model, "--input", text, *flags)
    expected = Embedder.from_pretrained(model, layers="all", combine=mix).embed(LINES)
    torch.testing.assert_close(torch.tensor([r["vector"] for r in written]), expected, **TOLERANCE)


@pytest.mark.parametrize("pooling", [None, "mean", "first_last"])
def test_words_are_written_with_their_vectors(model: Path, text: Path, capfd, pooling: str | None) -> None:
    flags = ["--subtoken_pooling", pooling] if pooling else []
    written = records(capfd, "--model", model, "--input", text, "--words", *flags)
    embedder = Embedder.from_pretrained(model, subtoken_pooling=pooling or "first")
    for index, (record, expected) in enumerate(zip(written, embedder.embed_words(LINES), strict=True)):
        assert (record["index"], record["words"]) == (index, expected.words)
        vectors = torch.tensor(record["vectors"]).reshape(expected.vectors.shape)
        torch.testing.assert_close(vectors, expected.vectors, **TOLERANCE)


def test_tokens_are_written_with_their_vectors(model: Path, text: Path, capfd) -> None:
    written = records(capfd, "--model", model, "--input", text, "--tokens")
    for record, expected in zip(written, Embedder.from_pretrained(model).embed_tokens(LINES), strict=True):
        assert record["tokens"] == expected.tokens
        torch.testing.assert_close(torch.tensor(record["vectors"]), expected.vectors, **TOLERANCE)


def test_a_backward_model_adds_its_vectors_of_the_words(
    model: Path, causal_model: Path, text: Path, capfd
) -> None:
    flags = ["--words", "--subtoken_pooling", "last", "--backward_model", causal_model]
    written = records(capfd, "--model", model, "--input", text, *flags)
    parts = [
        Embedder.from_pretrained(folder, subtoken_pooling="last", backward=backward).embed_words(LINES)
        for folder, backward in [(model, False), (causal_model, True)]
    ]
    for record, expected in zip(written, stack_word_vectors(parts), strict=True):
        assert record["words"] == expected.words
        vectors = torch.tensor(record["vectors"]).reshape(expected.vectors.shape)
        torch.testing.assert_close(vectors, expected.vectors, **TOLERANCE)


def test_vectors_of_two_models_have_length_1_together(
    model: Path, causal_model: Path, text: Path, capfd
) -> None:
    flags = ["--words", "--subtoken_pooling", "last", "--backward_model", causal_model]
    plain, scaled = (
        records(capfd, "--model", model, "--input", text, *flags, *more) for more in ([], ["--normalize"])
    )
    for before, after in zip(plain, scaled, strict=True):
        if before["vectors"]:
            expected = torch.nn.functional.normalize(torch.tensor(before["vectors"]), dim=1)
            torch.testing.assert_close(torch.tensor(after["vectors"]), expected, **TOLERANCE)


def test_the_ending_of_the_output_selects_the_array_format(
    model: Path, text: Path, tmp_path: Path, capfd
) -> None:
    embedder = Embedder.from_pretrained(model)
    outputs = [tmp_path / name for name in ("out.npy", "out.safetensors", "words.safetensors")]
    for output, flags in zip(outputs, ([], [], ["--words"]), strict=True):
        command = ["--model", model, "--input", text, "--output", output, *flags]
        assert embed(capfd, *command)[:2] == (0, "")
    assert np.array_equal(np.load(outputs[0]), embedder.embed(LINES).numpy())
    assert torch.equal(load_file(outputs[1])["vectors"], embedder.embed(LINES))
    of_words = load_file(outputs[2])
    assert of_words["lengths"].tolist() == [3, 0, 1]
    expected = torch.cat([sentence.vectors for sentence in embedder.embed_words(LINES)])
    assert torch.equal(of_words["vectors"], expected)


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy", "out.safetensors"])
def test_no_lines_give_no_vectors(model: Path, tmp_path: Path, capfd, name: str) -> None:
    (tmp_path / "in.txt").touch()
    command = ["--model", model, "--input", tmp_path / "in.txt", "--output", tmp_path / name]
    status, _, errors = embed(capfd, *command)
    assert (status, errors) == (0, "vaswani: embedded 0 lines\n")
    assert (tmp_path / name).is_file()


def test_a_too_long_line_gives_a_one_line_error_or_is_truncated(model: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in.txt").write_text("one\n" + "one " * 20 + "\n")
    command = ["--model", model, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.jsonl"]
    status, output, errors = embed(capfd, *command)
    assert (status, output) == (2, "")
    assert errors.startswith("vaswani: text 1, counted from 0, has ")
    assert errors.count("\n") == 1
    assert not list(tmp_path.glob("out*"))
    status, _, errors = embed(capfd, *command, "--truncation")
    assert (status, errors) == (0, "vaswani: embedded 2 lines; 1 cut off at the length limit\n")
    (tmp_path / "in.txt").write_text("one\n \n\n")
    assert embed(capfd, *command)[2] == "vaswani: embedded 3 lines; 2 empty\n"
    (tmp_path / "in.txt").write_text("one\n" + "one " * 20 + "\n")
    status, _, errors = embed(capfd, *command, "--max_length", "2")
    assert status == 2
    assert "text 1, counted from 0" in errors or "text 0, counted from 0" in errors
    assert "more than max_length=2; truncate it (truncation), or raise max_length" in errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--words", "--tokens"], "--words and --tokens exclude each other"),
        (["--words", "--pooling", "max"], "--pooling is for vectors of texts, not of words; leave it out"),
        (["--subtoken_pooling", "mean"], "--subtoken_pooling is for vectors of words; add --words"),
        (["--backward_model", "x"], "--backward_model is for vectors of words; add --words"),
        (["--pooling", "sum"], "pooling='sum' is unknown; expected one of 'mean', 'cls', 'max', 'last'"),
        (["--layers", "top"], "--layers top: expected last, all or numbers such as -1,-2"),
        (["--layers", "3"], "the model has no layer 3; expected 0 (its embeddings) to 2, or -3 to -1"),
        (["--combine", "sum"], "combine='sum' is unknown; expected one of 'concat', 'mean'"),
        (["--combine", "no.safetensors"], "no.safetensors holds no scalar mix"),
        (["--output", "x.npy", "--words"], "x.npy can hold one vector per text, not vectors of words"),
        (["--output", "/no/such/x.npy"], "cannot write /no/such/x.npy: /no/such is not a writable folder"),
        (["--output", "/no/such/x"], "cannot write /no/such/x: No such file or directory"),
        (["--input", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["--max_tokens_per_batch", "0"], "max_tokens_per_batch=0 must be at least 1"),
        (["--device", "gpu"], "device 'gpu' cannot be used here"),
        (["--revision", "main"], "revision='main' applies to models on the Hub"),
        (["--layer", "1"], "No such option"),
    ],
)
def test_wrong_flags_give_one_line_and_status_2(
    model: Path, text: Path, capfd, flags: list[str], message: str
) -> None:
    source = [] if "--input" in flags else ["--input", text]
    status, output, errors = embed(capfd, "--model", model, *source, *flags)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_folder_without_a_model_gives_a_one_line_error(tmp_path: Path, capfd) -> None:
    status, output, errors = embed(capfd, "--model", tmp_path)
    assert (status, output) == (2, "")
    assert "holds no model (it has no config.json)" in errors
    assert errors.count("\n") == 1
