"""Build the training sequences of a language model from documents.

A document is a text of a corpus. For causal models the sequences are blocks of packed documents
(`PackedBlocks`) or parts of one document (`DocumentParts`; overlapping, `SlidingParts`). For masked models
they are full sentences of one document (`SentenceSequences`), or two segments, where the second follows the
first or comes from another document (`SegmentPairs`). For encoder-decoders see `span_denoising.py` and
`gap_sentences.py`.

A sentence ends at the end of a line, at a punctuation mark before white space, or after 。, ！ or ？ and any
quotation marks that follow it. A sentence that is longer than a sequence is split between words.

N tokens of a document
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase

from vaswani.data.caching import map_to_file, tokenizer_key
from vaswani.data.columns import Integers
from vaswani.data.text import sentences
from vaswani.data.text_codec import TextCodec, begin_token_id, end_token_id
from vaswani.errors import UserError

Flags = npt.NDArray[np.bool_]
Columns = dict[str, list[Any]]

DOCUMENTS_AT_ONCE = 1000  # packed together; random segments are drawn among them
SHORT_PAIRS = 0.1  # share of shorter pairs, so that models see short texts (as in BERT's code)

TOKENS = {"input_ids": List(Value("int32")), "length": Value("int32")}
_WORDS = {"word_starts": List(Value("bool"))}
_PAIRS = {"token_type_ids": List(Value("int8")), "next_sentence_label": Value("int8")}


@dataclass(frozen=True)
class Document:
    """The tokens of a text, without special tokens.

    Args:
        ids: token ids [N].
        word_starts: True for tokens that begin a word [N].
        sentence_starts: True for tokens that begin a sentence [N].
        characters: start and end of each token in the text, in characters [N, 2].
        text: text of the whole document, also in a part of it.
        complete: False for a text that was cut off, which no end token may follow.
    """

    ids: Integers
    word_starts: Flags
    sentence_starts: Flags
    characters: Integers
    text: str
    complete: bool = True

    def end_of_part(self, start: int, max_tokens: int) -> int:
        """Return the end of a part of up to `max_tokens`: between sentences, else words, else tokens."""
        limit = start + max_tokens
        if limit >= len(self.ids):
            return len(self.ids)
        for starts in (self.sentence_starts, self.word_starts):
            places = np.flatnonzero(starts[start + 1 : limit + 1])
            if len(places):
                return start + 1 + int(places[-1])
        return limit

    def inner_start(self, start: int, stop: int, generator: np.random.Generator) -> int:
        """Draw a token of a part, but not its first: a sentence start, else a word start, else any."""
        for starts in (self.sentence_starts, self.word_starts, np.ones_like(self.word_starts)):
            places = np.flatnonzero(starts[start + 1 : stop])
            if len(places):
                return start + 1 + int(generator.choice(places))
        raise ValueError(f"a part of {stop - start} tokens cannot be divided")

    def part(self, start: int, stop: int) -> Document:
        """Return the tokens from `start` to `stop`."""
        place = slice(start, stop)
        starts = self.word_starts[place], self.sentence_starts[place]
        return Document(self.ids[place], *starts, self.characters[place], self.text)

    def parts(self, max_tokens: int) -> Iterator[Document]:
        """Cut the document into parts of at most `max_tokens` tokens (see `end_of_part`)."""
        start = 0
        while start < len(self.ids):
            stop = self.end_of_part(start, max_tokens)
            yield self.part(start, stop)
            start = stop


def read_documents(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[Document]:
    """Tokenize texts; text that looks like a special token is encoded as ordinary text."""
    options = {"add_special_tokens": False, "split_special_tokens": True}
    encodings = TextCodec(tokenizer).encode(list(texts), **options).encodings
    for text, encoding in zip(texts, encodings or [], strict=True):
        words = np.array(encoding.word_ids, dtype=np.int64)
        characters = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        sentence_starts = np.zeros(len(words), dtype=bool)
        places = np.searchsorted(characters[:, 0], list(sentences.sentence_ends(text)))
        sentence_starts[places[places < len(words)]] = True
        yield Document(
            ids=np.array(encoding.ids, dtype=np.int32),
            word_starts=np.diff(words, prepend=-1) != 0,
            sentence_starts=sentence_starts,
            characters=characters,
            text=text,
        )


def splits_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if words can have several tokens; False if each character is a word.

    Tested on a word that no vocabulary has.
    """
    (document,) = read_documents(["Qxzjvkwy"], tokenizer)
    return not document.word_starts.all()


@dataclass(frozen=True)
class SequenceBuilder:
    """Builds sequences from batches of documents.

    Args:
        max_length: maximum tokens of a sequence, including special tokens.
    """

    max_length: int

    features: ClassVar[Features] = Features(TOKENS)

    def __call__(
        self, rows: Columns, numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> dict[str, list[Any]]:
        """Return the columns of the sequences of a batch of documents.

        Args:
            rows: the column `text` and, if some texts were cut off, `complete`.
            numbers: indices of the documents in the corpus.
            tokenizer: tokenizes the documents.
        """
        complete = rows.get("complete", [True] * len(numbers))
        read = zip(read_documents(rows["text"], tokenizer), complete, numbers, strict=True)
        full = [(replace(each, complete=done), number) for each, done, number in read if len(each.ids)]
        documents, numbers = [document for document, _ in full], [number for _, number in full]
        made = list(self.sequences(documents, numbers, tokenizer)) if full else []
        columns = {name: [row[name] for row in made] for name in self.features if name != "length"}
        return {**columns, "length": [len(ids) for ids in columns["input_ids"]]}

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the sequences of consecutive documents.

        Args:
            documents: documents with at least one token.
            numbers: indices of the documents in the corpus.
            tokenizer: the tokenizer of the documents.
        """
        raise NotImplementedError

    def _blocks(self, tokens: Integers) -> Iterator[dict[str, Any]]:
        """Cut tokens into blocks; each begins with the last token of the block before it."""
        for start in range(0, len(tokens) - 1, self.max_length - 1):
            yield {"input_ids": tokens[start : start + self.max_length]}


@dataclass(frozen=True)
class PackedBlocks(SequenceBuilder):
    """Blocks of concatenated documents, each `<s> ... </s>`; no token is a label in two blocks.

    A document that was cut off has no `</s>`, so that a model does not learn to end there.
    """

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield blocks of all documents, concatenated."""
        frame = boundary_token_ids(tokenizer)
        yield from self._blocks(np.concatenate([_whole(document, *frame) for document in documents]))


@dataclass(frozen=True)
class DocumentParts(SequenceBuilder):
    """Blocks of one document each; as in `PackedBlocks`, one that was cut off has no `</s>`."""

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the blocks of each document."""
        frame = boundary_token_ids(tokenizer)
        for document in documents:
            yield from self._blocks(_whole(document, *frame))


@dataclass(frozen=True)
class SlidingParts(SequenceBuilder):
    """Overlapping blocks of one document each, so that tokens have long contexts; for evaluation.

    No token is a label in two blocks: the first `context` tokens of each block are only read.

    Args:
        stride: tokens from the start of a block to the start of the next, less than `max_length`. Except in
            the first block of a document, a label has at least `max_length - stride` tokens before it.
    """

    stride: int

    features: ClassVar[Features] = Features(TOKENS | {"context": Value("int32")})

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield the blocks of each document."""
        frame = boundary_token_ids(tokenizer)
        for document in documents:
            tokens, read = _framed(document.ids, *frame), 1  # nothing predicts the first token
            for start in range(0, len(tokens), self.stride):
                yield {"input_ids": tokens[start : start + self.max_length], "context": read - start}
                read = start + self.max_length
                if read >= len(tokens):
                    break


@dataclass(frozen=True)
class SentenceSequences(SequenceBuilder):
    """`<s> ... </s>` around as many full sentences of one document as fit (RoBERTa's DOC-SENTENCES).

    Liu et al. (2019), arXiv:1907.11692, section 4.2.
    """

    features: ClassVar[Features] = Features(TOKENS | _WORDS)

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield parts of each document that end between sentences."""
        frame = boundary_token_ids(tokenizer)
        for document in documents:
            for part in document.parts(self.max_length - 2):
                yield {
                    "input_ids": _framed(part.ids, *frame),
                    "word_starts": _framed(part.word_starts, True, True),
                }


@dataclass(frozen=True)
class SegmentPairs(SequenceBuilder):
    """`<s> A </s> B </s>`, where B follows A or, half of the time, comes from another document.

    Devlin et al. (2019), arXiv:1810.04805, section 3.1 and appendix A.2. If B comes from another document,
    the text after A begins the next pair.

    Args:
        seed: seed of the segment ends and of the random segments.
    """

    seed: int = 0

    features: ClassVar[Features] = Features(TOKENS | _WORDS | _PAIRS)

    def sequences(
        self, documents: list[Document], numbers: list[int], tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[dict[str, Any]]:
        """Yield pairs of each document; random segments come from other documents of the batch."""
        boundaries = boundary_token_ids(tokenizer)
        generator = np.random.default_rng((self.seed, numbers[0]))
        for number, document in enumerate(documents):
            others = documents[:number] + documents[number + 1 :]
            for first, second, is_random in self._pairs(document, others, generator):
                ids, word_starts = (
                    np.concatenate([_framed(of_first, *frame), _framed(of_second, *frame)[1:]])
                    for of_first, of_second, frame in (
                        (first.ids, second.ids, boundaries),
                        (first.word_starts, second.word_starts, (True, True)),
                    )
                )
                yield {
                    "input_ids": ids,
                    "word_starts": word_starts,
                    "token_type_ids": [0] * (len(first.ids) + 2) + [1] * (len(second.ids) + 1),
                    "next_sentence_label": int(is_random),
                }

    def _pairs(
        self, document: Document, others: list[Document], generator: np.random.Generator
    ) -> Iterator[tuple[Document, Document, bool]]:
        """Yield first and second segments, and whether the second is from another document."""
        room, start = self.max_length - 3, 0
        while start < len(document.ids):
            max_tokens = int(generator.integers(2, room + 1)) if generator.random() < SHORT_PAIRS else room
            stop = max(document.end_of_part(start, max_tokens), start + 2)
            if stop > len(document.ids):  # one token is left, too few for two segments
                return
            middle = document.inner_start(start, stop, generator)
            first, second = document.part(start, middle), document.part(middle, stop)
            is_random = bool(others) and generator.random() < 0.5
            if is_random:
                second = _drawn_part(others, stop - middle, generator)
            yield first, second, is_random
            start = middle if is_random else stop


def _drawn_part(documents: list[Document], max_tokens: int, generator: np.random.Generator) -> Document:
    """Draw a document, and a part of it with at most `max_tokens` tokens that begins with a sentence."""
    document = documents[generator.integers(len(documents))]
    start = int(generator.choice([0, *np.flatnonzero(document.sentence_starts)]))
    return document.part(start, document.end_of_part(start, max_tokens))


def boundary_token_ids(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the tokens that begin and end a sequence: `<s>` and `</s>`, or BERT's `[CLS]` and `[SEP]`.

    Raises:
        UserError: the tokenizer lacks one.
    """
    begin, end = begin_token_id(tokenizer), end_token_id(tokenizer)
    if begin is None or end is None:
        raise UserError(
            "the tokenizer has no token that begins or ends a sequence; give it a bos_token and an "
            "eos_token, or a cls_token and a sep_token"
        )
    return begin, end


def _framed(tokens: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
    return np.concatenate([[begin], tokens, [end]]).astype(tokens.dtype)


def _whole(document: Document, begin: int, end: int) -> Integers:
    """Return a document between the tokens that begin and end it; without the end if it was cut off."""
    framed = _framed(document.ids, begin, end)
    return framed if document.complete else framed[:-1]


def make_sequences(
    dataset: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase, builder: SequenceBuilder
) -> Dataset | IterableDataset:
    """Build sequences of tokens from documents; the result is kept in the cache of `datasets`.

    Args:
        dataset: documents, in the text column `text`; the boolean column `complete`, if there is one, is
            False for those that were cut off. A stream is processed as it is read.
        tokenizer: must have the special tokens that the builder needs (see `boundary_token_ids`).
        builder: builds the sequences.

    Returns:
        Rows with `input_ids` (int32), `length` (int32) and the other columns of the builder.

    Raises:
        UserError: there are no sequences, or only one document to draw segments from.
    """
    options: dict[str, Any] = {"with_indices": True, "fn_kwargs": {"tokenizer": tokenizer}}
    if isinstance(dataset, IterableDataset):
        columns = dataset.column_names
        return dataset.map(
            builder, batched=True, remove_columns=columns, features=builder.features, **options
        )
    if isinstance(builder, SegmentPairs) and len(dataset) < 2:
        raise UserError("next_sentence needs two documents or more to draw segments from, and there is one")
    num_batches = -(-len(dataset) // DOCUMENTS_AT_ONCE)
    options["batch_size"] = -(-len(dataset) // num_batches)  # similar sizes: no batch of one document
    modules = dict.fromkeys((__file__, sentences.__file__, inspect.getfile(type(builder))))
    parts = [dataset._fingerprint, tokenizer_key(tokenizer, *modules), repr(builder)]
    key = hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()
    rows = map_to_file(dataset, builder, builder.features, key, desc="Tokenizing", **options)
    if not len(rows):
        raise UserError(f"none of {len(dataset):,} documents is long enough to train on; give longer ones")
    return rows
