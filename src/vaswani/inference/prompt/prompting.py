"""Zero-, one- and few-shot prompting: evaluate a language model on a task without training it.

As in the evaluation of GPT-3 (Brown et al., 2020, arXiv:2005.14165, section 2.4): the prompt has K examples,
and the answer is the most likely choice, or the generated text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.errors import UserError
from vaswani.inference.continuing import Prompt
from vaswani.inference.language_model import Continuation, LanguageModel
from vaswani.inference.loading import FromPretrained
from vaswani.inference.prompt.task import Question, Task

_NORMAL_97_5 = 1.959964  # the 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class TaskAnswer:
    """The answer to one test row.

    Args:
        row: its number, from 1.
        shots: examples in its prompt; fewer than requested if they do not fit.
        prompt: the model's whole input.
        expected: the right answer.
        given: the choice with the highest score, or the generated text.
        right: whether `given` is right.
        scores: score of each choice, normalized as in the task, in natural logarithms; None for generated
            answers.
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
    """The result of a task with a number of shots.

    Args:
        shots: the requested number.
        answers: one for each test row, in order.
    """

    shots: int
    answers: list[TaskAnswer]

    @property
    def right(self) -> int:
        """The number of right answers."""
        return sum(answer.right for answer in self.answers)

    @property
    def accuracy(self) -> float:
        """The percentage of right answers."""
        return 100 * self.right / len(self.answers)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, 0 to 100 (Wilson's)."""
        low, high = wilson_interval(self.right, len(self.answers))
        return 100 * low, 100 * high

    @property
    def with_fewer_shots(self) -> list[TaskAnswer]:
        """The answers with fewer shots than requested, because the model has too few positions."""
        return [answer for answer in self.answers if answer.shots < self.shots]

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"{self.shots} shot{'s' * (self.shots != 1)}: accuracy {self.accuracy:.2f} "
            f"(95 % interval {low:.2f} to {high:.2f}), {self.right:,} of {len(self.answers):,} rows"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the answers as plain JSON values."""
        low, high = self.interval
        rows = {"rows": len(self.answers), "rows_with_fewer_shots": len(self.with_fewer_shots)}
        return {"shots": self.shots, "accuracy": self.accuracy, "low": low, "high": high, **rows}


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a probability, 0 to 1 (Wilson, 1927, doi:10.2307/2276774).

    Valid for few trials, and for no or only successes, where the normal interval has no width.
    """
    z2 = _NORMAL_97_5**2 / trials
    share = successes / trials
    centre = share + z2 / 2
    half_width = math.sqrt(z2 * share * (1 - share) + (z2 / 2) ** 2)
    low, high = (centre - half_width) / (1 + z2), (centre + half_width) / (1 + z2)
    return max(low, 0.0), min(high, 1.0)  # rounding may exceed the range


@dataclass(frozen=True)
class _EncodedQuestion:
    """A question with its encoded prompt.

    Args:
        question: the row.
        shots: the number of shots that fit.
        prompt: the prompt with these shots.
        prompt_tokens: the prompt as tokens; None for a question with choices.
        continuations: the prompt with each choice; empty for a generated answer.
    """

    question: Question
    shots: int
    prompt: str
    prompt_tokens: Prompt | None
    continuations: Sequence[Continuation]


class Prompter(FromPretrained):
    """Evaluates a causal language model on tasks.

        prompter = Prompter.from_pretrained("runs/causal_lm")
        result = prompter.answer(load_task("tasks/sentiment"), shots=4)
        print(result.accuracy, result.interval, result.answers[0].prompt)

    Args:
        model: any causal language model of transformers (see `LanguageModel`).
        tokenizer: the tokenizer of the model.
        max_tokens_per_batch: maximum tokens of a batch, with padding and generated tokens.

    Raises:
        UserError: the model is not causal, or `max_tokens_per_batch` is less than 1.
    """

    _auto_class = AutoModelForCausalLM
    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_tokens_per_batch: int = 8192,
    ):
        self.language_model = LanguageModel(model, tokenizer, max_tokens_per_batch)

    def answer(
        self,
        task: Task,
        shots: int = 0,
        *,
        seed: int = 0,
        progress: Callable[[int], object] | None = None,
    ) -> PromptingResult:
        """Answer every question of a task.

        If a prompt is too long for the model's positions, its first shots are left out; `TaskAnswer.shots` is
        the number of remaining shots.

        Args:
            task: the questions, and the examples that shots are drawn from.
            shots: examples in each prompt.
            seed: the seed for drawing shots (see `Task.draw_shots`).
            progress: is called with the number of answers of each batch, `count_answers(task)` in all.

        Raises:
            UserError: before any answer: there are more shots than examples, a question is empty or too long
                without shots, or the tokenizer does not distinguish its choices.
            RunError: a batch does not fit into the device's memory, or the scores are not finite.
        """
        task.check_shots(shots)
        encoded = [
            self._encode_with_shots(task, number, shots, seed) for number in range(len(task.questions))
        ]
        find = self._write if task.generate else self._choose
        return PromptingResult(shots, find(task, encoded, progress))

    def _encode_with_shots(self, task: Task, number: int, shots: int, seed: int) -> _EncodedQuestion:
        """Return a question with the last of its shots, as many as fit."""
        drawn = task.draw_shots(number, shots, seed)
        try:
            for left_out in range(shots + 1):
                encoded = self._encode(task, task.questions[number], drawn[left_out:])
                length = self._length(task, encoded)
                if length <= (self.language_model.positions or length):
                    return encoded
        except UserError as error:
            raise UserError(f"row {number + 1} of test: {error}") from error
        raise UserError(
            f"row {number + 1} of test takes {length:,} tokens without any shot, and the model has positions "
            f"for {self.language_model.positions:,}; shorten it, or leave it out"
        )

    def _encode(self, task: Task, question: Question, shots: Sequence[Question]) -> _EncodedQuestion:
        prompt = task.text(question, shots)
        prompt_tokens: Prompt | None = None
        continuations: list[Continuation] = []
        if task.generate:
            prompt_tokens = self.language_model.encode_prompt(prompt)
        else:
            continuations = self.language_model.encode_answers(prompt, question.choices)
        return _EncodedQuestion(question, len(shots), prompt, prompt_tokens, continuations)

    @staticmethod
    def _length(task: Task, encoded: _EncodedQuestion) -> int:
        """Return the number of positions that the model needs: all tokens but the last."""
        if encoded.prompt_tokens is not None:
            return len(encoded.prompt_tokens.token_ids) + task.max_new_tokens - 1
        return max(len(continuation.inputs) for continuation in encoded.continuations)

    def _write(
        self, task: Task, encoded: list[_EncodedQuestion], progress: Callable[[int], object] | None
    ) -> list[TaskAnswer]:
        """Answer with generated texts."""
        prompts = [one.prompt_tokens for one in encoded if one.prompt_tokens is not None]
        texts = self.language_model.write(prompts, task.max_new_tokens, task.stop_texts, progress)
        answers = []
        for row, (one, text) in enumerate(zip(encoded, texts, strict=True), 1):
            given, expected = text.strip(), one.question.answer.strip()
            answers.append(TaskAnswer(row, one.shots, one.prompt, expected, given, given == expected))
        return answers

    def _choose(
        self, task: Task, encoded: list[_EncodedQuestion], progress: Callable[[int], object] | None
    ) -> list[TaskAnswer]:
        """Answer with the highest-scoring choices."""
        unconditional = self._unconditional(task) if task.normalize == "unconditional" else {}
        continuations = [continuation for one in encoded for continuation in one.continuations]
        log_probs = iter(self.language_model.log_probs(continuations, progress))
        answers = []
        for row, one in enumerate(encoded, 1):
            scores = {}
            for choice, continuation in zip(one.question.choices, one.continuations, strict=True):
                length = len(continuation.answer_ids) if task.normalize == "tokens" else 1
                scores[choice] = next(log_probs) / length - unconditional.get(choice, 0.0)
            given, expected = max(scores, key=scores.__getitem__), one.question.answer
            answers.append(TaskAnswer(row, one.shots, one.prompt, expected, given, given == expected, scores))
        return answers

    def _unconditional(self, task: Task) -> dict[str, float]:
        """Return log P(choice | answer_context) of every choice of the task."""
        choices = dict.fromkeys(choice for question in task.questions for choice in question.choices)
        encode = self.language_model.encode_answers
        try:
            continuations = [encode(task.answer_context, [choice])[0] for choice in choices]
        except UserError as error:
            raise UserError(f"answer_context: {error}") from error
        return dict(zip(choices, self.language_model.log_probs(continuations), strict=True))


def count_answers(task: Task) -> int:
    """Return the number of answers that are scored or generated for each number of shots."""
    return sum(max(1, len(question.choices)) for question in task.questions)
