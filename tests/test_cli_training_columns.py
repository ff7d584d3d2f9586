"""Commands that read tables: without names of columns they read those of the model's training."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import toy_prompting
from jsonl import write_jsonl
from toy_labels import save_toy_encoder
from toy_translation import save_toy_checkpoint
from vaswani.cli import run

COMMANDS = {
    "translate": ("pairs", ["source_field"]),
    "summarize": ("pairs", ["source_field"]),
    "score": ("pairs", ["source_field", "target_field"]),
    "align": ("pairs", ["source_field", "target_field"]),
    "score texts": ("texts", ["text_field"]),
    "embed": ("vectors", ["text_field"]),
}
# The names that each command reads otherwise.
DEFAULTS = {"source_field": "source", "target_field": "target", "text_field": "text"}
OF_TRAINING = {"source_field": "en", "target_field": "de", "text_field": "review"}
ROWS = [
    {"en": "one two", "de": "two one", "review": "one two three"},
    {"en": "three", "de": "three", "review": "two"},
]
OTHERS = {"source": "four four", "target": "four", "text": "four four"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_toy_checkpoint(folder / "pairs")
    toy_prompting.save_toy_checkpoint(folder / "texts")
    save_toy_encoder(folder / "vectors")
    return folder


def written(folder: Path, command: str, model: Path, rows: list[dict[str, Any]], *options: str) -> Any:
    """What a command writes for rows, without their own columns."""
    table = write_jsonl(folder / "rows.jsonl", rows)
    arguments = [
        "--model",
        str(model),
        "--input",
        str(table),
        "--output",
        str(folder / "out.jsonl"),
        *options,
    ]
    assert run([command.split()[0], *arguments]) == 0
    lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in rows[0]} for line in lines]


@pytest.mark.parametrize("command", COMMANDS)
def test_columns_default_to_those_of_the_training(models: Path, tmp_path: Path, command: str) -> None:
    kind, options = COMMANDS[command]
    rows = [{**row, **OTHERS} for row in ROWS]
    model = models / kind
    named = {
        which: [word for option in options for word in (f"--{option}", names[option])]
        for which, names in {"defaults": DEFAULTS, "of training": OF_TRAINING}.items()
    }
    expected = {which: written(tmp_path, command, model, rows, *given) for which, given in named.items()}
    assert expected["defaults"] != expected["of training"]
    assert written(tmp_path, command, model, rows) == expected["defaults"]

    (model / "training_config.yaml").write_text(yaml.safe_dump({name: OF_TRAINING[name] for name in options}))
    try:
        assert written(tmp_path, command, model, rows) == expected["of training"]
        assert written(tmp_path, command, model, rows, *named["defaults"]) == expected["defaults"]
    finally:
        (model / "training_config.yaml").unlink()


def test_lists_and_training_targets_in_one_table_need_a_choice(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"en": "one two", "de": "two one", "hypotheses": ["two one", "one"]}]
    table = write_jsonl(tmp_path / "rows.jsonl", rows)
    settings = models / "pairs" / "training_config.yaml"
    settings.write_text(yaml.safe_dump(OF_TRAINING))
    arguments = ["score", "--model", str(models / "pairs"), "--input", str(table)]
    try:
        assert run(arguments) == 2
        assert (
            "has fields 'de' and 'hypotheses'; choose with --target_field hypotheses, or --target_field de"
            in (capsys.readouterr().err)
        )
        assert run([*arguments, "--target_field", "hypotheses"]) == 0
        assert len(json.loads(capsys.readouterr().out)["hypotheses"]) == 2
    finally:
        settings.unlink()


@pytest.mark.parametrize(
    ("command", "kind", "problem"),
    [
        *((command, "texts", "does not translate") for command in ("translate", "summarize", "align")),
        ("generate", "pairs", "does not continue texts"),
    ],
)
def test_a_model_of_another_kind_is_refused_before_a_missing_column(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str, problem: str
) -> None:
    table = write_jsonl(tmp_path / "rows.jsonl", [{"body": "one two"}])
    assert run([command, "--model", str(models / kind), "--input", str(table)]) == 2
    assert problem in capsys.readouterr().err
