"""Yield the tokens of a running `generate` one by one, in the caller's thread, and write their words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Generator, Iterator, Sequence
from queue import Queue
from typing import Any, TypeVar

import regex
import torch
from transformers import StoppingCriteria
from transformers.generation.streamers import BaseStreamer

from vaswani.data.text.scripts import HAN, KANA, SOUTHEAST
from vaswani.errors import RunError, UserError
from vaswani.inference.continuing import before_begun_stop, before_stop
from vaswani.inference.inputs import TextLines, Texts, on_one_line

Result = TypeVar("Result")
_LAST_WORD = regex.compile(r"\s+\S*\Z")
# The text up to the last character of a script without spaces, or of its punctuation.
_UNSPACED = regex.compile(rf".*[{HAN}{KANA}{SOUTHEAST}\u3001-\u303f\uff01-\uff60]", regex.DOTALL)


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


def pieces_of(
    tokens: Iterator[int],
    decode: Callable[[list[int]], str],
    byte_ids: Container[int] = (),
    stop: Sequence[str] = (),
) -> Generator[str, None, tuple[list[int], str]]:
    """Yield the text of tokens in pieces, as soon as later tokens cannot change them.

    Args:
        tokens: the tokens as they are found.
        decode: returns the text of the tokens so far.
        byte_ids: tokens for single bytes. Another byte may change the text of all bytes before it.
        stop: texts before which the text ends.

    Returns:
        A generator of pieces, which returns all tokens and their text, with the stop text.

    Raises:
        RunError: a piece differs from the text of all tokens.
    """
    found: list[int] = []
    written = ""
    for token in tokens:
        found.append(token)
        if token in byte_ids:
            continue
        words = complete_words(before_begun_stop(before_stop(decode(found), stop), stop))
        if words.startswith(written) and words != written:
            yield words[len(written) :]
            written = words
    whole = decode(found)
    text = before_stop(whole, stop)
    if not text.startswith(written):
        raise RunError(f"the tokenizer has changed the text {written!r}, which is given, to {text!r}")
    if text != written:
        yield text[len(written) :]
    return found, whole


def complete_words(text: str) -> str:
    """Return a text without its last word and the white space before it.

    In scripts without spaces each character is complete. White space waits for what follows, because
    tokenizers may join a punctuation mark to the word before it, and because `on_one_line` writes several
    line breaks as one space.
    """
    last = _LAST_WORD.search(text)
    start = last.start() if last else 0
    unspaced = _UNSPACED.match(text, start)
    return text[: unspaced.end() if unspaced else start]


def check_lines(texts: Texts) -> None:
    """Raise a UserError if an input, whose texts are to be streamed, is a table."""
    if not isinstance(texts, TextLines):
        raise UserError("stream is for lines of text, and the input is a table; leave out stream")


def write_pieces(pieces: Generator[str, None, Result], write: Callable[[str], object]) -> Result:
    """Write the pieces of a text as one line, without its end; return what the generator returns."""
    while True:
        try:
            write(on_one_line(next(pieces)))
        except StopIteration as end:
            result: Result = end.value
            return result
