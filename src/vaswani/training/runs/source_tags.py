"""Checks of the tags that sources begin with, such as >>de<< for the language of their target."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from accelerate import PartialState
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from vaswani.data.sources.corpus import Corpus
from vaswani.data.sources.directions import parse_directions
from vaswani.data.sources.reading import shown
from vaswani.data.text_codec import TextCodec, Tokenizers, source_prefix, source_tags, with_source_tags
from vaswani.errors import UserError, listing

logger = logging.getLogger(__name__)


def all_begin_with_tags(rows: Dataset | IterableDataset, tags: Sequence[str]) -> bool:
    """Return whether each source of the training begins with one of the tags; warn if only some do.

    Raises:
        UserError: no source begins with one of the tags.
    """
    missing, untagged = set(tags), Untagged("train")
    for sources in _batches(rows):
        missing -= {tag for tag in missing if any(source.startswith(tag) for source in sources)}
        untagged.add(sources, [source for source in sources if not source.startswith(tuple(tags))])
    if missing:
        tag = min(missing)
        raise UserError(
            f"source_tags={tag}: no source of the training data begins with it; write it before the "
            f"sources, as in {tag + ' A sentence'!r}, or leave it out"
        )
    untagged.warn(tags)
    return not untagged.number


def check_all_have_rows(directions: Sequence[str], rows: Dataset) -> None:
    """Raise `UserError` unless each direction has training rows."""
    found = rows.unique("direction")
    for direction in parse_directions(directions):
        if str(direction) not in found:
            raise UserError(
                f"directions={direction}: no training row has text in both columns; give such rows, or leave "
                "it out"
            )


def check_has_tags(tokenizer: PreTrainedTokenizerBase, tags: Sequence[str]) -> None:
    """Raise `UserError` unless each tag of the directions is a token of the source tokenizer."""
    codec = TextCodec(tokenizer)
    vocabulary = codec.vocabulary()
    if missing := [tag for tag in tags if tag not in vocabulary]:
        known = f"tags such as {listing(codec.tags[:3])}" if codec.tags else "no tags"
        raise UserError(
            f"directions: the tokenizer has {known} and no token {missing[0]}; name columns after its tags, "
            "or leave tokenizer (or model) out, so that one with these tags is trained"
        )


def with_tags_of_directions(tokenizers: Tokenizers, tags: Sequence[str]) -> Tokenizers:
    """Return tokenizers that state the tags of the directions, besides those that they state already.

    So the commands warn about a source without a tag, also if the tokenizers only had the tags as tokens.
    """
    source, target = tokenizers
    stated = source_tags(source)
    if set(tags) <= set(stated):
        return tokenizers
    stating = with_source_tags(source, list(dict.fromkeys((*stated, *tags))))
    return stating, stating if target is source else target


def without_unused_tags(tokenizers: Tokenizers, corpus: Corpus) -> Tokenizers:
    """Return tokenizers that need no tags, if no source of the training begins with one.

    Of a stream, only the first rows are read.
    """
    source, target = tokenizers
    tags = source_tags(source)
    if not tags or source_prefix(source).startswith(tags):
        return tokenizers
    rows = corpus.split("train")
    batches = islice(_batches(rows), None if isinstance(rows, Dataset) else 10)
    if any(text.startswith(tags) for sources in batches for text in sources):
        return tokenizers
    without = with_source_tags(source, ())
    return without, without if target is source else target


def warn_of_untagged(corpus: Corpus, codec: TextCodec) -> None:
    """Warn about sources without a tag that the model needs; streamed splits are not read."""
    if not codec.tags or not PartialState().is_main_process:
        return
    for name, rows in corpus.splits.items():
        if isinstance(rows, Dataset):
            untagged = Untagged(name)
            for sources in _batches(rows):
                untagged.add(sources, codec.untagged(sources))
            untagged.warn(codec.tags)


def _batches(rows: Dataset | IterableDataset) -> Iterator[list[str]]:
    for batch in rows.select_columns("source").iter(batch_size=1000):
        yield batch["source"]


@dataclass
class Untagged:
    """Counts the sources of a split that begin with none of the tags."""

    split: str
    rows: int = 0
    number: int = 0
    first: str = ""

    def add(self, sources: Sequence[str], untagged: Sequence[str]) -> None:
        """Count sources, and those of them that are untagged."""
        self.rows += len(sources)
        self.number += len(untagged)
        self.first = self.first or next(iter(untagged), "")

    def warn(self, tags: Sequence[str]) -> None:
        """Tell how many there are, if any."""
        if self.number and PartialState().is_main_process:
            logger.warning(
                "%d of %d sources of the %s split begin with none of the tags %s, such as %s.",
                *(self.number, self.rows, self.split, listing(tags[:5]), shown(self.first)),
            )
