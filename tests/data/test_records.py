"""Rows of tables with their positions, and errors for unreadable rows."""

from pathlib import Path

import pytest

from vaswani.data.sources.records import Record, check_text_field, fields_of, json_records, read_records
from vaswani.errors import UserError


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


def test_rows_have_the_place_where_they_begin(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'a,b\r\n"x\ny",1\r\n\r\nz,2\r\n')
    assert list(read_records(path)) == [
        Record(f"line 2 of {path}", {"a": "x\ny", "b": "1"}),
        Record(f"line 5 of {path}", {"a": "z", "b": "2"}),
    ]
    path = write(tmp_path, "a.jsonl", '{"a": 1}\n\n{}\n')
    assert [(one.place, one.row) for one in read_records(path)] == [
        (f"line 1 of {path}", {"a": 1}),
        (f"line 3 of {path}", {}),
    ]
    path = write(tmp_path, "a.json", '\n[{"a": 1},\n {"a": 2}]')
    assert [(one.place, one.row["a"]) for one in read_records(path)] == [
        (f"row 1 of {path}", 1),
        (f"row 2 of {path}", 2),
    ]
    path = write(tmp_path, "b.json", '\n{"a": 1}\n')  # JSON Lines under that name
    assert [(one.place, one.row["a"]) for one in read_records(path)] == [(f"line 2 of {path}", 1)]
    assert list(read_records(write(tmp_path, "empty.tsv", ""))) == []


def test_fields_of_a_record_are_read_as_text() -> None:
    row = Record("line 1", {"a": "x", "b": None, "c": {"d": "y"}, "e": 5, "f": ["u", "v"], "g.h": "z"})
    assert [row.text(name) for name in ("a", "b", "c.d", "none", "g.h")] == ["x", "", "y", "", "z"]
    assert row.text("f", words=True) == ["u", "v"]
    for name, words in (("e", True), ("f", False), ("c", True)):
        with pytest.raises(UserError, match=f"line 1: field '{name}' holds .*; expected a text"):
            row.text(name, words)
    assert [row.has(name) for name in ("a", "b", "c.d", "c.e", "none")] == [True, True, True, False, False]
    row.check_lacks(["z"], "rename it")
    with pytest.raises(UserError, match="line 1 has a field 'a', which the output adds; rename it"):
        row.check_lacks(["z", "a"], "rename it")


def test_fields_of_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"a": {"b": "x"}}\n{"c": "y"}\n')
    assert fields_of(path) == ["a.b", "c"]
    check_text_field(path, "--text_field", "a.b")
    with pytest.raises(UserError, match=r"--text_field: .* has no field 'a'; it has 'a.b', 'c'"):
        check_text_field(path, "--text_field", "a")
    with pytest.raises(UserError, match="has none of the known endings"):
        fields_of(tmp_path / "a.txt")


def test_a_key_that_repeats_is_named() -> None:
    with pytest.raises(UserError, match=r"line 1 of here is not JSON .*'a' more than once"):
        list(json_records(['{"a": 1, "a": 2}'], "here"))
