"""Task files: their keys, the files of their rows, and one-line errors."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jsonl import write_jsonl
from vaswani.errors import UserError
from vaswani.files import named_configs
from vaswani.inference.prompt.task import Task
from vaswani.inference.prompt.task_file import load_task

TASKS = named_configs.FOLDER / "tasks"
ROWS = [{"text": "a — b", "label": "yes"}, {"text": "c", "label": "no"}]
VALUES: dict[str, Any] = {
    "prompt": "Q: {text}",
    "answer": " {label}",
    "choices": [" yes", " no"],
    "examples": ROWS,
    "test": ROWS,
}


def written(folder: Path, **values: Any) -> Path:
    """A task file; what is None is left out."""
    given = {name: value for name, value in {**VALUES, **values}.items() if value is not None}
    path = folder / "task.yaml"
    path.write_text(yaml.safe_dump(given, allow_unicode=True), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(TASKS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_included_tasks_are_valid(path: Path) -> None:
    task = load_task(path)
    task.check_shots(8)
    assert f"--task tasks/{path.stem}" in path.read_text()
    answers = [question.answer for question in task.questions]
    assert len(answers) >= 10
    assert len({question.prompt for question in (*task.questions, *task.shots)}) == len(answers) + 8
    if path.stem == "arithmetic":
        for row in (*task.test, *task.examples):
            assert row["a"] + row["b"] == row["sum"]


def test_every_key_reaches_the_task(tmp_path: Path) -> None:
    to_choose = {
        "normalize": "unconditional",
        "answer_context": "A:",
        "separator": "\n",
        "description": "Do.",
    }
    to_write = {"choices": None, "generate": True, "max_new_tokens": 3, "stop": ["."]}
    to_point = {"answer": None, "label": "number", "test": [{"text": "t", "number": 1}], "examples": None}
    for values in (to_choose, to_write, to_point):
        task = load_task(written(tmp_path, **values))
        given = {name: value for name, value in {**VALUES, **values}.items() if value is not None}
        assert task == Task(**given)


def test_rows_can_be_read_from_files_beside_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / "train.jsonl", ROWS)
    (tmp_path / "test.jsonl").write_bytes('\ufeff{"text": "x\u2028y", "label": "no"}\r\n\n'.encode())
    names = {"examples_file": "data/train.jsonl", "test_file": str(tmp_path / "test.jsonl")}
    path = written(tmp_path, examples=None, test=None, **names)
    monkeypatch.chdir("/")
    task = load_task(path)
    assert list(task.examples) == ROWS
    assert list(task.test) == [{"text": "x\u2028y", "label": "no"}]


def test_rows_can_be_read_from_csv(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("text,right\nA bore.,1\n")
    task = load_task(
        written(tmp_path, answer=None, label="right", examples=None, test=None, test_file="test.csv")
    )
    assert task.questions[0].answer == task.questions[0].choices[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"propmt": "x"}, "unknown key 'propmt'; did you mean 'prompt'?"),
        ({"few": "x"}, "unknown key 'few'; known are description, prompt, "),
        ({"prompt": 3}, "prompt: expected a text, got 3"),
        ({"prompt": None}, "prompt is missing"),
        ({"choices": [True, False]}, "choices: expected one template or a list of texts, got [True, False]"),
        ({"choices": {"a": 1}}, "choices: expected one template or a list of texts, got {'a': 1}"),
        ({"generate": "yes", "choices": None}, "generate: expected true or false, got 'yes'"),
        ({"max_new_tokens": True}, "max_new_tokens: expected a whole number, got True"),
        ({"max_new_tokens": 2.5}, "max_new_tokens: expected a whole number, got 2.5"),
        ({"stop": "."}, "stop: expected a list of texts, got '.'"),
        ({"test": ["x"]}, "test: expected a list of rows such as {text: A joy., label: positive}, got ['x']"),
        ({"test": [{1: "x"}]}, "test: expected a list of rows"),
        ({"examples": {"text": "x"}}, "examples: expected a list of rows"),
        ({"test": [{"text": "x" * 200, "label": 1}, 5]}, "..."),
        ({"test": [{"text": "t", "label": False}]}, "row 1 of test: its field 'label' holds False"),
        ({"test": None}, "test: there are no rows to answer"),
        ({"test_file": "x.jsonl"}, "test and test_file were both given; give one of them"),
        ({"examples_file": "x.jsonl", "examples": None}, "x.jsonl: No such file or directory"),
        ({"examples_file": ".", "examples": None}, "has none of the known endings"),
        ({"normalize": "chars"}, "normalize: expected 'none', 'tokens', 'unconditional', got 'chars'"),
    ],
)
def test_invalid_values_in_a_task_file_raise_an_error(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, **values)
    with pytest.raises(UserError) as raised:
        load_task(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "t", "label": "no"}\n{"text": \n', "line 2 of {path} is not JSON"),
        (
            '{"text": "t", "text": "u"}',
            "line 1 of {path} is not JSON (an object gives the key 'text' more",
        ),
        (
            '{"text": "t", "label": "no"}\n["text"]\n',
            "line 2 of {path} holds a JSON list; expected an object",
        ),
        ("[" * 100_000, "line 1 of {path} is not JSON"),
        (b'{"text": "t\xe9", "label": "no"}', "which is not UTF-8; correct it"),
        (b"\xff\xfe\n", "{path} is UTF-16"),
    ],
)
def test_invalid_rows_files_raise_an_error(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as raised:
        load_task(written(tmp_path, test=None, test_file="rows.jsonl"))
    assert message.format(path=path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- prompt", "must hold `key: value` lines, not ['prompt']"),
        ("prompt: [", "cannot be read: while parsing"),
        ("prompt: a\ntest: []\nprompt: b", "cannot be read: prompt is given twice, in lines 1 and 3"),
        ("prompt: !!python/object/apply:os.getcwd []", "cannot be read: could not determine a constructor"),
    ],
)
def test_a_file_that_is_not_a_task_raises_an_error(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(content)
    with pytest.raises(UserError) as raised:
        load_task(path)
    assert f"task file {path} {message}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_task_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task file .*nowhere\.yaml does not exist"):
        load_task(tmp_path / "nowhere.yaml")
