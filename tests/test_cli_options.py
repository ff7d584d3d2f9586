"""Every option of every command with awkward values: a one-line error before any work, or accepted.

The cases are made from the commands themselves.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from vaswani.cli import command_line, run
from vaswani.cli.app import MAY_BE_EMPTY, Command
from vaswani.cli.commands import app

AWKWARD = ("nan", "inf", "-inf", "-1", "0", "1e30", str(10**12))
ACCEPTED = {
    ("--seed", "0"): "a seed like others",
    ("--port", "0"): "a free one",
    ("--layer", "0"): "the first",
    ("--head", "0"): "the first",
    ("--global", "0"): "none",
    ("--random", "0"): "none",
    ("--length_penalty", "0"): "ranks by log-probability",
    ("--length_penalty", "-1"): "prefers short translations",
    ("--coverage_penalty", "0"): "does not rank again",
    ("--no_repeat_ngram_size", "0"): "lets all repeat",
    ("--doc_stride", "0"): "windows side by side",
    ("--null_score_diff_threshold", "0"): "answers where an answer is likelier",
    ("--null_score_diff_threshold", "-1"): "answers only where an answer is much likelier",
}
TAKEN = 77


def commands(group: Any, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words that call each command, and the command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield (*above, name), command


BUILT = typer.main.get_command(app)  # once: typer builds the commands anew for each call
COMMANDS = dict(commands(BUILT))
OPTIONS = [
    (words, parameter)
    for words, command in COMMANDS.items()
    for parameter in command.params
    if parameter.param_type_name == "option" and not parameter.is_flag and not parameter.is_eager
]
NUMBERS = [(words, option) for words, option in OPTIONS if option.type_descriptor.annotation in (int, float)]


def shown(part: Any) -> str:
    return " ".join(part) if isinstance(part, tuple) else getattr(part, "opts", [str(part)])[0]


def required(words: tuple[str, ...], without: Any) -> list[str]:
    """What a command must be given beside an option."""
    given = []
    for parameter in COMMANDS[words].params:
        if parameter.required and parameter is not without:
            given += [parameter.opts[0], "x"] if parameter.param_type_name == "option" else ["x"]
    return given


@pytest.fixture
def call(monkeypatch, capfd):
    """The exit status and output of a command; `TAKEN` once it would start to work."""
    monkeypatch.setattr(Command, "invoke", lambda self, context: TAKEN)
    monkeypatch.setattr(command_line, "app", BUILT)

    def command(*arguments: str) -> tuple[int, str]:
        status = run(arguments)
        return status, capfd.readouterr().err

    return command


def test_the_test_matrix_covers_every_command():
    assert len(COMMANDS) >= 15
    assert all(isinstance(command, Command) for command in COMMANDS.values())


@pytest.mark.parametrize("value", AWKWARD)
@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=shown)
def test_awkward_numbers_are_refused_or_accepted(call, words, option, value):
    name = option.opts[0]
    status, said = call(*words, *required(words, option), f"{name}={value}")
    if (name, value) in ACCEPTED:
        assert (status, said) == (TAKEN, "")
        return
    assert status == 2
    assert name.lstrip("-") in said
    assert value in said or str(float(value)) in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("words", "option"), OPTIONS, ids=shown)
def test_repeated_and_empty_options_give_an_error(call, words, option):
    name, value = option.opts[0], "1" if option.type_descriptor.annotation in (int, float) else "x"
    value = {"--threshold": "0.5"}.get(name, value)  # which is below 1
    needed = required(words, option)
    assert call(*words, *needed, name, value)[0] == TAKEN
    twice = call(*words, *needed, name, value, f"{name}={value}")
    assert twice == (
        (TAKEN, "") if option.multiple else (2, f"vaswani: {name} is given 2 times; give it once\n")
    )
    refused = (2, f"vaswani: {name} is empty; give a value, or leave it out\n")
    assert call(*words, *needed, name, "") == ((TAKEN, "") if name in MAY_BE_EMPTY else refused)


@pytest.mark.parametrize("command", ["train", "distill", "pretrain", "finetune"])
@pytest.mark.parametrize(
    "flags", [["--seed", "1", "--seed=2"], ["--max_steps", "1", "--max-steps", "2"], ["--bf16", "--no_bf16"]]
)
def test_repeated_training_flags_give_an_error(capfd, command, flags):
    assert run([command, *flags]) == 2
    assert "is given more than once; give it once" in capfd.readouterr().err
