"""Cut texts into windows: a question with a part of its text, short enough for a model.

A window holds the question and then consecutive tokens of the text. It overlaps with the window before it,
and together the windows cover the text. Each token of the text has its character offsets, which convert a
span of tokens to a span of characters.

B windows of a batch · T tokens of the longest window · C tokens of the text in a window
"""

from __future__ import annotations

import bisect
import copy
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from vaswani.data.collation import pad_rows
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import exclusive, text_options
from vaswani.errors import UserError

if TYPE_CHECKING:
    from typing_extensions import Self

_INTEGERS = List(Value("int32"))


@dataclass(frozen=True)
class WindowLengths:
    """The lengths of windows and questions, and the overlap of windows.

    Args:
        max_length: maximum tokens of a window, including special tokens.
        doc_stride: tokens of the text that a window shares with the window before it.
        max_question_length: longer questions are truncated to this number of tokens.
    """

    max_length: int = 384
    doc_stride: int = 128
    max_question_length: int = 64

    @classmethod
    def fitting(cls, tokenizer: PreTrainedTokenizerBase, **given: int) -> Self:
        """Return lengths of which those that are not given are the defaults, or less in short windows.

        Overlap and question then take at most a third of a window each, and leave room for one more token.
        """
        longest = given.get("max_length", cls.max_length)
        room = longest - tokenizer.num_special_tokens_to_add(pair=True) - 1
        most = max(1, min(longest // 3, room // 2))
        fitted = {name: min(getattr(cls, name), most) for name in ("doc_stride", "max_question_length")}
        return cls(**{**fitted, **given})

    def check(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Check that the tokenizer is fast and the lengths fit together.

        Raises:
            UserError: the tokenizer is slow and has no offsets, or a window has no room for its question, the
                overlap and at least one new token.
        """
        if not tokenizer.is_fast:
            raise UserError(
                f"question answering needs a fast tokenizer, which tells where in a text its tokens are; "
                f"{type(tokenizer).__name__} is slow"
            )
        special = tokenizer.num_special_tokens_to_add(pair=True)
        least = special + self.max_question_length + self.doc_stride + 1
        if self.max_length < least:
            raise UserError(
                f"max_length={self.max_length} has no room for {special} special tokens, "
                f"max_question_length={self.max_question_length}, doc_stride={self.doc_stride} and one more "
                f"token; raise it to {least} or more, or lower the others"
            )


@dataclass(frozen=True)
class Window:
    """A question with a part of its text.

    Args:
        row: index of its question.
        columns: `input_ids` and the tokenizer's other columns, such as `token_type_ids`; no attention mask.
        null: position of the token that represents "no answer in this window".
        first: position of the first token of the text.
        offsets: start and end of each token of the text, in characters, [C].
        question_cut_off: whether the question was truncated.
    """

    row: int
    columns: dict[str, list[int]]
    null: int
    first: int
    offsets: list[tuple[int, int]]
    question_cut_off: bool = False

    def labels(self, start: int, end: int) -> tuple[int, int]:
        """Return the positions of the first and the last token of a span of characters.

        Returns:
            Both are `null` unless the window holds the whole span.
        """
        if not self.offsets or start < self.offsets[0][0] or end > self.offsets[-1][1]:
            return self.null, self.null
        first = bisect.bisect_right([after for _, after in self.offsets], start)
        last = bisect.bisect_left([before for before, _ in self.offsets], end) - 1
        return (self.first + first, self.first + last) if first <= last else (self.null, self.null)


def make_windows(
    tokenizer: PreTrainedTokenizerBase,
    questions: Sequence[str],
    contexts: Sequence[str],
    lengths: WindowLengths,
) -> list[Window]:
    """Return the windows of questions on texts, in order; at least one for each question.

    Args:
        tokenizer: fast; adds the special tokens of the model. It keeps the truncation that is set here.
        questions: one for each text; white space around a question is removed.
        contexts: the texts.
        lengths: lengths that have been checked.
    """
    questions = [question.strip() for question in questions]
    with exclusive(tokenizer):
        shortened = _shortened(tokenizer, questions, lengths.max_question_length)
        encoding = tokenizer(
            *(shortened, list(contexts)),
            truncation="only_second",
            max_length=lengths.max_length,
            stride=lengths.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
            **text_options(tokenizer),
        )
    rows = encoding.pop("overflow_to_sample_mapping")
    offsets = encoding.pop("offset_mapping")
    windows = []
    for number, row in enumerate(rows):
        sides = encoding.sequence_ids(number)
        first = sides.index(1) if 1 in sides else len(sides)
        count = sides.count(1)
        columns = {name: column[number] for name, column in encoding.items()}
        null = _null_place(tokenizer, columns["input_ids"])
        places = offsets[number][first : first + count]
        is_cut_off = shortened[row] != questions[row]
        windows.append(Window(row, columns, null, first, places, is_cut_off))
    return windows


def _null_place(tokenizer: PreTrainedTokenizerBase, input_ids: list[int]) -> int:
    """Return the position of the token that represents no answer: [CLS] (last in XLNet), else the first."""
    cls = tokenizer.cls_token_id
    return input_ids.index(cls) if cls is not None and cls in input_ids else 0


def _shortened(tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], max_tokens: int) -> list[str]:
    """Return questions of at most `max_tokens` tokens; longer questions are cut at the end of a token."""
    texts = list(questions)
    long = list(range(len(texts)))
    while long:
        encoding = tokenizer(
            [texts[number] for number in long],
            add_special_tokens=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
            **text_options(tokenizer),
        )
        tokens = dict(zip(long, encoding["offset_mapping"], strict=True))
        long = [number for number in long if len(tokens[number]) > max_tokens]
        for number in long:  # the shorter text may be tokenized differently: check again
            cut = texts[number][: tokens[number][max_tokens - 1][1]]
            texts[number] = cut if len(cut) < len(texts[number]) else texts[number][:-1]
    return texts


def tokenize_questions(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    lengths: WindowLengths,
    *,
    with_offsets: bool,
    report: RowReport | None = None,
) -> Dataset:
    """Turn questions on texts into windows.

    Args:
        rows: columns `context`, `question` and `answers` (see `load_questions`).
        tokenizer: adds the special tokens of the model.
        lengths: lengths of the windows.
        with_offsets: keep the columns with which an evaluation finds the answers; training needs less memory
            without them.
        report: counts the rows whose question is truncated.

    Returns:
        Windows in the order of the rows, with `input_ids`, `labels` (the positions of the first and the last
        token of the first answer, or `null` twice without an answer), `length`, `token_type_ids` if the
        tokenizer returns them and, if `with_offsets`, `row`, `null`, `first`, `question_cut_off` and
        `offsets`, flattened: [2C].

    Raises:
        UserError: the lengths have no room for text, or the tokenizer is slow.
    """
    lengths.check(tokenizer)
    tokenizer = copy.deepcopy(tokenizer)  # a copy: calls store truncation
    columns = _columns_of(tokenizer, with_offsets)
    return rows.map(
        partial(_window_columns, tokenizer, lengths, list(columns), report or RowReport()),
        with_indices=True,
        batched=True,
        batch_size=100,
        remove_columns=rows.column_names,
        features=columns,
        keep_in_memory=True,
        new_fingerprint=secrets.token_hex(16),  # computing one takes long
        desc="Tokenizing",
    )


def _columns_of(tokenizer: PreTrainedTokenizerBase, with_offsets: bool) -> Features:
    names = [name for name in tokenizer("a", "b", return_attention_mask=False) if name != "attention_mask"]
    columns: dict[str, Any] = dict.fromkeys([*names, "labels"], _INTEGERS) | {"length": Value("int32")}
    if with_offsets:
        columns |= dict.fromkeys(("row", "null", "first"), Value("int32"))
        columns |= {"question_cut_off": Value("bool"), "offsets": _INTEGERS}
    return Features(columns)


def _window_columns(
    tokenizer: PreTrainedTokenizerBase,
    lengths: WindowLengths,
    names: list[str],
    report: RowReport,
    rows: dict[str, list[Any]],
    numbers: list[int],
) -> dict[str, list[Any]]:
    windows = make_windows(tokenizer, rows["question"], rows["context"], lengths)
    report.truncated += len({window.row for window in windows if window.question_cut_off})
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for window in windows:
        for name, value in _columns_of_window(window, rows["answers"][window.row], numbers).items():
            if name in columns:
                columns[name].append(value)
    return columns


def _columns_of_window(window: Window, answers: Mapping[str, Any], numbers: list[int]) -> dict[str, Any]:
    labels = window.null, window.null
    if answers["text"]:
        start = answers["answer_start"][0]
        labels = window.labels(start, start + len(answers["text"][0]))
    return {
        **window.columns,
        "labels": labels,
        "length": len(window.columns["input_ids"]),
        "row": numbers[window.row],
        "null": window.null,
        "first": window.first,
        "question_cut_off": window.question_cut_off,
        "offsets": [character for pair in window.offsets for character in pair],
    }


def windows_of(rows: Dataset) -> Iterator[Window]:
    """Yield the windows of tokenized questions, without their token ids."""
    columns = [rows[name][:] for name in ("row", "null", "first", "offsets", "question_cut_off")]
    for row, null, first, flat, is_cut_off in zip(*columns, strict=True):
        yield Window(row, {}, null, first, list(zip(flat[::2], flat[1::2], strict=True)), is_cut_off)


@dataclass(frozen=True)
class WindowCollator:
    """Pad windows on the right to a batch.

    Args:
        pad_token_id: pads `input_ids`.
        with_places: also return `places`, the positions of the tokens of the text.

    Returns:
        From windows with `input_ids` and optionally `labels` and `token_type_ids`: these and
        `attention_mask`, int64 [B, T]; `labels` int64 [B, 2]. If `with_places`, also `places`, int64 [B, 3]:
        the position of the token for no answer, the position of the first token of the text, and the number
        of tokens of the text.
    """

    pad_token_id: int
    with_places: bool = False

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Pad a batch."""
        padded = pad_rows(rows, self.pad_token_id)
        batch = {name: torch.from_numpy(array) for name, array in padded.items()}
        if "labels" in rows[0]:
            batch["labels"] = torch.tensor([row["labels"] for row in rows])
        if self.with_places:
            places = [(row["null"], row["first"], len(row["offsets"]) // 2) for row in rows]
            batch["places"] = torch.tensor(places)
        return batch
