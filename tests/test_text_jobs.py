"""How many texts a command reads ahead before it answers."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from vaswani.cli.text_jobs import write_results
from vaswani.inference.inputs import TextLines


def texts_ahead(model: None, texts: TextLines, write: Callable[[str], None], **options: Any) -> int | None:
    """The number of texts that a command asks to be read ahead; None if it leaves this to the default."""
    return options.get("buffer_size")


@pytest.mark.parametrize(
    ("typed", "given", "expected"), [(True, None, 1), (True, 8, 8), (False, None, None), (False, 8, 8)]
)
def test_typed_texts_are_answered_one_by_one_unless_more_are_asked_for(
    typed: bool, given: int | None, expected: int | None
) -> None:
    reading, writing = reversed(os.openpty()) if typed else os.pipe()
    with open(reading, "rb", buffering=0) as lines, open(writing, "wb", buffering=0):
        texts: Any = TextLines(lines)
        assert write_results(lambda: None, texts, texts_ahead, "-", given) == expected
