"""Yield the tokens of a running `generate` one by one, in the caller's thread, and write their words."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator
from queue import Queue
from typing import Any, TypeVar

import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from vaswani.errors import RunError
from vaswani.inference.inputs import on_one_line

STREAMS_LINES = "stream writes lines of text, and the input is a table; leave it out"
Result = TypeVar("Result")
# A word is complete with the white space behind it; Chinese and Japanese write none.
_COMPLETE = re.compile(r".*[\s\u3000-\u9fff\uff01-\uff60]", re.DOTALL)


class TokenStream(BaseStreamer, StoppingCriteria):
    """Runs a search in a thread of its own and yields its tokens.

        stream = TokenStream()
        for token in stream.tokens_of(lambda: model.generate(input_ids, streamer=stream, num_beams=1)):
            print(token)

    It is a streamer for a `generate` of one row, and also a stopping criterion, which ends the search when
    the caller stops reading tokens.
    """

    def __init__(self) -> None:
        self._queue: Queue[int | BaseException | None] = Queue()
        self._is_abandoned = threading.Event()
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the tokens of a step; the first are the prompt."""
        if self._has_prompt:
            self._queue.put(int(value.flatten()[0]))
        self._has_prompt = True

    def end(self) -> None:
        """Do nothing: a search has ended when it returns."""

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
        """Return whether to stop: bool [rows]."""
        return torch.full((len(input_ids),), self._is_abandoned.is_set(), device=input_ids.device)  # type: ignore[return-value]

    def tokens_of(self, search: Callable[[], object]) -> Iterator[int]:
        """Yield the tokens of a search, and raise what it raises."""
        thread = threading.Thread(target=self._run, args=(search,), daemon=True)
        thread.start()
        try:
            while (token := self._queue.get()) is not None:
                if isinstance(token, BaseException):
                    raise token
                yield token
        finally:
            self._is_abandoned.set()
            thread.join()

    def _run(self, search: Callable[[], object]) -> None:
        try:
            search()
        except BaseException as error:  # raised in the caller's thread
            self._queue.put(error)
        finally:
            self._queue.put(None)


class Pieces:
    """Cuts a text that grows into pieces, each given out once.

    Attributes:
        written: what has been given out.
    """

    def __init__(self) -> None:
        self.written = ""

    def complete(self, text: str) -> Iterator[str]:
        """Yield what the complete words of the text so far add, if they add anything."""
        words = complete_words(text)
        if words.startswith(self.written):
            yield from self._added(words)

    def rest(self, text: str) -> Iterator[str]:
        """Yield what the whole text adds, if it adds anything.

        Raises:
            RunError: the text does not begin with what has been given out.
        """
        if not text.startswith(self.written):
            raise RunError(
                f"the tokenizer has changed the text {self.written!r}, which is given, to {text!r}"
            )
        yield from self._added(text)

    def _added(self, text: str) -> Iterator[str]:
        piece, self.written = text[len(self.written) :], text
        if piece:
            yield piece


def complete_words(text: str) -> str:
    """Return the part of a text that its next tokens do not change: all but its last word and line breaks."""
    found = _COMPLETE.match(text)
    return found.group().rstrip("\r\n") if found else ""


def write_pieces(pieces: Generator[str, None, Result], write: Callable[[str], object]) -> Result:
    """Write the pieces of a text as one line, without its end; return what the generator returns."""
    while True:
        try:
            write(on_one_line(next(pieces)))
        except StopIteration as end:
            result: Result = end.value
            return result
