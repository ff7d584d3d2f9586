"""Spans of words, such as names, from sequences of tags.

Supports IOB1, IOB2, IOBES and BILOU: a tag is O, outside of all spans, or a letter, a hyphen and the span's
type (B-PER). Spans begin and end as in the evaluation script of CoNLL-2000 (conlleval, Tjong Kim Sang and
Buchholz, 2000, W00-0726), also in invalid sequences. The script knows the letters B, I and E; this module
extends its rules to S, L and U.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
WITHOUT_TYPE = "_"  # the type of spans whose tags are only a letter
_TAG = re.compile(r"([BIELSU])(?:-(.+))?")
_FIRST, _LAST = "BSU", "ELSU"  # letters that always begin, or end, a span


class Span(NamedTuple):
    """The words from `start` to `end`, exclusive."""

    type: str
    start: int
    end: int


def mark_spans(tags: Iterable[str]) -> bool:
    """Return whether all tags mark spans; for example, part-of-speech tags do not."""
    return all(tag == OUTSIDE or _TAG.fullmatch(tag) for tag in tags)


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Return the spans of a sequence of tags, from left to right.

    Raises:
        ValueError: a tag does not mark spans (see `mark_spans`).
    """
    spans: list[Span] = []
    is_open = False  # whether the last span may continue
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            is_open = False
            continue
        letter, span_type = _letter_and_type(tag)
        if is_open and letter not in _FIRST and span_type == spans[-1].type:
            spans[-1] = spans[-1]._replace(end=place + 1)
        else:
            spans.append(Span(span_type, place, place + 1))
        is_open = letter not in _LAST
    return spans


def _letter_and_type(tag: str) -> tuple[str, str]:
    match = _TAG.fullmatch(tag)
    if match is None:
        raise ValueError(f"{tag!r} marks no span; expected O, or one of B, I, E, L, S, U with a type: B-PER")
    return match[1], match[2] or WITHOUT_TYPE
