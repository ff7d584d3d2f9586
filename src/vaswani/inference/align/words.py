"""Find the word that each token of a text belongs to; words are separated by white space."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from vaswani.data.text_codec import TextCodec, source_prefix

Words = list[int | None]  # the word number of each token, from 0; None for tokens of no word

_WORD = re.compile(r"\S+")


def words_of_texts(
    codec: TextCodec, texts: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[Words | None]:
    """Return the word of each token of texts.

    Args:
        codec: the codec that has encoded the texts.
        texts: the texts without a source prefix. The tokens of a prefix belong to no word.
        token_ids: token ids of each text, with special tokens. A source may be truncated (see `Frame.cut`); a
            target may have an additional end token, or lack one.

    Returns:
        For each text, one value per token; None for a text whose words the tokenizer does not reveal.
    """
    if not texts:
        return []
    prefix = source_prefix(codec.tokenizer) if codec.side == "source" else ""
    found: list[Words | None]
    if not codec.tokenizer.is_fast:
        whole = codec.token_ids(texts) if codec.side == "source" else token_ids
        found = _without_offsets(codec, prefix, texts, whole)
    else:
        offsets = codec.encode(list(texts), return_offsets_mapping=True)["offset_mapping"]
        found = [
            _of_spans(prefix + text, len(prefix), spans) for text, spans in zip(texts, offsets, strict=True)
        ]
    return [
        None if words is None else _of_length(words, codec, len(ids))
        for words, ids in zip(found, token_ids, strict=True)
    ]


def _of_length(words: Words, codec: TextCodec, length: int) -> Words:
    """Adapt the words of a text to `length` tokens: drop those of truncated tokens, add None for new ones."""
    if codec.side == "source":
        return codec.frame().cut(words, length)
    return [*words, *[None] * length][:length]


def _of_spans(text: str, start: int, spans: Sequence[tuple[int, int]]) -> Words:
    """Return the word of each token by its span of characters; words begin at or after `start`."""
    begins = [match.start() for match in _WORD.finditer(text, start)]
    words: Words = []
    for begin, end in spans:
        token = _WORD.search(text, begin, end)  # some offsets include the space before the token
        is_inside = token is not None and token.start() >= start
        words.append(bisect_right(begins, token.start()) - 1 if token and is_inside else None)
    return words


def _without_offsets(
    codec: TextCodec, prefix: str, texts: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> list[Words | None]:
    """Return the word of each token by encoding each word alone; if the tokens differ, by decoding."""
    leading = len(codec.frame().leading)
    split = [(prefix + text).split() for text in texts]
    options = {"adds_prefix": False, "add_special_tokens": False}
    encoded = iter(codec.token_ids([word for words in split for word in words], **options))
    found: list[Words | None] = []
    for text, whole, ids in zip(texts, split, token_ids, strict=True):
        count = len(text.split())
        first = len(whole) - count  # earlier words belong to the prefix
        parts = [(number - first, token) for number in range(len(whole)) for token in next(encoded)]
        if list(ids[leading : leading + len(parts)]) == [token for _, token in parts]:
            words = [None if number < 0 else number for number, _ in parts]
            found.append([*[None] * leading, *words, *[None] * (len(ids) - leading - len(parts))])
        else:
            found.append(words_by_decoding(codec, ids, count) if not prefix else None)
    return found


def words_by_decoding(
    codec: TextCodec, token_ids: Sequence[int], num_words: int | None = None
) -> Words | None:
    """Return the word of each token by decoding the tokens up to and including it.

    Args:
        codec: decodes the tokens.
        token_ids: the tokens, with special tokens, which belong to no word.
        num_words: number of words of the encoded text; None means any number.

    Returns:
        One value per token; None if the decoded text has another number of words.
    """
    special = codec.special_ids()
    places = [place for place, token in enumerate(token_ids) if token not in special]
    kept = [token_ids[place] for place in places]
    texts = codec.decode([kept[: end + 1] for end in range(len(kept))], keeps_special=True) if kept else []
    if num_words is not None and len(texts[-1].split() if texts else []) != num_words:
        return None
    words: Words = [None] * len(token_ids)
    before = ""
    for place, text in zip(places, texts, strict=True):
        if text.rstrip() != before:  # a token of white space belongs to no word
            words[place] = len(text.split()) - 1
        before = text.rstrip()
    return words
