"""Templates, prompts and the drawing of shots; what a task refuses."""

import random
from typing import Any

import pytest

from vaswani.errors import UserError
from vaswani.inference.prompt.task import Question, Task, fill, fill_each

CHOICES = {"prompt": "Q: {text}", "answer": " {label}", "choices": [" yes", " no"]}
ROWS = [{"text": f"text {number}", "label": ("yes", "no")[number % 2]} for number in range(8)]


def task(**options: Any) -> Task:
    return Task(**{**CHOICES, "examples": ROWS, "test": ROWS[:3], **options})


# Templates.


@pytest.mark.parametrize(
    ("template", "row", "text"),
    [
        ("{a} + {b} =", {"a": 1, "b": "two", "c": None}, "1 + two ="),
        ("{{{a}}}", {"a": "x"}, "{x}"),
        ("{answer.text}", {"answer": {"text": "deep"}}, "deep"),
        (
            "{answer.text}",
            {"answer.text": "a name with a dot", "answer": {"text": "deep"}},
            "a name with a dot",
        ),
        ("{price:.2f}", {"price": 0.5}, "0.50"),
        ("{a}", {"a": "{b}"}, "{b}"),
        ("no field", {}, "no field"),
    ],
)
def test_a_template_is_filled_with_a_row(template: str, row: dict[str, Any], text: str) -> None:
    assert fill("prompt", template, row) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{b}", r"prompt names the field 'b', and it has 'a', 'yes', 'list'"),
        ("{a.b}", r"prompt names the field 'a.b', and it has 'a', 'yes', 'list'"),
        ("{a.__class__}", r"prompt names the field 'a.__class__'"),
        ("{}", r"prompt names the field '0'"),
        ("{yes}", r"its field 'yes' holds True, where prompt needs a text or a number; in YAML, write yes"),
        ("{list}", r"its field 'list' holds \['x', 'y'\], where prompt needs a text or a number$"),
        ("{a", r"prompt: '\{a' is not a template \(.*\); write {{ or }} for a brace"),
        ("{a:d}", r"prompt: '\{a:d\}' is not a template \(Unknown format code 'd'.*\)"),
    ],
)
def test_an_invalid_template_raises_an_error(template: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fill("prompt", template, {"a": "x", "yes": True, "list": ["x", "y"]})


def test_a_list_fills_a_template_once_for_each_of_its_items() -> None:
    row = {"name": "n", "options": ["a", 2], "deep": {"er": ["b"]}}
    assert fill_each("choices", " {name} {options}", row) == [" n a", " n 2"]
    assert fill_each("choices", "{deep.er}", row) == ["b"]
    for template in (" {name}", "{options} {deep.er}"):
        with pytest.raises(UserError, match="choices: expected one field with a list in "):
            fill_each("choices", template, row)
    with pytest.raises(UserError, match="choices names the field 'other'"):
        fill_each("choices", " {other}", row)
    with pytest.raises(UserError, match="is not a template"):
        fill_each("choices", "{options", row)


# Questions.


def test_the_choices_of_a_row_are_read_in_every_form() -> None:
    row = {"text": "t", "a": "x", "b": "y", "options": ["x", "y"], "number": 1, "word": "y"}
    expected = (Question("Q: t", " y", (" x", " y")),)
    ways: list[dict[str, Any]] = [
        {"choices": [" x", " y"], "answer": " {word}"},
        {"choices": [" {a}", " {b}"], "answer": " {b}"},
        {"choices": " {options}", "answer": " {word}"},
        {"choices": " {options}", "answer": None, "label": "number"},
    ]
    for way in ways:
        assert task(examples=[], test=[row], **way).questions == expected
    (question,) = task(examples=[], test=[row], choices=None, generate=True, answer=" {word}").questions
    assert question == Question("Q: t", " y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"test": [{"text": "t", "label": "maybe"}]},
            "row 1 of test: its answer ' maybe' is not one of its choices",
        ),
        (
            {"test": [*ROWS, {"label": "no"}]},
            "row 9 of test: prompt names the field 'text', and it has 'label'",
        ),
        (
            {"examples": [{"text": "t"}]},
            "row 1 of examples: answer names the field 'label', and it has 'text'",
        ),
        ({"choices": [" yes"]}, "row 1 of test: its choices must be two or more"),
        ({"choices": [" yes", " no", " no"]}, "different"),
        ({"choices": [" yes", " no", ""]}, "not empty"),
        (
            {"answer": None, "label": "label"},
            "its field 'label' holds 'yes', where label needs the number of",
        ),
        ({"answer": None, "label": "n", "test": [{"text": "t", "n": 2}]}, "holds 2, where .* from 0 to 1"),
        ({"answer": None, "label": "n", "test": [{"text": "t", "n": -1}]}, "holds -1"),
        ({"answer": None, "label": "n", "test": [{"text": "t", "n": True}]}, "holds True"),
        ({"test": []}, "test: there are no rows to answer"),
        ({"generate": True}, "a task has choices, or generate: true; got both"),
        ({"choices": None}, "a task has choices, or generate: true; got neither"),
        ({"answer": None}, "answer, a template, or label, a choice's field; got neither"),
        ({"label": "label"}, "answer, a template, or label, a choice's field; got both"),
        ({"choices": None, "generate": True, "answer": None}, "generate needs answer"),
        ({"choices": None, "generate": True, "label": "n"}, "label has no effect with generate: true"),
        ({"choices": None, "generate": True, "normalize": "tokens"}, "normalize has no effect with generate"),
        (
            {"choices": None, "generate": True, "answer_context": "A:"},
            "answer_context has no effect with gen",
        ),
        ({"choices": None, "generate": True, "stop": [""]}, "stop: an empty text would end every answer"),
        ({"choices": None, "generate": True, "separator": ""}, "stop: an empty text would end every answer"),
        ({"choices": None, "generate": True, "max_new_tokens": 0}, "max_new_tokens=0 must be at least 1"),
        ({"stop": ["."]}, "stop has no effect with choices"),
        ({"max_new_tokens": 3}, "max_new_tokens has no effect with choices"),
        ({"answer_context": "A:"}, "answer_context has no effect without normalize: unconditional"),
        ({"normalize": "chars"}, "normalize: expected 'none', 'tokens', 'unconditional', got 'chars'"),
    ],
)
def test_an_invalid_task_raises_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        task(**options)


# Prompts.


def test_a_prompt_is_the_description_the_shots_and_the_question() -> None:
    one = task()
    assert one.text(one.questions[2], []) == "Q: text 2"
    assert one.text(one.questions[2], one.shots[:2]) == "Q: text 0 yes\n\nQ: text 1 no\n\nQ: text 2"
    other = task(description="Yes or no?", separator=" | ")
    assert other.text(other.questions[2], other.shots[:1]) == "Yes or no? | Q: text 0 yes | Q: text 2"
    assert other.text(other.questions[2], []) == "Yes or no? | Q: text 2"


def test_an_answer_stops_at_the_separator_by_default() -> None:
    options: dict[str, Any] = {"choices": None, "generate": True}
    assert list(task(**options, separator="##").stop_texts) == ["##"]
    assert list(task(**options, stop=[".", "!"]).stop_texts) == [".", "!"]


# Shots.


def test_shots_depend_only_on_the_seed_and_the_question() -> None:
    one = task()
    drawn = [one.draw_shots(number, 4, seed) for number in range(3) for seed in range(3)]
    assert len({tuple(shot.prompt for shot in shots) for shots in drawn}) == len(drawn)
    random.seed(5)
    state = random.getstate()
    assert [task().draw_shots(number, 4, seed) for number in range(3) for seed in range(3)] == drawn
    assert random.getstate() == state


def test_fewer_shots_are_the_first_of_more_shots() -> None:
    for number in range(3):
        most = task().draw_shots(number, 7)
        assert [task().draw_shots(number, count) for count in range(8)] == [
            most[:count] for count in range(8)
        ]


def test_shots_are_drawn_uniformly_and_never_the_question_itself() -> None:
    one = task()
    first = [one.draw_shots(0, 1, seed)[0].prompt for seed in range(700)]
    counts = {shot.prompt: first.count(shot.prompt) for shot in one.shots}
    assert counts.pop("Q: text 0") == 0
    assert all(60 < count < 140 for count in counts.values())
    assert {shot.prompt for shot in one.draw_shots(0, 7)} == set(counts)


def test_an_example_with_the_same_prompt_is_never_drawn() -> None:
    one = task(examples=[*ROWS, {"text": "text 0", "label": "no", "id": 9}])
    assert "Q: text 0" not in {shot.prompt for shot in one.draw_shots(0, 7)}


def test_the_number_of_shots_is_limited_by_the_examples() -> None:
    task().check_shots(7)
    with pytest.raises(
        UserError, match="shots=8, and there are 7 examples for row 1 of test, without those that ask"
    ):
        task().check_shots(8)
    with pytest.raises(UserError, match="shots=1, and there are 0 examples for row 1 of test; give more"):
        task(examples=[]).check_shots(1)
    with pytest.raises(UserError, match="shots=1, and there are 0 examples for row 3 of test"):
        task(examples=[]).draw_shots(2, 1)
    with pytest.raises(UserError, match="shots=-1 must be 0 or more"):
        task().check_shots(-1)
    task(examples=[]).check_shots(0)
    other = task(test=[*ROWS[:3], {"text": "of no example", "label": "no"}])
    with pytest.raises(UserError, match="for row 1 of test, without those that ask the same"):
        other.check_shots(8)
