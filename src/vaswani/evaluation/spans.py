"""Spans of words, such as names, as a sequence of tags tells them.

Read are IOB1, IOB2, IOBES and BILOU: a tag is O, outside of every span, or a letter, a hyphen and the span's
type (B-PER). Spans begin and end where the evaluation script of CoNLL-2000 (conlleval, Tjong Kim Sang and
Buchholz, 2000, W00-0726) has them begin and end, also in sequences that break the rules of their scheme. Its
letters are B, I and E; S, L and U are read in the same spirit.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
WITHOUT_TYPE = "_"  # the type of spans whose tags are letters alone
_TAG = re.compile(r"([BIELSU])(?:-(.+))?")
_FIRST, _LAST = "BSU", "ELSU"  # letters of the first word of a span, whatever is before, and of its last


class Span(NamedTuple):
    """The words from `start` up to, without, `end`."""

    kind: str
    start: int
    end: int


def mark_spans(tags: Iterable[str]) -> bool:
    """Whether these tags mark spans, and are not, say, parts of speech."""
    return all(tag == OUTSIDE or _TAG.fullmatch(tag) for tag in tags)


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans of a sequence of tags, from left to right.

    Raises:
        ValueError: a tag that marks none (see `mark_spans`).
    """
    spans: list[Span] = []
    is_open = False  # whether the last span may go on
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            is_open = False
            continue
        letter, kind = _letter_and_kind(tag)
        if is_open and letter not in _FIRST and kind == spans[-1].kind:
            spans[-1] = spans[-1]._replace(end=place + 1)
        else:
            spans.append(Span(kind, place, place + 1))
        is_open = letter not in _LAST
    return spans


def _letter_and_kind(tag: str) -> tuple[str, str]:
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ValueError(f"{tag!r} marks no span; expected O, or one of B, I, E, L, S, U with a type: B-PER")
    return match[1], match[2] or WITHOUT_TYPE
