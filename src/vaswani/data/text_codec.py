"""How the texts of one side of a model become tokens, and tokens become texts again.

A tokenizer of the library stores the settings of its last call: truncation, padding, and whether it reads
sources or targets. Two threads that call it at the same time mix these up. A `TextCodec` lets one thread at a
time use a tokenizer, and never lets it truncate: `Frame.cut` shortens the tokens afterwards.
"""

from __future__ import annotations

import os
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

_PROBES = ("a", "1", ".", "я", "中")  # most tokenizers have tokens for at least one of these texts
_locks: WeakKeyDictionary[PreTrainedTokenizerBase, threading.RLock] = WeakKeyDictionary()
_locks_lock = threading.Lock()


def _forget_locks() -> None:
    """A forked process has none of the threads that may have held a lock."""
    global _locks_lock
    _locks_lock = threading.Lock()
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)


@dataclass(frozen=True)
class Frame:
    """The special tokens that a tokenizer puts around every text.

    Args:
        leading: those in front of it.
        trailing: those behind it; some tokenizers add a language behind the end token.
        keeps_end: whether a long text loses its beginning (`truncation_side="left"`).
    """

    leading: tuple[int, ...]
    trailing: tuple[int, ...]
    keeps_end: bool = False

    def __len__(self) -> int:
        return len(self.leading) + len(self.trailing)

    def cut(self, row: Sequence[Any], most: int) -> list[Any]:
        """Shorten a text's tokens, or what stands beside each of them, to `most`; special tokens stay."""
        surplus = len(row) - most
        if surplus <= 0:
            return list(row)
        start = len(self.leading) if self.keeps_end else most - len(self.trailing)
        return [*row[:start], *row[start + surplus :]]

    def check_room(self, **limits: int | None) -> None:
        """Raise a UserError for a limit on tokens that leaves nothing of a text beside the special tokens."""
        for name, most in limits.items():
            if most is not None and most <= len(self):
                raise UserError(
                    f"{name}={most} leaves nothing of a text beside the {len(self)} special tokens that its "
                    f"tokenizer adds; give {len(self) + 1} or more"
                )


class TextCodec:
    """Encodes and decodes the sources, or the targets, of a model; safe in any number of threads.

    Sources are encoded as `tokenizer(texts)` does it, targets as `tokenizer(text_target=texts)`. Both are
    encoded and decoded with the vocabulary of their side, where a tokenizer has two.

    Args:
        tokenizer: adds the special tokens that the model was trained with. It may serve several codecs.
        side: which texts these are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, side: Side = "source"):
        self.tokenizer = tokenizer
        self.side = side

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (
            self.tokenizer,
            self.side,
        )  # sentencepiece models are not pickled: view them again

    @cached_property
    def _view(self) -> Any:
        return _one_sided(self.tokenizer, self.side)

    def encode(self, *texts: Sequence[Any], **options: Any) -> BatchEncoding:
        """What the tokenizer makes of texts, whole and without padding.

        Args:
            texts: a list of texts, or two for pairs.
            options: as for the tokenizer's own call.

        Raises:
            UserError: the tokenizer fails on one of them, or does not know the language of the targets.
        """
        names = ("text", "text_pair") if self.side == "source" else ("text_target", "text_pair_target")
        given: dict[str, Any] = dict(zip(names, texts, strict=False))
        if self.side == "target":
            _check_target_language(self.tokenizer)
        with exclusive(self.tokenizer):
            return self._view(**given, truncation=False, padding=False, verbose=False, **options)

    def token_ids(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        """The token ids of each text, with special tokens."""
        if not texts:
            return []
        options = {"return_attention_mask": False, "return_token_type_ids": False, **options}
        return self.encode(list(texts), **options)["input_ids"]

    def decode(self, token_ids: Any) -> list[str]:
        """The text of each row of token ids, without special tokens."""
        with exclusive(self.tokenizer):
            return self._view.batch_decode(token_ids, skip_special_tokens=True)

    def lost_in_tokens(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Those texts that do not come back from their tokens, each with what comes back.

        Any amount of white space counts as one space.
        """
        pairs = zip(texts, self.decode(self.token_ids(texts)), strict=True)
        return [(text, back) for text, back in pairs if text.split() != back.split()]

    def vocabulary(self) -> dict[str, int]:
        """The id of each token of this side."""
        return self._view.get_vocab()

    def unknown_id(self) -> int | None:
        """The id that stands for unknown text; GPT-2's tokenizer names its end token, and has none."""
        unknown = self.tokenizer.unk_token_id
        return None if unknown == self.tokenizer.eos_token_id else unknown

    def special_ids(self) -> set[int]:
        """The ids of tokens that stand for no text, not even for an unknown one."""
        return set(self.tokenizer.all_special_ids) - {self.unknown_id()}

    def frame(self) -> Frame:
        """The special tokens that stand around every text, as the tokenizer is set at present."""
        keeps_end = self.tokenizer.truncation_side == "left"
        for probe in _PROBES:
            (plain,), (whole,) = self.token_ids([probe], add_special_tokens=False), self.token_ids([probe])
            for start in range(len(whole) - len(plain) + 1) if plain else ():
                end = start + len(plain)
                if whole[start:end] == plain:
                    return Frame(tuple(whole[:start]), tuple(whole[end:]), keeps_end)
        return Frame((), tuple(self.token_ids([""])[0]), keeps_end)

    def ends_sequences(self) -> bool:
        """Whether the end-of-sequence token stands behind every text (FSMT calls it its separator)."""
        end = self.tokenizer.eos_token_id
        return (self.tokenizer.sep_token_id if end is None else end) in self.frame().trailing

    def start_options(self) -> dict[str, int]:
        """Options of `generate` by which a multilingual model writes in the tokenizer's target language.

        Empty for tokenizers that have none. NLLB, M2M100 and mBART-50 begin a target with its language; mBART
        ends it so, and begins the decoder's input with it.
        """
        if not marks_languages(self.tokenizer) or self.tokenizer.tgt_lang is None:
            return {}
        frame = TextCodec(self.tokenizer, "target").frame()
        if frame.leading:
            return {"forced_bos_token_id": frame.leading[0]}
        language = frame.trailing[-1]
        old_nllb = getattr(self.tokenizer, "legacy_behaviour", False)
        return {"forced_bos_token_id" if old_nllb else "decoder_start_token_id": language}


def has_one_vocabulary(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> bool:
    """Whether a token id means the same in sources and in targets."""
    return TextCodec(source, "source").vocabulary() == TextCodec(target, "target").vocabulary()


def marks_languages(tokenizer: Any) -> bool:
    """Whether the tokenizer adds a language to each text, as NLLB's, M2M100's and mBART's do."""
    return hasattr(tokenizer, "_switch_to_target_mode") and hasattr(tokenizer, "tgt_lang")


def _check_target_language(tokenizer: Any) -> None:
    """Raise a UserError if the tokenizer adds a language to each target and was told none that it knows."""
    if not marks_languages(tokenizer):
        return
    known = getattr(tokenizer, "lang_code_to_token", None)  # M2M100's
    language = tokenizer.tgt_lang if known is None else known.get(tokenizer.tgt_lang)
    if language is None or tokenizer.convert_tokens_to_ids(language) == tokenizer.unk_token_id:
        raise UserError(
            f"the tokenizer {_name(tokenizer)} adds its language to each target, and "
            f'"tgt_lang" in its tokenizer_config.json is {tokenizer.tgt_lang!r}; set one that it knows '
            f"(sources are in {tokenizer.src_lang!r})"
        )


def _one_sided(tokenizer: PreTrainedTokenizerBase, side: Side) -> Any:
    """The tokenizer itself or, if it has two vocabularies (MarianMT, FSMT), a view of it with one of them.

    The library encodes FSMT's targets with the source vocabulary, and decodes all with the target's. The view
    encodes and decodes with the vocabulary, the sentencepiece model and the language of its side.
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
    if "tgt_lang" in state:  # FSMT's, for Moses' rules
        state["src_lang"] = state["tgt_lang"] = state["tgt_lang" if side == "target" else "src_lang"]
    view = object.__new__(type(tokenizer))
    view.__dict__ = state
    return view


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)


@contextmanager
def exclusive(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Let one thread at a time use a tokenizer.

    Raises:
        UserError: the tokenizer's Rust code panics.
    """
    with _locks_lock:
        lock = _locks.setdefault(tokenizer, threading.RLock())
    with lock, told_panics(_name(tokenizer)):
        yield


@contextmanager
def told_panics(name: str) -> Iterator[None]:
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
            "together: get them again from where they came from"
        ) from error
