"""Prompts with completions, and chats, as token ids and labels; only the completions are labels.

A prompt and its completion are one text, as in `vaswani prompt`. The labels begin at the first token in which
this text differs from the prompt alone. In a chat, each answer of the assistant is a completion; its prompt
is the text that the chat template writes before it. The last completion ends with the tokenizer's end token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from vaswani.data.collation import IGNORED_LABEL
from vaswani.data.sources import reading
from vaswani.data.sources.corpus import Corpus, load_in_memory
from vaswani.data.sources.corpus_spec import SPLITS, BaseCorpusSpec
from vaswani.data.sources.reading import Row
from vaswani.data.sources.row_report import RowReport
from vaswani.data.sources.splits import Source, arrow_table, check_fields, existing_file, file_identity
from vaswani.data.text.chats import ASSISTANT, Chat, as_chat, rendered_chat, template_token_ids
from vaswani.data.text_codec import TextCodec, first_token_ids
from vaswani.errors import UserError

IDS = List(Value("int32"))
TOKEN_FEATURES = Features(
    {"input_ids": IDS, "labels": IDS, "length": Value("int32"), "prompt_length": Value("int32")}
)


@dataclass
class CompletionSpec(BaseCorpusSpec):
    """Prompts with completions, and their fields; two text files are paired line by line."""

    columns = ("prompt", "completion")

    prompt_field: str = "prompt"
    completion_field: str = "completion"

    def read_text(self, *paths: Path) -> Iterator[Row]:
        """Yield prompts and completions, line by line."""
        return reading.read_text_pair(*paths)


@dataclass
class ChatSpec(BaseCorpusSpec):
    """Chats: each row holds a list of messages with `role` and `content`, or such a list as JSON text."""

    columns = ("messages",)

    messages_field: str = "messages"


# ------------------------------------------------------------------------------------------- reading chats


def load_chats(spec: ChatSpec, splits: Sequence[str] = SPLITS) -> Corpus:
    """Load the requested splits of a corpus of chats into memory, as far as they exist.

    Returns:
        Splits with the column `messages`, JSON text. Rows that hold no chat are left out and counted as
        malformed; chats without an answer of the assistant are left out and counted as empty.

    Raises:
        UserError: as `load_corpus`.
    """
    return load_in_memory(spec, splits, sources=(_file_table, _dataset_table), rows_of=_usable_chats)


def _file_table(names: Sequence[str], spec: ChatSpec) -> Source:
    (name,), path = names, existing_file(names[0])
    table, identity = reading.known_table(path, name), partial(file_identity, [path], spec)
    check_fields(table.fields(path), spec, name)
    return Source(name, reading.cell_reader(path, table, [spec.messages_field]), identity)


def _dataset_table(
    dataset: Dataset, spec: ChatSpec, split: str, identity: Callable[[], dict[str, Any]]
) -> Source:
    name = f"{spec.dataset} ({split})"
    check_fields(list(reading.arrow_fields(dataset.features.arrow_schema)), spec, name)
    table = arrow_table(dataset, [spec.messages_field])
    return Source(name, partial(reading.arrow_rows, table, spec.messages_field), identity)


def _usable_chats(table: Source, spec: ChatSpec, report: RowReport) -> Iterator[dict[str, str]]:
    """Yield the chats that a model can learn from, as JSON; count the other rows."""
    for row in table.rows():
        try:
            chat = as_chat(None if row is None else row[0])
        except UserError:
            report.malformed += 1
            continue
        if not any(_answers(message) for message in chat):
            report.empty += 1
        else:
            report.kept += 1
            yield {"messages": json.dumps(chat)}


def _answers(message: dict[str, Any]) -> bool:
    """Return whether a message is an answer of the assistant, with a text or calls of tools."""
    content = message["content"]
    return message["role"] == ASSISTANT and (content is None or bool(content.strip()))


# ------------------------------------------------------------------------------------------ rows as token ids


class TokenRow(NamedTuple):
    """A row as token ids.

    Args:
        token_ids: token ids of prompt and completion.
        labels: token ids of completions, −100 for all other tokens.
        prompt_length: number of tokens before the last completion.
    """

    token_ids: list[int]
    labels: list[int]
    prompt_length: int


def tokenize_completions(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int, report: RowReport, split: str
) -> Dataset:
    """Turn prompts with completions, or chats, into token ids and labels.

    Args:
        rows: columns `prompt` and `completion`, or `messages`.
        tokenizer: has an end token, and a chat template for chats.
        max_length: maximum number of tokens of a row. Longer rows lose tokens from the left of the prompt;
            the tokens with which the tokenizer or the chat template begins each text stay. Rows that are
            still too long are left out.
        report: receives the counts of shortened rows and of rows left out.
        split: name of the split, for messages.

    Returns:
        The columns of `TOKEN_FEATURES`; `prompt_length` is the number of tokens before the last completion.

    Raises:
        UserError: the template does not fit a chat, or no row is left.
    """
    builder = RowBuilder(tokenizer, split)
    made = [builder.row(row) for row in rows]
    fitted = [shortened_row(row, max_length, builder.leading) for row in made]
    kept = [row for row in fitted if row is not None]
    report.leave_out("over_long", len(made) - len(kept))
    report.truncated += sum(
        row is not None and len(row.token_ids) < len(whole.token_ids)
        for row, whole in zip(fitted, made, strict=True)
    )
    if not kept:
        raise UserError(
            f"none of {len(made):,} rows of {split} has a completion that fits max_length={max_length}; "
            "raise it"
        )
    columns = {
        "input_ids": [row.token_ids for row in kept],
        "labels": [row.labels for row in kept],
        "length": [len(row.token_ids) for row in kept],
        "prompt_length": [row.prompt_length for row in kept],
    }
    return Dataset.from_dict(columns, features=TOKEN_FEATURES)


class RowBuilder:
    """Turns rows into token ids and labels.

    Args:
        tokenizer: the model's tokenizer; it must not add an end token to a text.
        split: name of the split, for messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, split: str):
        self.tokenizer = tokenizer
        self.split = split
        self.codec = TextCodec(tokenizer)
        self.end = int(tokenizer.eos_token_id)
        self.leading = first_token_ids(tokenizer, self.codec.frame().leading)

    def row(self, row: Mapping[str, str]) -> TokenRow:
        """Return a row with `prompt` and `completion`, or with `messages`, as token ids."""
        if "messages" in row:
            return self._of_chat(json.loads(row["messages"]))
        prompt, whole = self.codec.token_ids([row["prompt"], row["prompt"] + row["completion"]])
        return self._labelled(whole, [(_common(prompt, whole), len(whole))])

    def _of_chat(self, chat: Chat) -> TokenRow:
        """Label each answer of the assistant: the text that the template adds after the prompt for it."""
        last = max(number for number, message in enumerate(chat) if message["role"] == ASSISTANT)
        chat = chat[: last + 1]
        whole, spans = self._rendered(chat), []
        (tokens,) = template_token_ids(self.codec, [whole])
        for number, message in enumerate(chat):
            if message["role"] != ASSISTANT:
                continue
            before = self._rendered(chat[:number], add_generation_prompt=True)
            behind = self._rendered(chat[: number + 1])
            if not (behind.startswith(before) and whole.startswith(behind)):
                raise UserError(
                    f"the chat template writes the beginning of a chat of {self.split} differently once "
                    f"message {number + 1} follows, so its answers cannot be located; give another template"
                )
            parts = template_token_ids(self.codec, [before, behind])
            spans.append((_common(parts[0], tokens), _common(parts[1], tokens)))
        return self._labelled(tokens, spans)

    def _rendered(self, chat: Chat, add_generation_prompt: bool = False) -> str:
        where = f"a chat of {self.split}"
        return rendered_chat(self.tokenizer, chat, where, add_generation_prompt=add_generation_prompt)

    def _labelled(self, tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> TokenRow:
        """Label spans, each up to its end token. The last span ends the row, with an end token."""
        tokens, labels = list(tokens), [IGNORED_LABEL] * len(tokens)
        for start, stop in spans:
            if self.end in tokens[start:stop]:
                stop = tokens.index(self.end, start) + 1
            labels[start:stop] = tokens[start:stop]
        begin = spans[-1][0]
        tokens, labels = tokens[:stop], labels[:stop]
        if tokens[-1] != self.end or begin == stop:
            tokens.append(self.end)
            labels.append(self.end)
        if begin == 0:  # no token predicts the first one
            labels[0], begin = IGNORED_LABEL, 1
        return TokenRow(tokens, labels, begin)


def _common(prompt: Sequence[int], whole: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = zip(prompt, whole, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shortened_row(row: TokenRow, max_length: int, leading: Sequence[int]) -> TokenRow | None:
    """Cut a row to `max_length` tokens before its first label; return None if that is not enough.

    The tokens that begin each text (`leading`) stay, and so does the token that predicts the first label.
    """
    surplus = len(row.token_ids) - max_length
    if surplus <= 0:
        return row
    first = int(np.argmax(np.array(row.labels) != IGNORED_LABEL))
    kept = min(_common(leading, row.token_ids), first)
    if surplus > first - max(kept, 1):
        return None
    cut = slice(kept, kept + surplus)
    token_ids, labels = list(row.token_ids), list(row.labels)
    del token_ids[cut], labels[cut]
    return TokenRow(token_ids, labels, row.prompt_length - surplus)
