"""Spans of tags: cases by hand, and round trips through each tagging scheme."""

import itertools
import random

import pytest

from vaswani.evaluation.spans import Span, mark_spans, spans_of

CASES = {
    "O O": [],
    "": [],
    "B-PER": [("PER", 0, 1)],
    "O B-PER I-PER O": [("PER", 1, 3)],
    "B-PER B-PER": [("PER", 0, 1), ("PER", 1, 2)],
    "B-PER I-LOC": [("PER", 0, 1), ("LOC", 1, 2)],  # another type is another span
    "I-PER I-PER": [("PER", 0, 2)],  # IOB1: a span may begin with I ...
    "I-PER B-PER I-PER": [("PER", 0, 1), ("PER", 1, 3)],  # ... and B parts it from the one before
    "I-PER I-LOC O I-LOC": [("PER", 0, 1), ("LOC", 1, 2), ("LOC", 3, 4)],
    "S-PER S-PER": [("PER", 0, 1), ("PER", 1, 2)],  # IOBES
    "B-PER I-PER E-PER S-LOC": [("PER", 0, 3), ("LOC", 3, 4)],
    "B-PER E-PER B-PER E-PER": [("PER", 0, 2), ("PER", 2, 4)],
    "U-PER B-LOC L-LOC": [("PER", 0, 1), ("LOC", 1, 3)],  # BILOU
    "E-PER": [("PER", 0, 1)],  # what a model may write
    "E-PER E-PER": [("PER", 0, 1), ("PER", 1, 2)],
    "E-PER I-PER": [("PER", 0, 1), ("PER", 1, 2)],
    "B-PER E-LOC": [("PER", 0, 1), ("LOC", 1, 2)],
    "S-PER I-PER": [("PER", 0, 1), ("PER", 1, 2)],
    "B-PER O I-PER": [("PER", 0, 1), ("PER", 2, 3)],
    "B-work-of-art I-work-of-art": [("work-of-art", 0, 2)],
    "B I O B": [("_", 0, 2), ("_", 3, 4)],
}


@pytest.mark.parametrize(("tags", "spans"), CASES.items(), ids=str)
def test_spans_are_those_of_conll(tags, spans):
    assert spans_of(tags.split()) == [Span(*span) for span in spans]


def in_scheme(spans: list[Span], length: int, scheme: str) -> list[str]:
    """Tags of spans that do not overlap."""
    first, inside, last, alone = {"IOB2": "BIIB", "IOBES": "BIES", "BILOU": "BILU"}[scheme]
    tags = ["O"] * length
    for kind, start, end in spans:
        tags[start:end] = [f"{inside}-{kind}"] * (end - start)
        tags[end - 1] = f"{last}-{kind}"
        tags[start] = f"{first if end - start > 1 else alone}-{kind}"
    return tags


@pytest.mark.parametrize("scheme", ["IOB2", "IOBES", "BILOU"])
def test_spans_that_were_written_are_read(scheme):
    generator = random.Random(0)
    for _ in range(200):
        borders = sorted(generator.choices(range(12), k=8))
        pieces = [(start, end) for start, end in itertools.pairwise(borders) if start < end]
        chosen = [piece for piece in pieces if generator.random() < 0.6]
        spans = [Span(generator.choice(["PER", "LOC"]), start, end) for start, end in chosen]
        assert spans_of(in_scheme(spans, 12, scheme)) == spans


def test_parts_of_speech_mark_no_spans():
    assert mark_spans(["O", "B-PER", "I-PER"])
    assert mark_spans([])
    assert not mark_spans(["NOUN", "VERB"])
    assert not mark_spans(["B-PER", "NOUN"])
    with pytest.raises(ValueError, match="'NOUN' marks no span"):
        spans_of(["NOUN"])
