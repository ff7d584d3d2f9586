"""Tasks for prompting: questions, examples and right answers.

Prompts are made as for GPT-3 (Brown et al., 2020, arXiv:2005.14165, section 2.4): a description of the task,
K examples with their answers ("shots"), and the question, up to the beginning of its answer.
"""

from __future__ import annotations

import dataclasses
import random
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vaswani.data.sources.reading import is_utf8
from vaswani.errors import UserError, listing

Row = Mapping[str, Any]

NORMALIZATIONS = ("none", "tokens", "unconditional")
_FOR_CHOICES = ("label", "normalize", "answer_context")
_FOR_GENERATION = ("max_new_tokens", "stop")


@dataclass(frozen=True)
class Question:
    """A row with the filled templates of its task.

    Args:
        prompt: the question.
        answer: the right answer, which follows the prompt directly.
        choices: the candidate answers, including the right one; empty if the answer is generated.
    """

    prompt: str
    answer: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    r"""Questions, examples, and options for finding and checking answers.

        task = Task(
            prompt="Review: {text}\nSentiment:",
            answer=" {sentiment}",
            choices=[" positive", " negative"],
            examples=[{"text": "A joy.", "sentiment": "positive"}, ...],
            test=[{"text": "A bore.", "sentiment": "negative"}, ...],
        )

    Templates are Python format strings: {name} is a field of the row, {name.inner} a nested field, {{ and }}
    are braces. An answer is chosen from `choices` by its likelihood or, with `generate`, generated.

    Args:
        prompt: template of the question.
        answer: template of the right answer, with the white space before it.
        label: instead of `answer`: the field with the number of the right choice, from 0.
        choices: templates of the candidate answers; or one template with a field that holds a list, such as
            `" {options}"`, which is filled with each item.
        normalize: compare choices by log P(choice | prompt) ("none"), by log P(choice | prompt) / number of
            tokens ("tokens"), or by log P(choice | prompt) / P(choice | answer_context) ("unconditional").
            GPT-3 uses "tokens" for most tasks, "unconditional" for some.
        answer_context: a prompt that announces an answer without a question.
        generate: generate the answer. It is right if it equals the answer, apart from outer white space.
        max_new_tokens: maximum tokens of a generated answer.
        stop: texts that end a generated answer; None means the separator.
        description: begins every prompt.
        separator: follows the description and each shot.
        examples: rows to draw shots from.
        test: rows to answer.
        files: the files that the task was read from.

    Raises:
        UserError: options contradict each other or have no effect; a row lacks a field; its answer is not one
            of its choices; or its choices are fewer than two, equal or empty.
    """

    prompt: str
    answer: str | None = None
    label: str | None = None
    choices: Sequence[str] | str | None = None
    normalize: str = "none"
    answer_context: str = "Answer:"
    generate: bool = False
    max_new_tokens: int = 32
    stop: Sequence[str] | None = None
    description: str = ""
    separator: str = "\n\n"
    examples: Sequence[Row] = ()
    test: Sequence[Row]
    files: Sequence[Path] = field(default=(), compare=False)
    questions: tuple[Question, ...] = field(init=False, repr=False)  # of the test rows
    shots: tuple[Question, ...] = field(init=False, repr=False)  # of the examples

    def __post_init__(self) -> None:
        self._check_options()
        self._check_effects()
        object.__setattr__(self, "questions", self._questions(self.test, "test"))
        object.__setattr__(self, "shots", self._questions(self.examples, "examples"))

    @property
    def stop_texts(self) -> Sequence[str]:
        """The texts that end a generated answer."""
        return [self.separator] if self.stop is None else self.stop

    def check_shots(self, count: int) -> None:
        """Raise a UserError unless every question has enough examples for `count` shots."""
        if count < 0:
            raise UserError(f"shots={count} must be 0 or more")
        for number in range(len(self.questions)):
            self._check_shots_of(number, count)

    def draw_shots(self, number: int, count: int, seed: int = 0) -> list[Question]:
        """Draw the shots of a question, in the order of the prompt.

        Examples with the same prompt are not drawn, as they contain the answer. A smaller count draws the
        first shots of a larger one.

        Args:
            number: index of the question in `questions`.
            count: number of shots.
            seed: seed of the draws. Questions have different draws with the same seed.

        Raises:
            UserError: there are too few examples.
        """
        self._check_shots_of(number, count)
        generator = random.Random(f"{seed} {number}")
        drawn: dict[int, Question] = {}
        while len(drawn) < count:
            place = generator.randrange(len(self.shots))
            if self.shots[place].prompt != self.questions[number].prompt:
                drawn[place] = self.shots[place]
        return list(drawn.values())

    def _check_shots_of(self, number: int, count: int) -> None:
        asking_the_same = self._times_shown[self.questions[number].prompt]
        others = len(self.shots) - asking_the_same
        if count > others:
            itself = ", without those that ask the same" if asking_the_same else ""
            raise UserError(
                f"shots={count}, and there are {others} examples for row {number + 1} of test{itself}; "
                "give more examples, or ask for fewer shots"
            )

    @cached_property
    def _times_shown(self) -> Counter[str]:
        """The number of examples with each prompt."""
        return Counter(shot.prompt for shot in self.shots)

    def text(self, question: Question, shots: Sequence[Question]) -> str:
        """Return the whole prompt, up to the beginning of the answer."""
        above = [self.description] if self.description else []
        above += [shot.prompt + shot.answer for shot in shots]
        return self.separator.join([*above, question.prompt])

    def _check_options(self) -> None:
        if self.generate == (self.choices is not None):
            given = "both" if self.generate else "neither"
            raise UserError(f"a task has choices, or generate: true; got {given}")
        if (self.answer is None) == (self.label is None) and not self.generate:
            given = "neither" if self.answer is None else "both"
            raise UserError(f"a task has answer, a template, or label, a choice's field; got {given}")
        if self.answer is None and self.generate:
            raise UserError("generate needs answer: the template of the right answer")
        if self.normalize not in NORMALIZATIONS:
            raise UserError(f"normalize: expected {listing(NORMALIZATIONS)}, got {self.normalize!r}")
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens={self.max_new_tokens} must be at least 1")
        if self.generate and not all(self.stop_texts):
            raise UserError("stop: an empty text would end every answer before it begins")
        if not self.test:
            raise UserError("test: there are no rows to answer")

    def _check_effects(self) -> None:
        """Raise a UserError if an option that was set has no effect."""
        without = dict.fromkeys(_FOR_GENERATION, "with choices")
        if self.generate:
            without = dict.fromkeys(_FOR_CHOICES, "with generate: true")
        elif self.normalize != "unconditional":
            without["answer_context"] = "without normalize: unconditional"
        for option in dataclasses.fields(self):
            if option.name in without and getattr(self, option.name) != option.default:
                raise UserError(f"{option.name} has no effect {without[option.name]}; leave it out")

    def _questions(self, rows: Sequence[Row], where: str) -> tuple[Question, ...]:
        questions = []
        for number, row in enumerate(rows, 1):
            try:
                questions.append(self._question(row))
            except UserError as error:
                raise UserError(f"row {number} of {where}: {error}") from error
        return tuple(questions)

    def _question(self, row: Row) -> Question:
        prompt = fill("prompt", self.prompt, row)
        choices = self._choices(row)
        if self.label is not None:
            return Question(prompt, choices[_label(row, self.label, len(choices))], choices)
        answer = fill("answer", str(self.answer), row)
        if choices and answer not in choices:
            raise UserError(f"its answer {answer!r} is not one of its choices {listing(choices)}")
        return Question(prompt, answer, choices)

    def _choices(self, row: Row) -> tuple[str, ...]:
        if self.choices is None:
            return ()
        if isinstance(self.choices, str):
            choices = fill_each("choices", self.choices, row)
        else:
            choices = [fill("choices", choice, row) for choice in self.choices]
        if len(set(choices)) < max(len(choices), 2) or "" in choices:
            raise UserError(f"its choices must be two or more, different and not empty; got {choices}")
        return tuple(choices)


def fill(key: str, template: str, row: Row) -> str:
    """Fill a template with the fields of a row.

    Args:
        key: the template's name, for messages.
        template: the template, with {fields}.
        row: texts and numbers by name.

    Raises:
        UserError: a field is missing, or neither text nor number; or the template is invalid.
    """
    with _template_errors(key, template):
        return _TemplateFormatter(key).vformat(template, (), row)


def fill_each(key: str, template: str, row: Row) -> list[str]:
    """Fill a template for each item of a list in one of its fields (see `fill`)."""
    with _template_errors(key, template):
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    lists = {
        name: value for name in names if isinstance(value := _TemplateFormatter(key).value(name, row), list)
    }
    if len(lists) != 1:
        raise UserError(f"{key}: expected one field with a list in {template!r}, or a list of templates")
    ((name, items),) = lists.items()
    return [fill(key, template, {**row, name: item}) for item in items]


@contextmanager
def _template_errors(key: str, template: str) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(
            f"{key}: {template!r} is not a template ({error}); write {{{{ or }}}} for a brace"
        ) from error


class _TemplateFormatter(string.Formatter):
    """Formats Python format strings in which a dot accesses a nested field, not an attribute of an object."""

    def __init__(self, key: str):
        self.key = key

    def value(self, name: str, row: Row) -> Any:
        """Return the value of a field, such as `text` or `answer.text`."""
        if name in row:  # a plain name, or one that contains a dot
            return row[name]
        value: Any = row
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise UserError(
                    f"{self.key} names the field {name!r}, and it has {listing(row) or 'nothing'}"
                )
            value = value[part]
        return value

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the value of a field; the inherited method would let templates access object attributes."""
        value = self.value(field_name, kwargs)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UserError(
                f"its field {field_name!r} holds {value!r}, where {self.key} needs a text or a number"
                + ("; in YAML, write yes, no, true and false in quotes" if isinstance(value, bool) else "")
            )
        if not is_utf8(str(value)):
            raise UserError(f"its field {field_name!r} holds {value!r}, which is not UTF-8; correct it")
        return value, field_name


def _label(row: Row, name: str, num_choices: int) -> int:
    label = _TemplateFormatter("label").value(name, row)
    if isinstance(label, str) and label.isdecimal():  # CSV and TSV hold only texts
        label = int(label)
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < num_choices:
        raise UserError(
            f"its field {name!r} holds {label!r}, where label needs the number of a choice, from 0 to "
            f"{num_choices - 1}"
        )
    return label
