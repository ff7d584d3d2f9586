"""Sentences in columns, as in CoNLL's shared tasks: a line for each word, its tags in further columns."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

DOCUMENT = "-DOCSTART-"
COMMENT = re.compile(r"#\s*([\w.:-]+\s*=\s|newdoc\b|newpar\b)")  # "# # B-NP" is a word


def sentences(lines: Iterable[str]) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield each sentence: the number of its first line, from 1, and the columns of each word.

    Blank lines separate sentences. Lines that begin a document are skipped, and so are comments of CoNLL-U
    before a sentence (`# text = ...`). If a line has tabs, only tabs separate its columns.
    """
    words: list[list[str]] = []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        if not words and COMMENT.match(line):
            continue
        cells = line.split("\t") if "\t" in line else filter(None, line.split(" "))
        columns = [cell.strip() for cell in cells]
        if any(columns) and columns[0] != DOCUMENT:
            words.append(columns)
        elif words:
            yield number - len(words), words
            words = []
