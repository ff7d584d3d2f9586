"""`vaswani generate` as a user runs it: lines, tables, chats and pipes; and what it refuses."""

import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml

from in_process import outcome
from jsonl import write_jsonl
from tiny_causal import TEXT, gpt2_like, ours
from toy_translation import save_toy_checkpoint
from vaswani.cli import run
from vaswani.data.tokenization import train_tokenizer
from vaswani.inference.generate.generation import GeneratedText, Generation, TextGenerator
from vaswani.inference.inputs import on_one_line

PROMPTS = ["the cat", "", "is that right?", "1 2 3"]
CHATS: list[Any] = [
    [{"role": "user", "content": "is it?"}],
    [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}],
]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "causal"
    torch.manual_seed(0)
    tokenizer = train_tokenizer([TEXT] * 3, 320, purpose="causal")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    ours(vocab_size=len(tokenizer)).save_pretrained(folder)
    return folder


def generated(model: Path, prompts: list[Any], **options: Any) -> list[str]:
    return TextGenerator.from_pretrained(model, **{"max_new_tokens": 6, **options})(prompts)


def command(capfd: pytest.CaptureFixture, model: Path, *arguments: object) -> tuple[int, str, str]:
    return outcome(capfd, "generate", "--model", model, *arguments)


def rows_of(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_each_prompt_line_gives_one_output_line(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    expected = generated(model, PROMPTS)
    status, output, errors = command(capfd, model, "--input", lines, "--max_new_tokens", "6")
    assert status == 0, errors
    assert output == "".join(f"{text}\n" for text in expected)
    assert "continued 4 lines" in errors


def test_a_stream_writes_the_same_lines(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    lines, options = tmp_path / "prompts.txt", ["--max_new_tokens", "9", "--temperature", "2"]
    lines.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    whole = command(capfd, model, "--input", lines, *options)
    assert whole[0] == 0, whole[2]
    assert command(capfd, model, "--input", lines, *options, "--stream")[:2] == whole[:2]
    table = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "the cat"}])
    status, output, errors = command(capfd, model, "--input", table, "--stream")
    assert (status, output) == (2, "")
    assert "stream is for lines of text, and the input is a table; leave out stream" in errors


def test_line_breaks_become_spaces_and_are_counted(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    lines, table = tmp_path / "prompts.txt", write_jsonl(tmp_path / "in.jsonl", [{"prompt": "the cat"}] * 2)
    lines.write_text("the cat\nthe cat\n")
    found = [Generation("the cat", (GeneratedText(text, True),)) for text in (" sat\r\n\non it", " sat")]

    def generate(generator: TextGenerator, texts: Iterable[str], **_: Any) -> Iterator[Generation]:
        return (generation for generation, _ in zip(found, texts, strict=True))

    with patch.object(TextGenerator, "generate", generate):
        _, of_lines, errors = command(capfd, model, "--input", lines)
        _, of_rows, silent = command(capfd, model, "--input", table)
    assert of_lines == " sat on it\n sat\n"
    assert "1 with line breaks, which became spaces" in errors
    assert [row["continuation"] for row in rows_of(of_rows)] == [" sat\r\n\non it", " sat"]
    assert "line breaks" not in silent


def test_samples_are_json_with_their_scores(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    options = ["--num_samples", "3", "--temperature", "0.8", "--top_p", "0.9", "--seed", "5"]
    status, output, errors = command(capfd, model, "--input", lines, *options, "--max_new_tokens", "6")
    assert status == 0, errors
    generator = TextGenerator.from_pretrained(model, max_new_tokens=6, temperature=0.8, top_p=0.9, seed=5)
    expected = list(generator.generate(PROMPTS, num_samples=3))
    for row, generation in zip(rows_of(output), expected, strict=True):
        assert row["prompt"] == generation.prompt
        assert [one["text"] for one in row["continuations"]] == [one.text for one in generation.continuations]
        assert [one["log_prob"] for one in row["continuations"]] == pytest.approx(
            [one.log_prob for one in generation.continuations], abs=1e-4
        )
        assert {*row} == {"prompt", "continuations"}
    assert len({one["text"] for row in rows_of(output) for one in row["continuations"]}) > 6


def test_a_too_long_prompt_is_reported_in_its_row_and_on_standard_error(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    table = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "the"}, {"prompt": TEXT * 3}])
    status, output, errors = command(capfd, model, "--input", table, "--num_samples", "1")
    assert status == 0
    short, long = rows_of(output)
    assert "problem" not in short
    assert (long["continuations"], long["prompt"]) == ([], TEXT * 3)
    assert f"line 2 of {table} is left empty: {long['problem']}" in errors
    assert "1 not continued and left empty" in errors
    status, output, errors = command(
        capfd, model, "--input", table, "--num_samples", "1", "--too_long", "cut", "--max_new_tokens", "5"
    )
    assert [row.get("prompt_cut_off") for row in rows_of(output)] == [None, True]
    assert "1 of which only the end was read" in errors


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_a_table_keeps_its_fields(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, ending: str
) -> None:
    table = tmp_path / f"in{ending}"
    if ending == ".csv":
        table.write_text("id,question\n1,the cat\n2,is it\n")
    else:
        write_jsonl(table, [{"id": "1", "question": "the cat"}, {"id": "2", "question": "is it"}])
    options = ["--prompt_field", "question", "--output_field", "answer", "--max_new_tokens", "6"]
    status, output, errors = command(capfd, model, "--input", table, *options)
    assert status == 0, errors
    answers = generated(model, ["the cat", "is it"])
    assert rows_of(output) == [
        {"id": "1", "question": "the cat", "answer": answers[0]},
        {"id": "2", "question": "is it", "answer": answers[1]},
    ]


def test_chats_are_answered(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    table = write_jsonl(tmp_path / "in.jsonl", [{"chat": CHATS[0]}, {"chat": json.dumps(CHATS[1])}])
    options = ["--messages_field", "chat", "--max_new_tokens", "6"]
    status, output, errors = command(capfd, model, "--input", table, *options)
    assert status == 0, errors
    assert [row["continuation"] for row in rows_of(output)] == generated(model, CHATS)


@pytest.mark.parametrize("way", ["asked", "trained"])
def test_with_chat_each_line_is_a_user_message(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, way: str
) -> None:
    lines, record = tmp_path / "prompts.txt", model / "training_config.yaml"
    lines.write_text("is it?\nthe cat\n")
    command_line = ["--input", lines, "--max_new_tokens", "6", *(["--chat"] if way == "asked" else [])]
    if way == "trained":
        record.write_text(yaml.safe_dump({"messages_field": "chat"}))
    try:
        status, output, errors = command(capfd, model, *command_line)
        of_json = command(capfd, model, *command_line, "--num_samples", "1")[1]
        table = write_jsonl(tmp_path / "in.jsonl", [{"prompt": "is it?"}])
        of_table = command(capfd, model, "--input", table, "--chat", "--max_new_tokens", "6")[1]
    finally:
        record.unlink(missing_ok=True)
    assert status == 0, errors
    assert output == "".join(f"{on_one_line(text)}\n" for text in generated(model, CHATS))
    assert generated(model, CHATS) != generated(model, ["is it?", "the cat"])
    assert [row["prompt"] for row in rows_of(of_json)] == ["is it?", "the cat"]
    assert [row["continuation"] for row in rows_of(of_table)] == generated(model, CHATS[:1])


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"prompt_field": "question"}, [{"question": "the cat"}]),
        ({"messages_field": "chat", "prompt_field": "prompt"}, [{"chat": CHATS[0]}]),
    ],
    ids=["prompts", "chats"],
)
def test_fields_default_to_those_of_the_training(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, settings: dict[str, str], rows: list[Any]
) -> None:
    record = model / "training_config.yaml"
    record.write_text(yaml.safe_dump(settings))
    try:
        table = write_jsonl(tmp_path / "in.jsonl", rows)
        status, output, errors = command(capfd, model, "--input", table, "--max_new_tokens", "6")
    finally:
        record.unlink()
    assert status == 0, errors
    (row,) = rows_of(output)
    assert [row["continuation"]] == generated(model, [*rows[0].values()])


def test_json_lines_are_read_from_a_pipe(
    model: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = json.dumps({"q": "the cat"}) + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    status, output, errors = command(capfd, model, "--prompt_field", "q", "--max_new_tokens", "6")
    assert status == 0, errors
    assert rows_of(output) == [{"q": "the cat", "continuation": generated(model, ["the cat"])[0]}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num_samples", "2"], "num_samples=2 needs sampling, because greedy search finds one text"),
        (["--seed", "2"], "seed=2 is for sampling, and no temperature is given; add temperature=1"),
        (["--too_long", "warn"], "too_long=warn is unknown; expected cut or skip"),
        (["--max_new_tokens", "64", "--too_long", "cut"], "max_new_tokens=64 leaves no room for a prompt"),
        (
            ["--output_field", "text"],
            "--output_field is for tables, and {lines} is read as lines; leave it out",
        ),
        (
            ["--output_field", "text", "--num_samples", "1"],
            "--output_field text has no effect with --num_samples; leave it out",
        ),
        (
            ["--prompt_field", "a", "--messages_field", "b"],
            "--prompt_field a and --messages_field b exclude each other; give one",
        ),
        (["--chat", "--messages_field", "b"], "--chat and --messages_field b exclude each other; give one"),
        (["--messages_field", "b"], "--messages_field b is for tables, and {lines} is read as lines"),
        (["--output", "{lines}"], "{lines} would replace the input"),
        (["--output", "out.jsonl"], "add --num_samples for lines of JSON"),
        (["--stream", "--num_samples", "1"], "--stream and --num_samples exclude each other; leave one out"),
        (["--stream", "--buffer_size", "9"], "--stream and --buffer_size exclude each other; leave one out"),
    ],
)
def test_wrong_options_give_one_line_and_status_2(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, options: list[str], message: str
) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("the cat\n")
    given = [option.format(lines=lines) for option in options]
    status, output, errors = command(capfd, model, "--input", lines, *given)
    assert (status, output) == (2, "")
    assert message.format(lines=lines) in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("stream", [[], ["--stream"]], ids=["whole", "stream"])
def test_a_chat_without_a_template_is_refused_before_any_work(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture, stream: list[str]
) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("the cat\n")
    plain = shutil.copytree(model, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    status, output, errors = command(capfd, plain, "--input", lines, "--chat", *stream)
    assert (status, output) == (2, "")
    assert errors == "vaswani: chat needs a chat template, and the tokenizer has none; leave out chat\n"


def test_a_row_without_a_chat_is_named_before_any_work(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    table = write_jsonl(tmp_path / "in.jsonl", [{"chat": CHATS[0]}, {"chat": [{"role": "user"}]}])
    status, output, errors = command(capfd, model, "--input", table, "--messages_field", "chat")
    assert (status, output) == (2, "")
    assert f"line 2 of {table}: field 'chat' holds no chat: the content of message 1 is null" in errors


def test_a_model_that_cannot_continue_text_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    from transformers import BertConfig, BertForMaskedLM

    shape = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 48}
    BertForMaskedLM(BertConfig(vocab_size=320, **shape)).save_pretrained(tmp_path / "bert")
    gpt2_like().save_pretrained(tmp_path / "bert")
    lines = tmp_path / "prompts.txt"
    lines.write_text("the cat\n")
    status, _, errors = command(capfd, tmp_path / "bert", "--input", lines)
    assert status == 2
    assert "expected a causal model such as 'vaswani_decoder'" in errors or "give a causal model" in errors


def test_translators_and_causal_models_name_the_command_of_the_other(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    translator = save_toy_checkpoint(tmp_path / "translator")
    lines = tmp_path / "prompts.txt"
    lines.write_text("the cat\n")
    _, _, errors = command(capfd, translator, "--input", lines)
    assert "does not continue texts; expected a causal model such as" in errors
    assert errors.endswith(", or use vaswani translate\n")
    assert run(["translate", "--model", str(model), "--input", str(lines)]) == 2
    assert capfd.readouterr().err.endswith(", or use vaswani generate\n")
