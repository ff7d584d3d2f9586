"""Files of `key: value` lines, in YAML and in JSON."""

from pathlib import Path

import pytest

from vaswani.errors import UserError
from vaswani.files.yaml_files import read_mapping


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("run.yaml", "seed: 1\nname: x\n", {"seed": 1, "name": "x"}),
        ("run.yaml", "\ufeffseed: 1\n", {"seed": 1}),
        ("run.yaml", "", {}),
        ("run.json", '{"rate":\t1e-3}', {"rate": 0.001}),  # PyYAML reads 1e-3 as text and no tab
    ],
)
def test_keys_and_values_are_read(tmp_path: Path, name: str, content: str, expected: dict) -> None:
    (tmp_path / name).write_text(content)
    assert read_mapping(tmp_path / name, "settings file") == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.yaml", "a: [", "cannot be read: while parsing"),
        ("run.yaml", "a: 1\na: 2", "cannot be read: a is given twice, in lines 1 and 2"),
        ("run.json", '{"a": 1, "a": 2}', "cannot be read: an object gives the key 'a' more than once"),
        ("run.json", "{", "cannot be read: Expecting property name"),
        ("run.json", "[" * 100_000, "cannot be read: "),
        ("run.yaml", "- 1", r"must hold `key: value` lines, not \[1\]"),
        ("run.yaml", b"a: \xff", "cannot be read: 'utf-8' codec"),
    ],
)
def test_other_content_raises_an_error(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"^settings file .*{name} {message}.*; correct it$") as raised:
        read_mapping(path, "settings file", "correct it")
    assert "\n" not in str(raised.value)


def test_a_missing_file_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^settings file .*run.yaml does not exist$"):
        read_mapping(tmp_path / "run.yaml", "settings file")
