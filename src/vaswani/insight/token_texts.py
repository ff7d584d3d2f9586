"""Readable tokens: the text of each token of a sequence, and the words that tokens form.

The tokens of a vocabulary mark the beginnings of words ("▁", "Ġ"), their ends ("</w>") or their continuations
("##", "@@"), and may be bytes. This module converts each token to the part of the text that it represents.
Several tokens that are the bytes of one character show the character with their number: "中 1/3". A token of
invisible characters shows their code points.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Split

from vaswani.data.text.scripts import HAN, KANA, SOUTHEAST
from vaswani.data.text_codec import BYTE, TextCodec

_LONE_BYTE = re.compile("[\udc80-\udcff]")  # an invalid byte as "surrogateescape" decodes it
_SPACES = {" ": "␣", "\n": "↵", "\t": "⇥"}
# Letters, digits and joiners, with apostrophes between them; in scripts without spaces, each token is a word.
_NO_SPACES = f"[{HAN}{KANA}{SOUTHEAST}]"
_INSIDE = rf"(?:(?!{_NO_SPACES})[\p{{L}}\p{{M}}\p{{N}}_\x{{200C}}\x{{200D}}])+"
_WORD = Split(Regex(rf"{_INSIDE}(?:['’]{_INSIDE})*"), behavior="removed", invert=True)


@dataclass(frozen=True)
class TokenTexts:
    """The texts of a sequence of T tokens, which form W words.

    Args:
        tokens: the text of each token, never empty.
        words: the texts of the words; special tokens and punctuation marks are separate words.
        word_of: the index of each token's word, in ascending order.
    """

    tokens: tuple[str, ...]
    words: tuple[str, ...]
    word_of: tuple[int, ...]


def token_texts(codec: TextCodec, token_ids: Sequence[int]) -> TokenTexts:
    """Return the texts of tokens.

    Args:
        codec: the codec of the side that the tokens belong to.
        token_ids: includes special tokens, which keep their names.
    """
    names = codec.tokens(token_ids)
    special = set(codec.tokenizer.all_special_ids)
    to_bytes = _spelling(codec)
    tokens: list[str] = []
    words: list[str] = []
    word_of: list[int] = []
    for is_special, run in groupby(range(len(names)), key=lambda place: token_ids[place] in special):
        places = list(run)
        if is_special:
            own = tuple(names[place] for place in places)
            found = TokenTexts(own, own, tuple(range(len(own))))
        else:
            found = _texts_of_bytes([to_bytes(names[place]) for place in places])
        word_of += [len(words) + number for number in found.word_of]
        words += found.words
        tokens += found.tokens
    return TokenTexts(tuple(tokens), tuple(words), tuple(word_of))


def _spelling(codec: TextCodec) -> Callable[[str], bytes]:
    """Return a function that spells a token as bytes of text, with the spaces around it."""
    decoders = _decoders(codec.tokenizer)
    vocabulary = codec.vocabulary()
    ends_words = any(token.endswith("</w>") for token in vocabulary)
    continues_words = not ends_words and any(token.endswith("@@") and token != "@@" for token in vocabulary)
    begins_words = any(token.startswith("▁") for token in vocabulary)
    byte_of = _byte_of_letter() if "ByteLevel" in decoders else {}

    def spelled(token: str) -> bytes:
        if byte := BYTE.fullmatch(token):
            return bytes([int(byte[1], 16)])
        after = " " if ends_words and token.endswith("</w>") else ""
        token = token.removesuffix("</w>") if ends_words else token
        if byte_of and all(letter in byte_of for letter in token):
            return bytes(byte_of[letter] for letter in token) + after.encode()
        if "WordPiece" in decoders:
            token = token.removeprefix("##") if token.startswith("##") else f" {token}"
        elif continues_words:
            token = token.removesuffix("@@") if token.endswith("@@") else f"{token} "
        elif begins_words:
            token = token.replace("▁", " ")
        elif not (byte_of or ends_words):  # nothing marks words, so each token is a word
            token = f" {token}"
        return (token + after).encode()

    return spelled


def word_parts(codec: TextCodec) -> Callable[[str], tuple[str, bool]]:
    """Return a function that gives a token's text, and whether it continues the word before it.

    No token continues a word if the vocabulary does not mark the beginnings of words.
    """
    spelled, special = _spelling(codec), frozenset(codec.tokenizer.all_special_tokens)
    marks_beginnings = not _decoders(codec.tokenizer).isdisjoint({"WordPiece", "ByteLevel"}) or any(
        token.startswith("▁") for token in codec.vocabulary()
    )

    def part(token: str) -> tuple[str, bool]:
        text = spelled(token).decode(errors="replace")
        return text.strip(), marks_beginnings and token not in special and not text.startswith(" ")

    return part


def _decoders(tokenizer: Any) -> set[str]:
    """Return the types of a tokenizer's decoders; empty unless the tokenizers library implements it."""
    if not tokenizer.is_fast or tokenizer.backend_tokenizer.decoder is None:
        return set()
    settings = json.loads(tokenizer.backend_tokenizer.decoder.__getstate__())
    return {each["type"] for each in [settings, *settings.get("decoders", ())]}


def _byte_of_letter() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary represents (Radford et al., 2019).

    Printable characters of Latin-1 represent themselves; the letters from U+0100 on represent other bytes.
    """
    letters = sorted(ByteLevel.alphabet())
    own = {letter: ord(letter) for letter in letters if ord(letter) < 256}
    others = (byte for byte in range(256) if byte not in own.values())
    return own | dict(zip((letter for letter in letters if letter not in own), others, strict=True))


def _texts_of_bytes(spelled: Sequence[bytes]) -> TokenTexts:
    """Return the texts of tokens from their bytes; none of the tokens is special."""
    text = b"".join(spelled).decode("utf-8", "surrogateescape")  # each invalid byte becomes one character
    starts = [0, *accumulate(map(len, spelled))]  # start of each token, and the end
    tokens = [""] * len(spelled)
    chars: list[list[int]] = [[] for _ in spelled]  # of each token
    place = 0
    for number, char in enumerate(text):
        end = place + len(char.encode("utf-8", "surrogateescape"))
        owners = sorted({bisect_right(starts, byte) - 1 for byte in range(place, end)})
        for part, owner in enumerate(owners, start=1):
            shown = f"0x{ord(char) - 0xDC00:X}" if _LONE_BYTE.match(char) else char
            tokens[owner] += shown if len(owners) == 1 else f"{_visible(shown)} {part}/{len(owners)}"
            chars[owner].append(number)
        place = end
    readable = _LONE_BYTE.sub("\ufffd", text)
    words: list[str] = []
    word_of: list[int] = []
    for _, run in groupby(zip(_word_keys(readable, chars), chars, strict=True), key=lambda pair: pair[0]):
        inside = [of_token for _, of_token in run]
        numbers = [number for of_token in inside for number in of_token]
        word_of += [len(words)] * len(inside)
        words.append(_visible(readable[numbers[0] : numbers[-1] + 1] if numbers else ""))
    return TokenTexts(tuple(map(_visible, tokens)), tuple(words), tuple(word_of))


def _word_keys(text: str, chars: Sequence[Sequence[int]]) -> list[tuple[str, int]]:
    """Return a key for each token, equal within a word; tokens of spaces join the next token."""
    word_of_char = _words_of_chars(text)
    keys: list[tuple[str, int]] = []
    for numbers in reversed(chars):
        first = next((number for number in numbers if not text[number].isspace()), None)
        if first is not None:
            keys.append(word_of_char[first])
        else:
            is_break = any(text[number] != " " for number in numbers)
            keys.append(("space", len(keys)) if is_break or not keys else keys[-1])
    keys.reverse()
    for place in range(1, len(keys)):  # the remaining bytes of a character join its first token
        before, here = chars[place - 1], chars[place]
        if before and here and before[-1] == here[0]:
            keys[place] = keys[place - 1]
    return keys


def _words_of_chars(text: str) -> list[tuple[str, int]]:
    """Return a key for each character: the number of its word, or its own number."""
    found = [("character", number) for number in range(len(text))]
    for number, (_, (start, end)) in enumerate(_WORD.pre_tokenize_str(text)):
        found[start:end] = [("word", number)] * (end - start)
    return found


def _visible(text: str) -> str:
    """Return a text without surrounding spaces, or with symbols for its characters if none can be seen."""
    if not (inside := text.strip()):
        return "".join(_SPACES.get(char, "␣") for char in text) or "∅"
    if all(map(_is_invisible, inside)):
        return " ".join(f"U+{ord(char):04X}" for char in inside)
    return inside


def _is_invisible(char: str) -> bool:
    """Return True for controls, such as joiners and directions, and for the selectors that follow emoji."""
    return unicodedata.category(char) in ("Cc", "Cf") or "VARIATION SELECTOR" in unicodedata.name(char, "")
