"""Banned and required phrases of translations: convert them to tokens, and find them in outputs.

A phrase may be part of a word: "art" is in "party". Upper and lower case differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import regex

from vaswani.data.text.scripts import HAN, KANA, SOUTHEAST
from vaswani.data.text_codec import TextCodec
from vaswani.errors import UserError
from vaswani.inference.batches import listed
from vaswani.inference.required_phrases import Phrase

_PROBE = "a"  # a text before a phrase
_MARK = "("  # a text before a phrase without a space; no token contains both the mark and the phrase
_BEGINS_WITHOUT_SPACE = regex.compile(f"[{HAN}{KANA}{SOUTHEAST}]")
_Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """A sentence with the prefix and the phrases that its translation must have.

    Args:
        sentence: the source.
        prefix: text that the translation begins with; empty for none.
        required: phrases that the translation contains.
    """

    sentence: str
    prefix: str = ""
    required: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sentence)


def check_phrases(
    banned: Sequence[str] | None, required: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check banned and required phrases, and return both without duplicates.

    Raises:
        UserError: a phrase is empty or has white space at an end, or a required phrase contains a banned one.
    """
    given = {
        "banned_phrases": listed("banned_phrases", banned or ()),
        "required_phrases": listed("required_phrases", required or ()),
    }
    for name, phrases in given.items():
        for phrase in phrases:
            _check_edges(phrase, name)
    for phrase in given["required_phrases"]:
        _check_not_banned(phrase, given["banned_phrases"], "required_phrases")
    return tuple(dict.fromkeys(given["banned_phrases"])), tuple(dict.fromkeys(given["required_phrases"]))


def check_prefix(prefix: str, banned: Sequence[str]) -> None:
    """Raise a UserError if no translation can begin with a text, with any vocabulary."""
    _check_edges(prefix, "prefix")
    _check_not_banned(prefix, banned, "prefix")


def _check_edges(text: str, name: str) -> None:
    """Raise a UserError if a text is empty or has white space at an end, which tokenizers do not keep."""
    if not text or text != text.strip():
        raise UserError(f"{name}: {text!r} is empty or has white space at an end; give the words alone")


def _check_not_banned(text: str, banned: Sequence[str], name: str) -> None:
    """Raise a UserError if a text that must occur contains a phrase that must not."""
    for phrase in banned:
        if phrase in text:
            raise UserError(f"{name}: {text!r} contains the banned phrase {phrase!r}; leave one of them out")


def banned_spellings(codec: TextCodec, banned: Sequence[str]) -> tuple[_Tokens, ...]:
    """Return token sequences that write banned phrases: usual spellings, and each token that contains one.

    Other spellings are possible; `find_spelling` finds them in an output.
    """
    if not banned:
        return ()
    unknown = codec.unknown_id()
    usual = (tokens for phrase in banned for tokens in _spellings(codec, phrase) if unknown not in tokens)
    tokens = sorted(codec.vocabulary().values())
    texts = codec.decode([[token] for token in tokens])
    single = (
        (token,)
        for token, text in zip(tokens, texts, strict=True)
        if any(phrase in text for phrase in banned)
    )
    return tuple(dict.fromkeys([*usual, *single]))


def find_spelling(codec: TextCodec, token_ids: Sequence[int], phrase: str) -> _Tokens | None:
    """Return the shortest run of tokens that writes the first occurrence of a phrase; None without one.

    Args:
        codec: the codec of the targets.
        token_ids: the tokens of an output.
        phrase: the text to find.
    """
    ends = range(1, len(token_ids) + 1)
    beginnings = codec.decode([list(token_ids[:end]) for end in ends])
    last = next((end for end, text in zip(ends, beginnings, strict=True) if phrase in text), None)
    if last is None:
        return None
    starts = range(last - 1, -1, -1)
    endings = codec.decode([list(token_ids[start:last]) for start in starts])
    first = next(start for start, text in zip(starts, endings, strict=True) if phrase in text)
    return tuple(token_ids[first:last])


def required_phrase(codec: TextCodec, phrase: str) -> Phrase:
    """Return a required phrase with its spellings: first at the beginning of a text, last after other words.

    In scripts without spaces, a token may span an edge of the phrase, so the decoded text is searched too.

    Raises:
        UserError: the target vocabulary cannot write the phrase.
    """
    beginning, *others = _spellings(codec, phrase)
    _check_written(codec, beginning, phrase, "required_phrases")
    has_space = not _BEGINS_WITHOUT_SPACE.match(phrase)
    (probe,) = codec.token_ids([_PROBE if has_space else _MARK], add_special_tokens=False)
    if not has_space:
        (marked,) = codec.token_ids([f"{_MARK}{phrase}"], add_special_tokens=False)
        others.append(tuple(marked[len(probe) :]))
    tried = [*dict.fromkeys([beginning, *others])]
    texts = codec.decode([[*probe, *tokens] for tokens in tried])
    wanted = f"{codec.decode([probe])[0]}{' ' if has_space else ''}{phrase}".strip()
    later = [tokens for tokens, text in zip(tried, texts, strict=True) if text.strip() == wanted]
    spellings = (beginning, *later[:1]) if later and later[0] != beginning else (beginning,)
    return Phrase(spellings, None if has_space else partial(_is_written, codec, phrase))


def _is_written(codec: TextCodec, phrase: str, token_ids: Sequence[int]) -> bool:
    return phrase in codec.decode([list(token_ids)])[0]


def prefix_tokens(codec: TextCodec, prefix: str, banned: Sequence[str]) -> _Tokens:
    """Return the tokens of a text that begins a translation.

    Raises:
        UserError: no translation can begin with the text (see `check_prefix`), or the target vocabulary
            cannot write it.
    """
    check_prefix(prefix, banned)
    (tokens,) = codec.token_ids([prefix], add_special_tokens=False)
    _check_written(codec, tuple(tokens), prefix, "prefix")
    return tuple(tokens)


def _check_written(codec: TextCodec, tokens: _Tokens, text: str, name: str) -> None:
    """Raise a UserError unless tokens decode to a text."""
    written = codec.decode([list(tokens)])[0].strip()
    if codec.unknown_id() in tokens or written != text:
        raise UserError(f"{name}: the target vocabulary writes {text!r} as {written!r}; choose other words")


def _spellings(codec: TextCodec, phrase: str) -> list[_Tokens]:
    """Return the tokens of a phrase and, if they differ, those of the phrase after a space."""
    encoded = codec.token_ids([phrase, f" {phrase}"], add_special_tokens=False)
    return list(dict.fromkeys(map(tuple, encoded)))
