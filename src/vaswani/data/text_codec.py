"""Encode and decode the texts of one side of a model, source or target.

A tokenizer of transformers stores the settings of its last call: truncation, padding, and whether it encodes
sources or targets. Threads that share a tokenizer would overwrite each other's settings. A `TextCodec` lets
only one thread at a time use a tokenizer, and never lets it truncate: `Frame.cut` shortens the tokens
afterwards.
"""

from __future__ import annotations

import copy
import difflib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

from transformers import BatchEncoding, PreTrainedTokenizerBase

from vaswani.errors import UserError, one_line

Side = Literal["source", "target"]
# The tokenizers of sources and of targets; a single tokenizer is given twice.
Tokenizers = tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # a token of SentencePiece's byte fallback
TAG = re.compile(r">>[^<>]+<<")  # the language of a target, as Marian's models and `source_tags` write it
SOURCE_PREFIX = "source_prefix"  # keys in tokenizer_config.json
SOURCE_TAGS = "source_tags"
PLAIN_TEXTS = "plain_texts"
_PROBES = ("a", "1", ".", "я", "中")  # most tokenizers have tokens for at least one of these
_locks: WeakKeyDictionary[PreTrainedTokenizerBase, threading.RLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


def _forget_locks() -> None:
    """Reset the locks: a forked process has no thread that could release them."""
    global _locks_lock
    _locks_lock = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer adds to every text.

    Args:
        leading: token ids before the text.
        trailing: token ids after the text; some tokenizers add a language after the end token.
        keeps_end: truncation removes the beginning of the text (`truncation_side="left"`).
    """

    leading: tuple[int, ...]
    trailing: tuple[int, ...]
    keeps_end: bool = False

    def __len__(self) -> int:
        return len(self.leading) + len(self.trailing)

    def cut(self, row: Sequence[Any], most: int) -> list[Any]:
        """Truncate tokens, or values per token, to `most`; the special tokens are kept."""
        surplus = len(row) - most
        if surplus <= 0:
            return list(row)
        start = len(self.leading) if self.keeps_end else most - len(self.trailing)
        return [*row[:start], *row[start + surplus :]]

    def check_room(self, **limits: int | None) -> None:
        """Raise a UserError if a limit leaves no room for text beside the special tokens."""
        for name, most in limits.items():
            if most is not None and most <= len(self):
                raise UserError(
                    f"{name}={most} leaves no room for text beside the {len(self)} special tokens that the "
                    f"tokenizer adds; give {len(self) + 1} or more"
                )


class TextCodec:
    """Encodes and decodes the sources or targets of a model; thread-safe.

    Sources are encoded like `tokenizer(texts)`, targets like `tokenizer(text_target=texts)`. If a tokenizer
    has two vocabularies, each side uses its own. The tokenizer's `source_prefix`, such as T5's "translate
    English to German: ", is put before each source (see `for_languages`); if it is a tag such as ">>deu<<", a
    source that begins with another tag of the vocabulary keeps its own.

    Tokenizers with `plain_texts` encode "</s>" inside a text as ordinary text (see `text_options`).

    Args:
        tokenizer: adds the special tokens that the model was trained with. Codecs may share it.
        side: `"source"` or `"target"`.

    Raises:
        TypeError: the tokenizer is not one of transformers'.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, side: Side = "source"):
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise TypeError(
                f"the tokenizer is {tokenizer!r}; give a tokenizer of transformers, such as "
                "AutoTokenizer.from_pretrained(FOLDER)"
            )
        self.tokenizer = tokenizer
        self.side = side

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokenizer, self.side)  # the view may hold a model that cannot be pickled

    @cached_property
    def _view(self) -> Any:
        return _one_sided(self.tokenizer, self.side)

    def encode(self, *texts: Sequence[Any], adds_prefix: bool = True, **options: Any) -> BatchEncoding:
        """Encode texts without truncation and padding.

        Args:
            texts: a list of texts, or two lists for pairs.
            adds_prefix: put the source prefix before sources.
            options: options of the tokenizer's call; they override those of `text_options`.

        Raises:
            UserError: the tokenizer fails, or does not know the language of the targets.
        """
        names = ("text", "text_pair") if self.side == "source" else ("text_target", "text_pair_target")
        adds_prefix = adds_prefix and self.side == "source"
        if adds_prefix and texts and (prefix := source_prefix(self.tokenizer)):
            # A source with a tag of its own keeps it in place of a prefix that is one.
            tags = self.tags if prefix.startswith(self.tags) else ()
            texts = ([text if text.startswith(tags) else prefix + text for text in texts[0]], *texts[1:])
        given: dict[str, Any] = dict(zip(names, texts, strict=False))
        if self.side == "target":
            _check_target_language(self.tokenizer)
        options = {**text_options(self.tokenizer), **options}
        with exclusive(self.tokenizer):
            return self._view(**given, truncation=False, padding=False, verbose=False, **options)

    def token_ids(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        """Return the token ids of each text, with special tokens."""
        if not texts:
            return []
        options = {"return_attention_mask": False, "return_token_type_ids": False, **options}
        return self.encode(list(texts), **options)["input_ids"]

    def decode(self, token_ids: Any, keeps_special: bool = False) -> list[str]:
        """Return the text of each row of token ids, without special tokens unless they are kept."""
        if not len(token_ids):
            return []
        with exclusive(self.tokenizer):
            return self._view.batch_decode(token_ids, skip_special_tokens=not keeps_special)

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return the tokens of token ids, as written in the vocabulary of this side."""
        with exclusive(self.tokenizer):
            return self._view.convert_ids_to_tokens(list(token_ids))

    def texts_changed_by_tokens(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Return the texts that change when encoded and decoded, each with the decoded text.

        Differences in white space do not count.
        """
        pairs = zip(texts, self.decode(self.token_ids(texts)), strict=True)
        return [(text, back) for text, back in pairs if text.split() != back.split()]

    def vocabulary(self) -> dict[str, int]:
        """Return the vocabulary of this side: token to id."""
        return self._view.get_vocab()

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The tokens that are tags, such as ">>deu<<" (see `TAG` and `source_tags`), sorted."""
        return tuple(sorted({*filter(TAG.fullmatch, self.vocabulary()), *source_tags(self.tokenizer)}))

    def untagged(self, texts: Sequence[str]) -> list[str]:
        """Return the sources whose language the model cannot know.

        They begin with an unknown tag, or with none although the model was trained with a tag before every
        source and has no prefix; an empty text is none of them.
        """
        is_marian = hasattr(self.tokenizer, "supported_language_codes")
        is_tagged = is_marian or bool(source_tags(self.tokenizer))
        needs_tag = is_tagged and not source_prefix(self.tokenizer).startswith(self.tags)
        doubtful = (text for text in texts if (needs_tag and text.strip()) or TAG.match(text.lstrip()))
        # `tags` reads the whole vocabulary, so only doubtful texts ask for it.
        return [text for text in doubtful if self.tags and not text.startswith(self.tags)]

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """The ids of the tokens for single bytes (see `BYTE`)."""
        return frozenset(number for token, number in self.vocabulary().items() if BYTE.fullmatch(token))

    def unknown_id(self) -> int | None:
        """Return the id of the unknown token, or None.

        Also None if it is the end token, as in GPT-2's tokenizer.
        """
        unknown = self.tokenizer.unk_token_id
        return None if unknown == self.tokenizer.eos_token_id else unknown

    def special_ids(self) -> set[int]:
        """Return the ids of special tokens, except the unknown token, which represents text."""
        return set(self.tokenizer.all_special_ids) - {self.unknown_id()}

    def frame(self) -> Frame:
        """Return the special tokens that the tokenizer, with its present settings, adds to every text."""
        keeps_end = self.tokenizer.truncation_side == "left"
        for probe in _PROBES:
            (plain,), (whole,) = self.token_ids([probe], add_special_tokens=False), self.token_ids([probe])
            for start in range(len(whole) - len(plain) + 1) if plain else ():
                end = start + len(plain)
                if whole[start:end] == plain:
                    return Frame(tuple(whole[:start]), tuple(whole[end:]), keeps_end)
        return Frame((), tuple(self.token_ids([""])[0]), keeps_end)

    def ends_sequences(self) -> bool:
        """Return whether every text ends with the end-of-sequence token (FSMT's separator)."""
        return end_token_id(self.tokenizer) in self.frame().trailing

    def start_options(self) -> dict[str, int]:
        """Return options of `generate` that select the tokenizer's target language.

        Empty for tokenizers without languages. NLLB, M2M100 and mBART-50 begin a target with its language;
        mBART ends it with the language, which also begins the decoder's input.
        """
        if not marks_languages(self.tokenizer) or self.tokenizer.tgt_lang is None:
            return {}
        frame = TextCodec(self.tokenizer, "target").frame()
        if frame.leading:
            return {"forced_bos_token_id": frame.leading[0]}
        language = frame.trailing[-1]
        old_nllb = getattr(self.tokenizer, "legacy_behaviour", False)
        return {"forced_bos_token_id" if old_nllb else "decoder_start_token_id": language}


def text_options(tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """Return the options of a tokenizer's call for texts of a corpus or a user.

    With `plain_texts` in tokenizer_config.json, a special token written in a text is encoded as ordinary
    text. Texts with real special tokens, such as those from a chat template, are encoded without these
    options.
    """
    return {"split_special_tokens": True} if tokenizer.init_kwargs.get(PLAIN_TEXTS) else {}


def text_settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the settings, besides the tokenizer's own files, that token ids depend on: plain JSON values."""
    return {
        "prefix": source_prefix(tokenizer),
        **({"tags": tags} if (tags := source_tags(tokenizer)) else {}),  # replace a prefix
        "split": tokenizer.split_special_tokens,
        "texts": text_options(tokenizer),
    }


def check_same_tokens(
    tokenizers: Sequence[PreTrainedTokenizerBase],
    others: Sequence[PreTrainedTokenizerBase],
    whose: str,
    remedy: str,
) -> None:
    """Check that two models read and write the same tokens, with the same ids.

    Args:
        tokenizers: the source and the target tokenizer of one model.
        others: the source and the target tokenizer of the other model.
        whose: names both models in messages.
        remedy: what to do about different vocabularies, the end of the message.

    Raises:
        UserError: their source prefixes, special tokens or vocabularies differ.
    """
    _check_same_special_tokens(tokenizers, others, whose)
    sides: tuple[Side, Side] = ("source", "target")
    for side, one, other in zip(sides, tokenizers, others, strict=True):
        ids, of_other = TextCodec(one, side).vocabulary(), TextCodec(other, side).vocabulary()
        if ids != of_other:
            token = next(each for each in {**ids, **of_other} if ids.get(each) != of_other.get(each))
            raise UserError(
                f"{whose} have different {side} vocabularies, such as {token!r}: {ids.get(token)} and "
                f"{of_other.get(token)}; {remedy}"
            )


def _check_same_special_tokens(
    tokenizers: Sequence[PreTrainedTokenizerBase], others: Sequence[PreTrainedTokenizerBase], whose: str
) -> None:
    """Check that two models, which get the same texts, expect the same source prefix and special tokens."""
    prefixes = source_prefix(tokenizers[0]), source_prefix(others[0])
    if prefixes[0] != prefixes[1]:
        raise UserError(
            f"{whose} expect different prefixes of a source ({prefixes[0]!r} and {prefixes[1]!r}), but get "
            "the same sources; give models that were trained with the same source_prefix"
        )
    sides: tuple[Side, Side] = ("source", "target")
    for side, one, other in zip(sides, tokenizers, others, strict=True):
        if marks_languages(one):  # each call has the special tokens of its language
            continue
        if TextCodec(one, side).frame() != TextCodec(other, side).frame():
            raise UserError(f"{whose} add different special tokens to a text; give models that agree")


def begin_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that begins a sequence: `<s>`, or BERT's `[CLS]`; None without one."""
    return tokenizer.cls_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def first_token_ids(tokenizer: PreTrainedTokenizerBase, leading: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens in front of a chat that stay if it is cut on the left.

    They are those that the tokenizer adds (`leading`) or, if it adds none, the token that begins a sequence,
    which a chat template may write.
    """
    begin = begin_token_id(tokenizer)
    return leading or (() if begin is None else (begin,))


def end_token_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of the token that ends a sequence: `</s>`, or BERT's and FSMT's separator; else None."""
    return tokenizer.sep_token_id if tokenizer.eos_token_id is None else tokenizer.eos_token_id


def has_one_vocabulary(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> bool:
    """Return whether sources and targets have the same vocabulary."""
    return TextCodec(source, "source").vocabulary() == TextCodec(target, "target").vocabulary()


def marks_languages(tokenizer: Any) -> bool:
    """Return True if the tokenizer adds a language token to each text (NLLB, M2M100, mBART)."""
    names = ("src_lang", "tgt_lang", "set_tgt_lang_special_tokens")
    return all(hasattr(tokenizer, name) for name in names)


def source_prefix(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text that is put before each source; it is saved in tokenizer_config.json."""
    return tokenizer.init_kwargs.get(SOURCE_PREFIX, "")


def source_tags(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the tags if each source of the training began with one; saved in tokenizer_config.json."""
    return tuple(tokenizer.init_kwargs.get(SOURCE_TAGS, ()))


def with_source_tags(tokenizer: PreTrainedTokenizerBase, tags: Sequence[str]) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer that states these `source_tags`."""
    return _with_settings(tokenizer, {SOURCE_TAGS: list(tags)})


def for_languages(
    source: PreTrainedTokenizerBase,
    target: PreTrainedTokenizerBase,
    *,
    source_language: str | None = None,
    target_language: str | None = None,
    source_prefix: str | None = None,
) -> Tokenizers:
    """Return the tokenizers of a model for a pair of languages.

    Args:
        source: encodes sources; it is copied before it is changed.
        target: encodes and decodes targets. If it is the same object as `source`, the results are one object
            too.
        source_language: as the tokenizer names it ("en" for M2M100, "eng_Latn" for NLLB, "en_XX" for mBART);
            None leaves it as it is.
        target_language: likewise.
        source_prefix: text put before each source, such as T5's "translate English to German: ", or the
            language of a multilingual Marian model, ">>fra<< "; empty for none. None leaves it as it is.

    Raises:
        UserError: the tokenizer does not know the language or the prefix, or has no languages.
    """
    chosen = {"src_lang": source_language, "tgt_lang": target_language, SOURCE_PREFIX: source_prefix}
    if all(value is None for value in chosen.values()):
        return source, target
    if source_language is not None:
        _check_language(source, "source_language", source_language)
    if target_language is not None:
        _check_language(target, "target_language", target_language)
    if source_prefix:
        _check_prefix(source, source_prefix)
    given = {name: value for name, value in chosen.items() if value is not None}
    changed = {tokenizer: _with_settings(tokenizer, given) for tokenizer in dict.fromkeys((source, target))}
    return changed[source], changed[target]


def _with_settings(tokenizer: PreTrainedTokenizerBase, settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    """Return a copy of a tokenizer with other settings, which are saved with it."""
    other = copy.deepcopy(tokenizer)
    other.init_kwargs.update(settings)
    for name, value in settings.items():
        setattr(other, name, value)
    return other


def _check_language(tokenizer: Any, option: str, language: str) -> None:
    """Raise a UserError unless the tokenizer can mark a text with this language."""
    if not marks_languages(tokenizer):
        raise UserError(
            f"{option}={language}: the tokenizer {_name(tokenizer)} does not mark languages; leave it out, "
            "or give what the model was trained to read before a text, such as '>>fra<< ', as source_prefix"
        )
    if language in (known := languages_of(tokenizer)):
        return
    nearest = difflib.get_close_matches(language, known, n=3, cutoff=0.4) or known[:3]
    raise UserError(
        f"{option}={language}: the tokenizer {_name(tokenizer)} has no such language; it names them as in "
        f"{', '.join(nearest)}"
    )


def _check_prefix(tokenizer: Any, prefix: str) -> None:
    """Raise a UserError for a prefix with another tag or other tokens than the tokenizer has.

    Marian reads ">>de<< " as an unknown token if its vocabulary has ">>deu<<"; vaswani's own tokenizers
    split a tag that they were not trained with.
    """
    codec = TextCodec(tokenizer, "source")
    (ids,) = codec.token_ids([prefix], adds_prefix=False)
    tags, tag = codec.tags, TAG.match(prefix)
    is_known = tag is None or not tags or tag.group() in tags
    if source_tags(tokenizer):
        is_known = prefix.startswith(tags)
    if is_known and codec.unknown_id() not in ids:
        return
    nearest = difflib.get_close_matches(prefix.strip(), tags, n=3, cutoff=0.4) or tags[:3]
    known = f"it has tags such as {', '.join(nearest)}" if tags else "it has no tags such as >>de<<"
    part = "a part of it" if is_known else "a tag that it begins with"
    raise UserError(
        f"source_prefix={prefix!r}: the tokenizer {_name(tokenizer)} has no token for {part}; {known}"
    )


def languages_of(tokenizer: Any) -> list[str]:
    """Return the languages for which a tokenizer with `src_lang` and `tgt_lang` has tokens."""
    by_code = getattr(tokenizer, "lang_code_to_token", None)  # M2M100's
    if by_code is not None:
        return [code for code, token in by_code.items() if token in tokenizer.get_vocab()]
    special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    framing = {tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token}
    framing |= {tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token}
    return sorted(special - framing)


def _check_target_language(tokenizer: Any) -> None:
    """Raise a UserError if the tokenizer adds a language to each target but has no token for it."""
    if not marks_languages(tokenizer):
        return
    known = getattr(tokenizer, "lang_code_to_token", None)  # M2M100's
    language = tokenizer.tgt_lang if known is None else known.get(tokenizer.tgt_lang)
    if language is None or tokenizer.convert_tokens_to_ids(language) == tokenizer.unk_token_id:
        raise UserError(
            f"the tokenizer {_name(tokenizer)} adds its language to each target, and "
            f'"tgt_lang" in its tokenizer_config.json is {tokenizer.tgt_lang!r}; give '
            f"target_language, or set a known one (sources are in {tokenizer.src_lang!r})"
        )


def _one_sided(tokenizer: PreTrainedTokenizerBase, side: Side) -> Any:
    """Return the tokenizer or, if it has two vocabularies (MarianMT, FSMT), a view of one side.

    The library encodes FSMT's targets with the source vocabulary and decodes everything with the target
    vocabulary. The view uses the vocabulary, sentencepiece model and language of its side.
    """
    if not hasattr(tokenizer, "get_tgt_vocab"):
        return tokenizer
    state = vars(tokenizer).copy()
    target = state.get("target_encoder") or {token: number for number, token in state["decoder"].items()}
    vocabulary = target if side == "target" else state["encoder"]
    state["encoder"] = state["current_encoder"] = state["target_encoder"] = vocabulary
    state["decoder"] = {number: token for token, number in vocabulary.items()}
    if "spm_source" in state:
        model = state[f"spm_{side}"]
        state["spm_source"] = state["spm_target"] = state["current_spm"] = model
    if "tgt_lang" in state:  # FSMT chooses its Moses rules by it
        state["src_lang"] = state["tgt_lang"] = state["tgt_lang" if side == "target" else "src_lang"]
    view = object.__new__(type(tokenizer))
    view.__dict__ = state
    return view


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


@contextmanager
def exclusive(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Let only one thread at a time use a tokenizer.

    Raises:
        UserError: the tokenizer's Rust code panics.
    """
    with _locks_lock:
        lock = _locks.setdefault(tokenizer, threading.RLock())
    with lock, panics_as_user_errors(_name(tokenizer)):
        yield


@contextmanager
def panics_as_user_errors(name: str) -> Iterator[None]:
    """Raise a UserError that names the tokenizer when its Rust code panics.

    A `PanicException` is a `BaseException`, and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            f"the tokenizer {name} fails ({one_line(error)}); its files are damaged or do not belong "
            "together: download or copy them again"
        ) from error
