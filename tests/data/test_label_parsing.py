"""Labels and texts parsed from cells, and the errors for invalid ones."""

import math

import pytest

from vaswani.data.labels.label_parsing import read_label, read_text


@pytest.mark.parametrize(
    ("task", "cell", "label"),
    [
        ("classification", " pos ", "pos"),
        ("classification", 1, "1"),
        ("classification", 1.0, "1"),
        ("classification", True, "true"),
        ("classification", None, None),
        ("classification", math.nan, None),
        ("multi_label", ["funny", "sad"], ["funny", "sad"]),
        ("multi_label", "funny, sad,funny", ["funny", "sad"]),
        ("multi_label", '["funny, too", "sad"]', ["funny, too", "sad"]),
        ("multi_label", "", []),
        ("multi_label", "[]", []),
        ("multi_label", [], []),
        ("multi_label", 3, ["3"]),
        ("multi_label", None, None),
        ("regression", 2, 2.0),
        ("regression", "-2.5e1", -25.0),
        ("regression", "", None),
        ("regression", "nan", None),
        ("regression", None, None),
        ("multi_label", [1, 0], ["1", "0"]),
        ("multi_label", ["1", "1"], ["1"]),
        ("tagging", "O B-PER", ["O", "B-PER"]),
        ("tagging", ["O", 7], ["O", "7"]),
        ("tagging", '["O", "B-PER"]', ["O", "B-PER"]),
        ("tagging", "[0, 1]", ["0", "1"]),
        ("tagging", None, None),
    ],
)
def test_labels_are_read(task, cell, label):
    assert read_label(cell, task) == label


def test_the_separator_parts_labels():
    assert read_label("a, b|c", "multi_label", "|") == ["a, b", "c"]


@pytest.mark.parametrize(
    ("task", "cell", "message"),
    [
        ("classification", ["a", "b"], r"has a list, \['a', 'b'\], where one label is expected; see task"),
        ("classification", {"a": 1}, "where a label is expected; see task and label_field"),
        ("classification", 0.5, "has 0.5 where a label is expected"),
        ("multi_label", ["a", None], "has None where a label is expected"),
        ("regression", "high", "has 'high' where task=regression takes a number"),
        ("regression", [1.0], "takes a number"),
        ("regression", True, "takes a number"),
        ("regression", "inf", "takes a number"),
        ("tagging", [["O"]], "has a list"),
        ("tagging", [1, -100], "has the tag -100, which marks words without a tag; every word needs one"),
        ("classification", float("inf"), "has inf where a label is expected"),
        ("multi_label", [1, float("nan")], "has nan where a label is expected"),
        (
            "multi_label",
            [1, 0, 1],
            r"has \[1, 0, 1\], a 0 or 1 for each label; give the names of a row's labels",
        ),
        (
            "tagging",
            "['O', 'B-PER']",
            r"has \"\['O', 'B-PER'\]\", a list as Python prints it; write it as JSON",
        ),
        ("tagging", "['O'\n 'B-PER']", "a list as Python prints it"),
        ("multi_label", "['dog', 'water']", "a list as Python prints it"),
        ("multi_label", [0.0, 0.0], "a 0 or 1 for each label"),
        ("multi_label", "1,0,1", "a 0 or 1 for each label"),
        ("multi_label", [True, False], "a 0 or 1 for each label"),
        ("multi_label", "true,false", "a 0 or 1 for each label"),
        ("multi_label", [True, True, False], "a 0 or 1 for each label"),
        ("multi_label", "[0, 0, 1]", "a 0 or 1 for each label"),
    ],
)
def test_an_invalid_label_raises_an_error(task, cell, message):
    with pytest.raises(ValueError, match=message):
        read_label(cell, task)


def test_texts_are_read():
    assert read_text("two words", "classification") == "two words"
    assert read_text(7, "classification") is None
    assert read_text("two  words", "tagging") == ["two", "words"]
    assert read_text(["in", 1999], "tagging") == ["in", "1999"]
    assert read_text(["\xa0in", "x "], "tagging") == ["\xa0in", "x "]  # as they are when they are predicted
    assert read_text('["in", "New York"]', "tagging") == ["in", "New York"]
    assert read_text("[1]", "tagging") == ["[1]"]
    assert read_text("[ see above ]", "tagging") == ["[", "see", "above", "]"]
    with pytest.raises(ValueError, match=r"a list as Python prints it; write it as JSON"):
        read_text("['in', 'York']", "tagging")
    with pytest.raises(ValueError, match=r"has 3\.5 where a word is expected; see text_field"):
        read_text(["costs", 3.5], "tagging")
    with pytest.raises(ValueError, match=r"has a list.*where task=regression takes a text"):
        read_text(["a"], "regression")


def test_long_cells_are_shortened_in_error_messages():
    with pytest.raises(ValueError, match="…") as raised:
        read_label("x" * 1000, "regression")
    assert len(str(raised.value)) < 200
