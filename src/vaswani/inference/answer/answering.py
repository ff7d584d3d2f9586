"""Answer questions by spans of texts, with a model trained for it (for example by `vaswani finetune`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import AutoModelForQuestionAnswering, PreTrainedModel, PreTrainedTokenizerBase

from vaswani.data.questions.windows import Window, WindowCollator, WindowLengths, make_windows
from vaswani.errors import RunError, UserError, check_positive
from vaswani.inference.answer.spans import Answer, answers_of, best_spans
from vaswani.inference.batches import batches, check_ordered, within_memory
from vaswani.inference.loading import FromPretrained
from vaswani.inference.position_limits import source_limit

CONFIG_FIELD = "question_answering"  # field of a model's configuration with its training options
PAIRS_AT_ONCE = 256
_OPTIONS = (
    "max_length",
    "doc_stride",
    "max_question_length",
    "max_answer_length",
    "null_score_diff_threshold",
)


class QuestionAnswerer(FromPretrained):
    """Answers questions by spans of texts of any length.

        answerer = QuestionAnswerer.from_pretrained("runs/squad")
        for answer in answerer.answer([("Who saw Rome?", "Ann saw Rome.")]):
            print(answer.text, answer.best.start, answer.best.end)

    An option that is None takes the value that the model was trained with, or the default of
    `vaswani finetune`; in short windows, the overlap and the questions are then shorter (see
    `WindowLengths.fitting`).

    Args:
        model: a model of `AutoModelForQuestionAnswering`; it is put into evaluation mode.
        tokenizer: a fast tokenizer.
        max_length: maximum tokens of a window, special tokens included (see `WindowLengths`).
        doc_stride: number of tokens of a text that a window shares with the previous window.
        max_question_length: maximum tokens of a question; longer questions are truncated at the end,
            and their answers are marked `cut_off`.
        max_answer_length: maximum tokens of an answer.
        null_score_diff_threshold: give no answer if the score of no answer exceeds that of the best span by
            more than this. None always answers if the model was trained without such a threshold.
        n_best: number of spans to return for each question.
        max_tokens_per_batch: maximum tokens of a batch of windows, padding included.

    Raises:
        UserError: an option is out of range, windows have no room, or the tokenizer is slow.
    """

    _auto_class: ClassVar[Any] = AutoModelForQuestionAnswering
    _engines = ("torch", "onnx")

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int | None = None,
        doc_stride: int | None = None,
        max_question_length: int | None = None,
        max_answer_length: int | None = None,
        null_score_diff_threshold: float | None = None,
        n_best: int = 20,
        max_tokens_per_batch: int = 4096,
    ):
        self.model = model.eval()
        # A copy, because truncation and the padding side are stored in the tokenizer.
        self.tokenizer = copy.deepcopy(tokenizer)
        self.tokenizer.padding_side = "right"
        given = (max_length, doc_stride, max_question_length, max_answer_length, null_score_diff_threshold)
        known = getattr(model.config, CONFIG_FIELD, None) or {}
        options = {name: known[name] for name in _OPTIONS if name in known}
        options |= {name: value for name, value in zip(_OPTIONS, given, strict=True) if value is not None}
        self.null_score_diff_threshold: float | None = options.pop("null_score_diff_threshold", None)
        self.max_answer_length: int = options.pop("max_answer_length", 30)
        positions = source_limit(model, tokenizer)
        if positions is not None and "max_length" not in options:
            options["max_length"] = min(WindowLengths.max_length, positions)
        self.lengths = WindowLengths.fitting(self.tokenizer, **options)
        self.n_best = n_best
        self.max_tokens_per_batch = max_tokens_per_batch
        check_positive(
            max_length=self.lengths.max_length,
            max_question_length=self.lengths.max_question_length,
            max_answer_length=self.max_answer_length,
            n_best=n_best,
            max_tokens_per_batch=max_tokens_per_batch,
        )
        if positions is not None and self.lengths.max_length > positions:
            raise UserError(
                f"max_length={self.lengths.max_length}, but the model has positions for {positions} tokens; "
                f"set max_length to {positions} or less"
            )
        self.lengths.check(self.tokenizer)
        pad = self.tokenizer.pad_token_id
        self._collate = WindowCollator(0 if pad is None else int(pad), with_places=True)

    @property
    def options(self) -> dict[str, Any]:
        """The options that the answers depend on, by name."""
        return {
            **vars(self.lengths),
            "max_answer_length": self.max_answer_length,
            "null_score_diff_threshold": self.null_score_diff_threshold,
        }

    def answer(
        self,
        pairs: Iterable[tuple[str, str]],
        progress: Callable[[int], object] | None = None,
        *,
        buffer_size: int = PAIRS_AT_ONCE,
    ) -> Iterator[Answer]:
        """Yield an answer for each question and its text, in order.

        Args:
            pairs: questions, each with the text that may answer it.
            progress: is called with the number of questions of each finished batch.
            buffer_size: number of questions to read ahead.

        Raises:
            UserError: an item is not a pair of texts, or the pairs are not in a list.
            RunError: the results are not finite.
        """
        check_positive(buffer_size=buffer_size)
        check_ordered(pairs, "pairs")
        remaining = map(_pair, pairs)
        while some := list(islice(remaining, buffer_size)):
            yield from self._answers([pair[0] for pair in some], [pair[1] for pair in some])
            if progress:
                progress(len(some))

    def _answers(self, questions: list[str], contexts: list[str]) -> list[Answer]:
        windows = make_windows(self.tokenizer, questions, contexts, self.lengths)
        lengths = {number: len(window.columns["input_ids"]) for number, window in enumerate(windows)}
        found: dict[int, np.ndarray] = {}
        for numbers in batches(lengths, self.max_tokens_per_batch):
            longest = max(lengths[number] for number in numbers)
            with within_memory("windows", len(numbers), longest):
                spans = self._spans([windows[number] for number in numbers])
            found |= dict(zip(numbers, spans, strict=True))
        ordered = [found[number] for number in range(len(windows))]
        return answers_of(contexts, windows, ordered, self.n_best, self.null_score_diff_threshold)

    def _spans(self, windows: list[Window]) -> np.ndarray:
        """Return the best spans of some windows: float32 [B, 1 + N, 3] (see `best_spans`)."""
        rows = [
            {
                **window.columns,
                "null": window.null,
                "first": window.first,
                "offsets": [0, 0] * len(window.offsets),
            }
            for window in windows
        ]
        inputs = {name: value.to(self.model.device) for name, value in self._collate(rows).items()}
        places = inputs.pop("places")
        with torch.inference_mode():
            outputs = self.model(**inputs)
        logits = outputs.start_logits, outputs.end_logits
        read = inputs["attention_mask"].bool()
        if not all(each[read].isfinite().all() for each in logits):
            raise RunError(f"the model's results leave the range of {self.model.dtype}; try dtype float32")
        return best_spans(*logits, places, self.n_best, self.max_answer_length).cpu().numpy()


def _pair(pair: Any) -> tuple[str, str]:
    """Return a question and its text; raise a `UserError` for anything else."""
    if isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair):
        return pair[0], pair[1]
    raise UserError(
        f"expected pairs of a question and its text, got {repr(pair)[:60]}: write [(question, text)]"
    )
