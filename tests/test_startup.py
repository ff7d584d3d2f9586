"""Help and early errors do not import torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import typer

import vaswani
from vaswani.cli.commands import app

HEAVY = {"torch", "transformers", "datasets", "numpy", "yaml"}
# Runs each command line in one process; a heavy module would stay loaded, and is blamed on the command.
CODE = f"""
import json, sys
from vaswani.cli import run
for arguments in json.loads(sys.argv[1]):
    status = run(arguments)
    print(json.dumps([status, sorted({HEAVY} & set(sys.modules))]), file=sys.stderr)
"""


def outcomes(commands: list[list[str]]) -> list[tuple[int, list[str]]]:
    """The status of each command, and the heavy modules that are loaded after it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(vaswani.__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stderr.splitlines() if not line.startswith("vaswani: ")]
    return [tuple(json.loads(line)) for line in lines]


def words_of_commands() -> list[list[str]]:
    found: list[list[str]] = [[]]
    for name, command in typer.main.get_command(app).commands.items():
        found.append([name])
        found += [[name, inner] for inner in getattr(command, "commands", ())]
    return found


def test_the_help_of_a_command_imports_no_slow_modules():
    helps = [["--version"], *([*words, "--help"] for words in words_of_commands())]
    for words, outcome in zip(helps, outcomes(helps), strict=True):
        assert outcome == (0, []), words


def test_future_warnings_of_libraries_are_hidden_by_default():
    code = "from vaswani.cli.startup import prepare_process; import warnings; prepare_process()\n"
    code += "warnings.warn('later', FutureWarning); warnings.warn('now')"
    for options, said in (([], "now"), (["-W", "default"], "laternow")):
        command = [sys.executable, *options, "-c", code]
        process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        assert "".join(word for word in ("later", "now") if f"Warning: {word}" in process.stderr) == said


def test_plots_of_a_log_import_no_models(tmp_path):
    log = [{"step": step, "loss": 1.0, "eval_bleu": 2.0} for step in (1, 2)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    commands = [["report", str(tmp_path)], ["plot", "curves", str(tmp_path), "--output", f"{tmp_path}/c.png"]]
    score = {"value": 2.0, "low": 1.0, "high": 3.0}
    model = {"name": "a", "role": "student", "parameters": 9, "scores": {"bleu": score}}
    report = {"metric": "bleu", "models": [model | {"retention": score}], "rows": 4}
    (tmp_path / "report.json").write_text(json.dumps(report))
    for kind in ("quality", "retention"):
        commands.append(["plot", kind, str(tmp_path), "--output", f"{tmp_path}/{kind}.png"])
    assert outcomes(commands) == [(0, ["numpy"])] * 4  # matplotlib needs it


REFUSED = (
    "train",
    "train --learing_rate 1",
    "train --config nowhere.yaml",
    "pretrain --objective=other --help",
    "translate --model /nowhere",
    "translate --widow 3",
    "embed --model ./nowhere",
    "evaluate --model a/b/c --data dates",
    "compare /nowhere /nowhere --data dates",
    "student out --teacher ~/nowhere/at/all",
    "convert /nowhere out",
    "plot sparse-pattern --length 0",
    "plot attention --model /nowhere --source one",
    "plot attention --model a/b --source one --style 3d",
    "configs show nowhere",
    "trian",
)


def test_wrong_arguments_are_refused_before_slow_imports():
    for command, outcome in zip(REFUSED, outcomes([command.split() for command in REFUSED]), strict=True):
        assert outcome == (2, []), command
