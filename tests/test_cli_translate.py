"""`vaswani translate` and `vaswani evaluate` as a user runs them: processes, pipes, files, signals."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

from in_process import outcome
from standard_error import without_progress
from toy_translation import (
    save_toy_checkpoint,
    save_toy_reverse_checkpoint,
    toy_model,
    toy_reverse_model,
    toy_rows,
    toy_tokenizer,
)
from vaswani import Scorer
from vaswani.files.line_files import LineWriter
from vaswani.inference.translate.translation import Translator
from vaswani.kernels import int8_linear

COMMAND = [sys.executable, "-m", "vaswani"]
TEXT = "one two three\n\nfour\n"
GREEDY = ["--num_beams", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_toy_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def translator() -> Translator:
    return Translator(toy_model(), toy_tokenizer())


def vaswani(*arguments: str | Path, text: str | bytes = b"", **options: Any) -> subprocess.CompletedProcess:
    text = text.encode() if isinstance(text, str) else text
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, check=False, **options)


@contextmanager
def line_by_line(model: Path) -> Iterator[subprocess.Popen]:
    """A process that answers each line at once."""
    command = [*COMMAND, "translate", "--model", str(model), "--buffer_size", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process


# Translating.


@pytest.mark.process
def test_standard_output_holds_translations_and_nothing_else(model: Path, translator: Translator) -> None:
    done = vaswani("translate", "--model", model, text=TEXT.encode() + b"t\xffwo\n")
    assert done.returncode == 0
    assert done.stdout.decode().split("\n") == [*translator(["one two three", "", "four", "t\ufffdwo"]), ""]
    counts = "4 lines; 1 empty; 1 not UTF-8 (their bad bytes were read as U+FFFD)\n"
    assert without_progress(done.stderr) == f"vaswani: translated {counts}"


@pytest.mark.process
@pytest.mark.skipif(int8_linear.unavailable() is not None, reason="NO VNNI instructions here")
def test_a_warning_is_one_line(model: Path) -> None:
    done = vaswani("translate", "--model", model, "--quantization", "int8", text="one two\n")
    assert done.returncode == 0
    first, last = without_progress(done.stderr).splitlines()
    assert first.startswith("vaswani: quantization=int8 changes nothing: no linear layer of this model has")
    assert last == "vaswani: translated 1 line"


def test_files_n_best_and_options_take_effect(model: Path, tmp_path: Path, capfd) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text(TEXT)
    command = ["translate", "--model", model, "--input", source, "--output", output]
    status, stdout, _ = outcome(
        capfd, *command, "--n_best", "2", "--num_beams", "3", "--length_penalty", "1.5", "--max_length", "4"
    )
    assert (status, stdout) == (0, "")
    options: dict[str, Any] = {"num_beams": 3, "length_penalty": 1.5, "max_length": 4}
    expected = Translator(toy_model(), toy_tokenizer(), **options).translate(TEXT.splitlines(), n_best=2)
    for line, translation in zip(output.read_text().splitlines(), expected, strict=True):
        record = json.loads(line)
        assert record["source"] == translation.source
        assert [h["text"] for h in record["hypotheses"]] == [h.text for h in translation.hypotheses]
        assert [h["score"] for h in record["hypotheses"]] == pytest.approx(
            [h.score for h in translation.hypotheses], abs=1e-4
        )


def test_the_scores_flag_equals_n_best_1(model: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in.txt").write_text(TEXT)
    command = ["translate", "--model", model, "--input", tmp_path / "in.txt"]
    outputs = [outcome(capfd, *command, *flags)[1] for flags in (["--scores"], ["--n_best", "1"])]
    assert outputs[0] == outputs[1]
    assert [len(json.loads(line)["hypotheses"]) for line in outputs[0].splitlines()] == [1, 0, 1]


def test_dtype_device_and_batch_size_reach_the_model(model: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "in.txt").write_text(TEXT)
    command = ["translate", "--model", model, "--input", tmp_path / "in.txt", "--scores"]
    exact, rounded, one_by_one = (
        [json.loads(line)["hypotheses"] for line in outcome(capfd, *command, *flags)[1].splitlines()]
        for flags in ([], ["--dtype", "bfloat16", "--device", "cpu"], ["--max_tokens_per_batch", "1"])
    )
    assert exact[0][0]["score"] != rounded[0][0]["score"]
    assert exact[0][0]["text"] == one_by_one[0][0]["text"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "seed": 7},
        {"min_length": 9, "max_length_ratio": 4.0, "min_length_ratio": 1.5},
        {"repetition_penalty": 0.1},
        {"coverage_penalty": 5.0},
        {"mbr_metric": "chrf"},
        {"banned_phrases": ["7 7", "1"], "required_phrases": ["9 9", "6"]},
    ],
    ids=str,
)
def test_options_of_decoding_reach_the_search(
    model: Path, tmp_path: Path, capfd, options: dict[str, Any], translator: Translator
) -> None:
    (tmp_path / "in.txt").write_text("seven seven seven seven\n" + TEXT)
    names = {"banned_phrases": "ban", "required_phrases": "require"}
    flags = [
        word
        for name, value in options.items()
        for each in (value if isinstance(value, list) else [value])
        for word in (f"--{names.get(name, name)}", str(each))
    ]
    status, output, _ = outcome(capfd, "translate", "--model", model, "--input", tmp_path / "in.txt", *flags)
    lines = (tmp_path / "in.txt").read_text().splitlines()
    assert status == 0
    assert output.splitlines() == Translator(toy_model(), toy_tokenizer(), **options)(lines)
    assert output.splitlines() != translator(lines)


def test_every_output_begins_with_a_prefix(
    model: Path, tmp_path: Path, capfd, translator: Translator
) -> None:
    (tmp_path / "in.txt").write_text(TEXT)
    command = ["translate", "--model", model, "--input", tmp_path / "in.txt", "--prefix", "9 8"]
    status, output, _ = outcome(capfd, *command)
    assert status == 0
    lines = TEXT.splitlines()
    expected = [each.text for each in translator.translate(lines, prefixes=["9 8"] * len(lines))]
    assert output.splitlines() == expected
    assert [text.startswith("9 8") for text in expected] == [True, False, True]
    status, output, errors = outcome(capfd, *command, "--ban", "8")
    assert (status, output) == (2, "")
    assert errors == "vaswani: prefix: '9 8' contains the banned phrase '8'; leave one of them out\n"


def test_several_models_form_an_ensemble(model: Path, corpus: list[Path], tmp_path: Path, capfd) -> None:
    other = save_toy_checkpoint(tmp_path / "other", d_model=16, norm_order="pre", decoder_layers=2)
    together = ["--model", model, "--model", other]
    for flags, options in (
        ([], {}),
        (["--ensemble_weights", "1,4"], {"ensemble_weights": [1, 4]}),
        (["--ensemble_average", "log_probabilities"], {"ensemble_average": "log_probabilities"}),
    ):
        translator = Translator.from_pretrained([model, other], **options)
        expected = translator(corpus[1].read_text().splitlines())
        status, output, _ = outcome(capfd, "translate", *together, *flags, "--input", corpus[1])
        assert (status, output.splitlines()) == (0, expected)
        data = ["--data", *corpus[1:], "--output", tmp_path / "out.txt", "--json"]
        status, output, _ = outcome(capfd, "evaluate", *together, *flags, *data)
        assert status == 0
        assert json.loads(output.splitlines()[-1])["model"] == [str(model), str(other)]
        assert (tmp_path / "out.txt").read_text().splitlines() == expected
    for flags, message in (
        (["--ensemble_weights", "1,x"], "ensemble_weights=1,x must be numbers with commas between them"),
        (["--ensemble_weights", "1"], "ensemble_weights has 1 weights, and there are 2 models"),
        (["--ensemble_weights", "1,nan"], "ensemble_weights=nan must be above 0"),
    ):
        status, _, errors = outcome(capfd, "translate", *together, *flags)
        assert (status, errors.count("\n")) == (2, 1)
        assert message in errors


def test_a_reverse_model_ranks(model: Path, corpus: list[Path], tmp_path: Path, capfd) -> None:
    reverse = save_toy_reverse_checkpoint(tmp_path / "reverse")
    lines = corpus[1].read_text().splitlines()
    both = ["--model", model, "--num_beams", "6", "--reverse_model", reverse]
    for flags, weight in ([], None), (["--reverse_weight", "3"], 3.0):
        scorer = Scorer(toy_reverse_model(), toy_tokenizer())
        options: dict[str, Any] = {"num_beams": 6, "reverse_model": scorer, "reverse_weight": weight}
        ranking = Translator(toy_model(), toy_tokenizer(), **options)
        expected = list(ranking.translate(lines, n_best=2))
        status, output, _ = outcome(capfd, "translate", *both, *flags, "--input", corpus[1], "--n_best", "2")
        assert status == 0
        for line, translation in zip(output.splitlines(), expected, strict=True):
            found = json.loads(line)["hypotheses"]
            assert [h["text"] for h in found] == [h.text for h in translation.hypotheses]
            for name in ("score", "reverse_log_prob"):
                assert [h.get(name) for h in found] == pytest.approx(
                    [getattr(h, name) for h in translation.hypotheses], abs=1e-4
                )
        data = ["--data", *corpus[1:], "--output", tmp_path / "out.txt", "--json"]
        status, output, _ = outcome(capfd, "evaluate", *both, *flags, *data)
        record = json.loads(output.splitlines()[-1])
        assert (status, record["reverse_model"]) == (0, str(reverse))
        assert record.get("reverse_weight") == weight
        assert (tmp_path / "out.txt").read_text().splitlines() == [each.text for each in expected]
    for command, message in (
        (["evaluate", *both, "--data", *corpus[1:], "--save_scores"], "leave it out, or --reverse_model "),
        (["translate", *both[:-1], model], ", which reads one direction only; give a model from target"),
        (
            ["translate", "--model", model, "--num_beams", "1", *both[4:]],
            "reverse_model ranks the hypotheses of a beam search",
        ),
        (["translate", "--model", model, "--reverse_weight", "1"], "is for a reverse_model; add one"),
    ):
        status, _, errors = outcome(capfd, *command)
        assert (status, errors.count("\n")) == (2, 1)
        assert message in errors


def test_one_sample_cannot_be_ranked(
    model: Path, corpus: list[Path], tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before a model is loaded."""
    monkeypatch.setattr("vaswani.inference.loading.load_checkpoint", None)
    of_translate, sampling = ["--model", model, "--input", corpus[1]], ["--temperature", "1"]
    both = ["compare", model, tmp_path, "--data", corpus[1], "--target_file", corpus[2]]
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    beams, raised = "search with num_beams in place of temperature", "raise n_best"
    for command, message in (
        (["translate", *of_translate, *sampling, "--mbr_metric", "chrf"], f"n_best=1; {raised}"),
        (["translate", *of_translate, *sampling, "--coverage_penalty", "1"], f"n_best=1; {raised}"),
        (["translate", *of_translate, "--n_best", "5"], "n_best=5 is more than num_beams=4; raise num_beams"),
        (
            ["evaluate", "--model", model, "--data", *corpus[1:], *sampling, "--reverse_model", model],
            f"ranks the samples of a sentence, and n_best=1; {beams}, or leave it out",
        ),
        ([*both, *sampling, "--mbr_metric", "bleu"], f"n_best=1; {beams}"),
    ):
        status, _, errors = outcome(capfd, *command)
        assert (status, errors.count("\n")) == (2, 1), errors
        assert message in errors


@pytest.mark.parametrize(
    "flags",
    [
        ["--num_beams", "1"],
        ["--temperature", "1.3", "--seed", "4", "--prefix", "9 8"],
        ["--num_beams", "1", "--max_length", "2", "--max_source_length", "3"],
    ],
    ids=str,
)
def test_a_streamed_translation_is_the_translation(
    model: Path, tmp_path: Path, capfd, flags: list[str]
) -> None:
    (tmp_path / "in.txt").write_text(TEXT * 2)
    command = ["translate", "--model", model, "--input", tmp_path / "in.txt", *flags]
    expected, streamed = outcome(capfd, *command), outcome(capfd, *command, "--stream")
    assert streamed == expected
    assert streamed[0] == 0
    report = streamed[2].splitlines()[-1]
    assert ("6 lines; 2 empty; 2 of which only the beginning was read" in report) == ("3" in flags)
    assert ("cut off at the length limit" in report) == ("3" in flags)


def test_a_word_is_written_as_soon_as_it_is_found(model: Path, tmp_path: Path, capfd, monkeypatch) -> None:
    (tmp_path / "in.txt").write_text("one two three\n")
    written: list[str] = []
    monkeypatch.setattr(LineWriter, "write", lambda writer, text, end="\n": written.append(text + end))
    outcome(capfd, "translate", "--model", model, "--input", tmp_path / "in.txt", *GREEDY, "--stream")
    translator = Translator(toy_model(), toy_tokenizer(), num_beams=1)
    assert written == [*translator.stream("one two three"), "\n"]
    assert len(written) > 3


def test_tables_and_too_long_lines_are_not_streamed(model: Path, tmp_path: Path, capfd) -> None:
    table = tmp_path / "in.jsonl"
    table.write_text('{"source": "one"}\n')
    command = ["translate", "--model", model, *GREEDY, "--stream", "--input"]
    message = "vaswani: stream is for lines of text, and the input is a table; leave out stream\n"
    assert outcome(capfd, *command, table) == (2, "", message)
    (tmp_path / "in.txt").write_text("one two three\none\n")
    limit = ["--max_source_length", "3", "--too_long", "skip"]
    status, output, errors = outcome(capfd, *command, tmp_path / "in.txt", *limit)
    translator = Translator(toy_model(), toy_tokenizer(), num_beams=1)
    assert (status, output.splitlines()) == (0, ["", *translator(["one"])])
    assert "line 1 is left empty: it has " in errors
    assert "translated 2 lines; 1 not translated and left empty" in errors


@pytest.mark.process
def test_each_line_is_answered_at_once_on_request(model: Path, translator: Translator) -> None:
    with line_by_line(model) as process:
        for sentence in ("one two", "four"):
            process.stdin.write(f"{sentence}\n".encode())
            process.stdin.flush()
            assert process.stdout.readline().decode() == translator([sentence])[0] + "\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == b"vaswani: interrupted\n"


# What cannot go well.


def assert_one_line(done: subprocess.CompletedProcess, status: int, *parts: str) -> None:
    errors = done.stderr.decode()
    assert errors.startswith("vaswani: ")
    assert errors.count("\n") == 1
    for part in parts:
        assert part in errors
    assert (done.returncode, done.stdout) == (status, b"")


def half_written(model: Path, folder: Path) -> str:
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    return f"{weights} is damaged or half-written"


def of_another_type(model: Path, folder: Path) -> str:
    shutil.copytree(model, folder)
    BertConfig().save_pretrained(folder)
    return f"{folder} holds a model of type 'bert', which does not translate"


def without_configuration(model: Path, folder: Path) -> str:
    folder.mkdir()
    return f"{folder} holds no model (it has no config.json)"


def missing(model: Path, folder: Path) -> str:
    return f"model folder {folder} does not exist"


@pytest.mark.process
@pytest.mark.parametrize("prepare", [missing, half_written])
def test_an_incomplete_model_gives_a_one_line_error(
    model: Path, tmp_path: Path, prepare: Callable[[Path, Path], str]
) -> None:
    message = prepare(model, tmp_path / "model")
    output = tmp_path / "out.txt"
    done = vaswani("translate", "--model", tmp_path / "model", "--output", output, text=TEXT)
    assert_one_line(done, 2, message)
    assert not list(tmp_path.glob("out.txt*"))


@pytest.mark.parametrize(
    ("prepare", "command"),
    [
        (without_configuration, ["translate"]),
        (without_configuration, ["evaluate", "--data", "dates"]),
        (of_another_type, ["translate"]),
    ],
)
def test_a_model_that_cannot_translate_gives_an_error(
    model: Path, tmp_path: Path, capfd, prepare: Callable[[Path, Path], str], command: list[str]
) -> None:
    message = prepare(model, tmp_path / "model")
    status, output, errors = outcome(capfd, *command, "--model", tmp_path / "model")
    assert (status, output) == (2, "")
    assert f"vaswani: {message}" in errors


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input", "/no/such/file"], "cannot read /no/such/file: No such file or directory"),
        (["--output", "/no/such/file"], "cannot write /no/such/file: No such file or directory"),
        (["--n_best", "5"], "n_best=5 is more than num_beams=4; raise num_beams"),
        (["--n_best", "0"], "n_best=0 must be at least 1"),
        (["--num_beams", "0"], "num_beams=0 must be at least 1"),
        (["--top_k", "3"], "top_k=3 is for sampling, and no temperature is given; add temperature=1"),
        (["--temperature", "1", "--num_beams", "2"], "num_beams=2 searches, and temperature=1.0 samples"),
        (["--min_length", "9", "--max_length", "3"], "min_length=9 is more than max_length=3"),
        (["--ban", "8", "--require", "7 8"], "required_phrases: '7 8' contains the banned phrase '8'"),
        (
            ["--prefix", "1", "--prefix_field", "a"],
            "--prefix 1 and --prefix_field a exclude each other; give one",
        ),
        (
            ["--scores", "--n_best", "2"],
            "--scores has no effect with --n_best 2, which writes scores too; leave it out",
        ),
        (["--scores", "--alignments"], "--scores has no effect with --alignments, which writes scores too;"),
        (["--stream", "--n_best", "2"], "--stream and --n_best exclude each other; leave one out"),
        (["--stream", "--scores"], "--stream and --scores exclude each other; leave one out"),
        (["--stream", "--alignments"], "--stream and --alignments exclude each other; leave one out"),
        (["--stream", "--buffer_size", "3"], "--stream and --buffer_size exclude each other; leave one out"),
        (["--stream"], "stream follows one hypothesis, and num_beams=4; give num_beams=1, or a temperature"),
        (["--prefix", "1 "], "prefix: '1 ' is empty or has white space at an end; give the words alone"),
        (["--require", "日" * 400], "take 1201 tokens and the end token, and a translation may have 1024"),
        (["--num_beams", "many"], "Invalid value for '--num_beams'"),
        (["--buffer_size", "0"], "buffer_size=0 must be at least 1"),
        (["--device", "gpu"], "device 'gpu' cannot be used here"),
        (["--dtype", "fp16"], "dtype 'fp16' is unknown"),
        (["--beams", "4"], "No such option"),
        (
            ["--output", "a.jsonl"],
            "--output a.jsonl would hold lines of text, not JSON; end it in .txt, or add",
        ),
    ],
)
def test_wrong_flags_give_one_line_and_status_2(model: Path, capfd, flags: list[str], message: str) -> None:
    status, output, errors = outcome(capfd, "translate", "--model", model, *flags)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_debug_shows_the_traceback(model: Path, capfd) -> None:
    status, _, errors = outcome(capfd, "translate", "--model", model, "--dtype", "fp16", "--debug")
    assert status == 2
    assert errors.startswith("Traceback")


@pytest.mark.process
def test_a_closed_output_pipe_ends_the_command_silently(model: Path) -> None:
    with line_by_line(model) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b"two\nthree\n")
        process.stdin.close()
        errors = process.stderr.read()
    assert process.returncode == 141  # as a shell shows SIGPIPE
    assert without_progress(errors) == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, the disk that is always full")
def test_a_full_disk_for_standard_output_gives_an_error(model: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "translate", "--model", str(model)],
            input=TEXT.encode(),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert without_progress(done.stderr) == "vaswani: cannot write standard output: No space left on device\n"


@pytest.mark.process
def test_a_full_disk_keeps_the_old_and_the_partial_output(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    output.write_text("earlier\n")
    done = vaswani(
        *("translate", "--model", model, "--output", output),
        text="one two three\n" * 20,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)),
        env={**os.environ, "VASWANI_COMPILE": "0"},  # a compiled library is a larger file
    )
    assert_one_line(done, 1, f"cannot write {output}.partial: File too large")
    assert output.read_text() == "earlier\n"
    assert 0 < (tmp_path / "out.txt.partial").stat().st_size <= 50


# Evaluating.


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    pairs = toy_rows(20, seed=-1, longest=3)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"words": {"en": s}, "digits": t}) + "\n" for s, t in pairs))
    sides = [tmp_path / "test.en", tmp_path / "test.digits"]
    for side, texts in zip(sides, zip(*pairs, strict=True), strict=True):
        side.write_text("".join(f"{text}\n" for text in texts))
    return [rows, *sides]


def test_a_table_and_a_pair_of_text_files_get_the_same_scores(
    model: Path, corpus: list[Path], translator: Translator, tmp_path: Path, capfd
) -> None:
    rows, source, target = corpus
    kept = tmp_path / "kept.txt"
    fields = ["--source_field", "words.en", "--target_field", "digits"]
    from_table = outcome(capfd, "evaluate", "--model", model, "--data", rows, *fields, "--json")
    from_text = outcome(
        capfd, "evaluate", "--model", model, "--data", source, target, "--json", "--output", kept
    )
    translations = translator(source.read_text().splitlines())
    right = sum(map(str.__eq__, translations, target.read_text().splitlines()))
    records = [json.loads(output.splitlines()[-1]) for _, output, _ in (from_table, from_text)]
    for record, data in zip(records, ([str(rows)], [str(source), str(target)]), strict=True):
        assert record["data"] == data
        assert record["rows"] == 20
        assert record["exact_match"] == pytest.approx(5 * right)
        assert record["signatures"]["bleu"].startswith("nrefs:1")
    assert [records[0][name] for name in ("bleu", "chrf")] == [records[1][name] for name in ("bleu", "chrf")]
    low, high = records[0]["intervals"]["exact_match"]
    assert low <= 5 * right <= high
    assert low < high
    assert kept.read_text().splitlines() == translations
    status, table, errors = from_table
    assert status == 0
    assert f"exact_match     {5 * right:>7.2f}  (95 % interval {low:.2f} to {high:.2f})" in table
    assert f"test of {rows}: kept 20 of 20 rows" in errors


def test_summaries_are_scored_by_rouge(model: Path, corpus: list[Path], capfd) -> None:
    flags = ["--task", "summarization", "--num_beams", "1"]
    _, output, _ = outcome(capfd, "evaluate", "--model", model, "--data", *corpus[1:], *flags)
    assert [line.split()[0] for line in output.splitlines()] == [
        "rouge1",
        "rouge2",
        "rougeL",
        "rougeLsum",
        "20",
    ]
    assert "stem:porter" in output
    status, _, errors = outcome(capfd, "evaluate", "--model", model, "--data", "x", "--task", "summary")
    assert status == 2
    assert "task=summary is unknown; choose one of translation, summarization" in errors


def test_max_source_length_truncates_sources(model: Path, corpus: list[Path], capfd) -> None:
    flags = ["--max_source_length", "2", "--num_beams", "1"]
    _, output, _ = outcome(capfd, "evaluate", "--model", model, "--data", *corpus[1:], *flags, "--json")
    record = json.loads(output.splitlines()[-1])
    assert record["max_source_length"] == 2
    assert 0 < record["cut_off_rows"] <= 20
    status, _, errors = outcome(
        capfd, "translate", "--model", model, "--input", corpus[1], "--output", "-", *flags
    )
    assert status == 0
    assert f"{record['cut_off_rows']} of which only the beginning was read" in errors


def test_too_long_sources_are_skipped_or_cut(model: Path, tmp_path: Path, capfd) -> None:
    source = tmp_path / "in.txt"
    source.write_text("one\n" + "seven " * 2000 + "\ntwo\n")
    command = ["translate", "--model", model, "--input", source, "--num_beams", "1", "--max_length", "5"]
    status, output, errors = outcome(capfd, *command)
    assert (status, [bool(line) for line in output.split("\n")]) == (0, [True, False, True, False])
    assert "line 2 is left empty: it has " in errors
    assert "translated 3 lines; 1 not translated and left empty" in errors
    status, output, errors = outcome(capfd, *command, "--too_long", "cut")
    assert (status, [bool(line) for line in output.split("\n")]) == (0, [True, True, True, False])
    assert "translated 3 lines; 1 of which only the beginning was read" in errors
    status, output, errors = outcome(capfd, *command, "--max_source_length", "100", "--too_long", "skip")
    assert "more than max_source_length=100; raise that, or truncate it (too_long=cut)" in errors
    status, output, errors = outcome(capfd, *command, "--too_long", "drop")
    assert (status, errors) == (2, "vaswani: too_long='drop' is unknown; expected 'cut' or 'skip'\n")


def test_without_json_only_a_table_is_printed(model: Path, corpus: list[Path], capfd) -> None:
    _, output, _ = outcome(capfd, "evaluate", "--model", model, "--data", *corpus[1:], "--num_beams", "1")
    assert [line.split()[0] for line in output.splitlines()] == [
        "bleu",
        "chrf",
        "exact_match",
        "bleu_lowercased",
        "20",
    ]


@pytest.mark.slow
def test_the_built_in_dates_can_be_evaluated(model: Path, capfd) -> None:
    flags = ["--split", "validation", "--dataset_config", "de", "--max_length", "2", "--num_beams", "1"]
    status, output, _ = outcome(capfd, "evaluate", "--model", model, "--data", "dates", *flags, "--json")
    record = json.loads(output.splitlines()[-1])
    assert status == 0
    assert (record["data"], record["split"], record["rows"]) == (["dates"], "validation", 2000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (["nowhere.jsonl"], "no such file: nowhere.jsonl"),
        (["nowhere.en", "nowhere.digits"], "no such file: nowhere.en"),
        (["{rows}"], "has no field 'source'; it has"),
        (["{source}"], "has none of the known endings"),
        (["./nowhere"], "dataset=./nowhere: no such folder"),
        (["dates", "--split", "tests"], "the corpus has no split 'tests'; it has "),
        ([], "Missing option '--data'"),
    ],
)
def test_a_missing_corpus_gives_a_one_line_error(
    model: Path, corpus: list[Path], capfd, data: list[str], message: str
) -> None:
    names = {"rows": corpus[0], "source": corpus[1]}
    flags = [part.format(**names) for part in data]
    flags = ["--data", *flags] if flags else []
    status, output, errors = outcome(capfd, "evaluate", "--model", model, *flags)
    assert (status, output) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
