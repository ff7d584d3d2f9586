"""Zero-, one- and few-shot prompting: how well a language model does a task that it was not trained for.

As GPT-3 was evaluated (Brown et al., 2020, arXiv:2005.14165, section 2.4): K examples stand in the prompt, no
weight changes, and the answer is the likeliest of the choices, or what the model writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.hub.checkpoint import load_checkpoint
from vaswani.inference.prompt.continuation import Continuation, LanguageModel, TokenIds
from vaswani.inference.prompt.task import Question, Task

_NORMAL_97_5 = 1.959964  # the quantile of a normal distribution that leaves 2.5 % above it


@dataclass(frozen=True)
class Answer:
    """What became of one test row.

    Args:
        row: its number, from 1.
        shots: the examples in its prompt; fewer than were asked for where the model has no room for them.
        prompt: all that the model was given.
        expected: the right answer.
        given: the model's: the choice of the highest score, or what it wrote.
        right: whether that is the right one.
        scores: of each choice, normalized as the task says, in natural logarithms; None if it was written.
    """

    row: int
    shots: int
    prompt: str
    expected: str
    given: str
    right: bool
    scores: dict[str, float] | None = None


@dataclass(frozen=True)
class PromptingResult:
    """How well a model did a task with so many shots.

    Args:
        shots: as many as were asked for.
        answers: one for each test row, in order.
    """

    shots: int
    answers: list[Answer]

    @property
    def right(self) -> int:
        """Rows with the right answer."""
        return sum(answer.right for answer in self.answers)

    @property
    def accuracy(self) -> float:
        """Their share, 0 to 100."""
        return 100 * self.right / len(self.answers)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, 0 to 100 (Wilson's)."""
        low, high = wilson_interval(self.right, len(self.answers))
        return 100 * low, 100 * high

    @property
    def with_fewer_shots(self) -> list[Answer]:
        """The rows for whose shots the model has not enough positions."""
        return [answer for answer in self.answers if answer.shots < self.shots]

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.shots} shot{'s' * (self.shots != 1)}: accuracy {self.accuracy:.2f} "
            f"(95 % interval {low:.2f} to {high:.2f}), {self.right:,} of {len(self.answers):,} rows"
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the answers, as plain JSON values."""
        low, high = self.interval
        rows = {"rows": len(self.answers), "rows_with_fewer_shots": len(self.with_fewer_shots)}
        return {"shots": self.shots, "accuracy": self.accuracy, "low": low, "high": high, **rows}


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % confidence interval of a probability, 0 to 1 (Wilson, 1927, doi:10.2307/2276774).

    It has sense for few trials, and for none or all of them a success, where the usual one has no width.
    """
    z2 = _NORMAL_97_5**2 / trials
    share = successes / trials
    centre = share + z2 / 2
    half_width = math.sqrt(z2 * share * (1 - share) + (z2 / 2) ** 2)
    low, high = (centre - half_width) / (1 + z2), (centre + half_width) / (1 + z2)
    return max(low, 0.0), min(high, 1.0)  # rounding may lead out


@dataclass(frozen=True)
class _Asked:
    """A question as it is put to the model.

    Args:
        question: the row.
        shots: how many of them fit.
        prompt: with these shots.
        prompt_ids: its tokens; none for a question with choices.
        continuations: the prompt with each of the choices.
    """

    question: Question
    shots: int
    prompt: str
    prompt_ids: TokenIds
    continuations: Sequence[Continuation]


class Prompter:
    """Puts tasks to a causal language model.

        prompter = Prompter.from_pretrained("runs/causal_lm")
        result = prompter.answer(load_task("tasks/sentiment"), shots=4)
        print(result.accuracy, result.interval, result.answers[0].prompt)

    Args:
        model: any causal language model of transformers, the library's or ours (see `LanguageModel`).
        tokenizer: the model's.
        max_tokens_per_batch: most tokens of a batch, with padding and what may be written.

    Raises:
        UserError: the model is not causal; `max_tokens_per_batch` is less than 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_tokens_per_batch: int = 8192,
    ):
        self.language_model = LanguageModel(model, tokenizer, max_tokens_per_batch)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        revision: str | None = None,
        allow_mismatch: bool = False,
        **options: Any,
    ) -> Prompter:
        """Load a model with its tokenizer.

        Args:
            name: a folder with a model that `AutoModelForCausalLM` loads, or its name on the Hub.
            device: None means a CUDA device if there is one, and else the CPU.
            dtype: of the weights; None means as saved.
            revision: branch, tag or commit on the Hub; None means `main`.
            allow_mismatch: take a tokenizer or weights that seem to be another model's.
            options: those of the class.

        Raises:
            UserError: what stands in the way, in one line (see `load_checkpoint`).
        """
        model, tokenizer, _ = load_checkpoint(
            name, device, dtype, revision, AutoModelForCausalLM, allow_mismatch
        )
        return cls(model, tokenizer, **options)

    def answer(
        self,
        task: Task,
        shots: int = 0,
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> PromptingResult:
        """Ask every question of a task.

        Where a prompt is longer than the model has positions, its first shots are left out, as many as must
        be; `Answer.shots` tells how many stayed.

        Args:
            task: the questions, and the examples that shots are drawn from.
            shots: examples in each prompt.
            seed: of the draws (see `Task.draw_shots`).
            progress: is told of so many more of `count_answers(task)` done.

        Raises:
            UserError: before anything is asked: more shots than examples; a question too long without any, or
                empty; choices that are the same to the tokenizer.
            RunError: a batch does not fit into the device's memory; the model's numbers overflow.
        """
        task.check_shots(shots)
        asked = [self._ask(task, number, shots, seed) for number in range(len(task.questions))]
        find = self._write if task.generate else self._choose
        return PromptingResult(shots, find(task, asked, progress))

    def _ask(self, task: Task, number: int, shots: int, seed: int) -> _Asked:
        """A question with as many of its shots as there is room for: the last of them."""
        drawn = task.draw_shots(number, shots, seed)
        try:
            for left_out in range(shots + 1):
                asked = self._encode(task, task.questions[number], drawn[left_out:])
                length = self._length(task, asked)
                if length <= (self.language_model.positions or length):
                    return asked
        except UserError as error:
            raise UserError(f"row {number + 1} of test: {error}") from error
        raise UserError(
            f"row {number + 1} of test takes {length:,} tokens without any shot, and the model has positions "
            f"for {self.language_model.positions:,}; shorten it, or leave it out"
        )

    def _encode(self, task: Task, question: Question, shots: Sequence[Question]) -> _Asked:
        prompt = task.text(question, shots)
        prompt_ids: TokenIds = ()
        continuations: list[Continuation] = []
        if task.generate:
            prompt_ids = self.language_model.encode_prompt(prompt)
        else:
            continuations = self.language_model.encode_answers(prompt, question.choices)
        return _Asked(question, len(shots), prompt, prompt_ids, continuations)

    @staticmethod
    def _length(task: Task, asked: _Asked) -> int:
        """The most tokens that the model reads: all but the last of an answer."""
        if task.generate:
            return len(asked.prompt_ids) + task.max_new_tokens - 1
        return max(len(continuation.inputs) for continuation in asked.continuations)

    def _write(
        self, task: Task, asked: list[_Asked], progress: Callable[[int], object] | None
    ) -> list[Answer]:
        """Answer by what the model writes."""
        prompts = [one.prompt_ids for one in asked]
        texts = self.language_model.write(prompts, task.max_new_tokens, task.stop_texts, progress)
        answers = []
        for row, (one, text) in enumerate(zip(asked, texts, strict=True), 1):
            given, expected = text.strip(), one.question.answer.strip()
            answers.append(Answer(row, one.shots, one.prompt, expected, given, given == expected))
        return answers

    def _choose(
        self, task: Task, asked: list[_Asked], progress: Callable[[int], object] | None
    ) -> list[Answer]:
        """Answer by the choice of the highest score."""
        unconditional = self._unconditional(task) if task.normalize == "unconditional" else {}
        continuations = [continuation for one in asked for continuation in one.continuations]
        log_probs = iter(self.language_model.log_probs(continuations, progress))
        answers = []
        for row, one in enumerate(asked, 1):
            scores = {}
            for choice, continuation in zip(one.question.choices, one.continuations, strict=True):
                length = len(continuation.answer_ids) if task.normalize == "tokens" else 1
                scores[choice] = next(log_probs) / length - unconditional.get(choice, 0.0)
            given, expected = max(scores, key=scores.__getitem__), one.question.answer
            answers.append(Answer(row, one.shots, one.prompt, expected, given, given == expected, scores))
        return answers

    def _unconditional(self, task: Task) -> dict[str, float]:
        """log P(choice | answer_context) of every choice of the task."""
        choices = dict.fromkeys(choice for question in task.questions for choice in question.choices)
        encode = self.language_model.encode_answers
        try:
            continuations = [encode(task.answer_context, [choice])[0] for choice in choices]
        except UserError as error:
            raise UserError(f"answer_context: {error}") from error
        return dict(zip(choices, self.language_model.log_probs(continuations), strict=True))


def count_answers(task: Task) -> int:
    """How many answers are scored or written for each number of shots."""
    return sum(max(1, len(question.choices)) for question in task.questions)
