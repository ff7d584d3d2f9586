"""Phrases that translations must not or must contain: from texts to tokens, and back to check.

A phrase is a part of the text, of a word too: "art" is in "party". Upper and lower case differ.
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
_MARK = "("  # a text before a phrase that no space precedes; tokens do not reach over it
_BEGINS_WITHOUT_SPACE = regex.compile(f"[{HAN}{KANA}{SOUTHEAST}]")
_Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """A sentence, with what its translation must hold.

    Args:
        sentence: the source.
        prefix: the translation begins with it; empty for none.
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
    """Return phrases, each once.

    Raises:
        UserError: a phrase is empty or has white space at an end, or a required one contains a banned one.
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
    """Raise a UserError if no translation can begin with a text, whatever the vocabulary."""
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
    """Return tokens that write a banned phrase: its usual spellings, and each token that contains it.

    There may be others, which `written_by` finds in a text.
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


def written_by(codec: TextCodec, token_ids: Sequence[int], phrase: str) -> _Tokens | None:
    """Return the shortest run of tokens, the first of them in an output, that writes a phrase; None without.

    Args:
        codec: of the targets.
        token_ids: of the output.
        phrase: a text.
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
    """Return how a required phrase is written at the beginning of a text and, last, after other words.

    In scripts without spaces, tokens may reach over its edges, so that it is looked for in the text too.

    Raises:
        UserError: the target vocabulary cannot write it.
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
        UserError: no translation can begin with it (see `check_prefix`), or the target vocabulary cannot
            write it.
    """
    check_prefix(prefix, banned)
    (tokens,) = codec.token_ids([prefix], add_special_tokens=False)
    _check_written(codec, tuple(tokens), prefix, "prefix")
    return tuple(tokens)


def _check_written(codec: TextCodec, tokens: _Tokens, text: str, name: str) -> None:
    """Raise a UserError unless tokens write a text."""
    written = codec.decode([list(tokens)])[0].strip()
    if codec.unknown_id() in tokens or written != text:
        raise UserError(f"{name}: the target vocabulary writes {text!r} as {written!r}; choose other words")


def _spellings(codec: TextCodec, phrase: str) -> list[_Tokens]:
    """Return the tokens of a phrase, and of a phrase after a space where these differ."""
    encoded = codec.token_ids([phrase, f" {phrase}"], add_special_tokens=False)
    return list(dict.fromkeys(map(tuple, encoded)))
