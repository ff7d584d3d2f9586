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
from typing import Any, Literal
from weakref import WeakKeyDictionary

from transformers import BatchEncoding, PreTrainedTokenizerBase

from vaswani.errors import UserError, one_line

Side = Literal["source", "target"]

_PROBES = (
    "a",
    "1",
    ".",
    "я",
    "中",
)  # texts of which a tokenizer makes at least one token, one of them at least
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

    Sources are encoded as `tokenizer(texts)` does it, targets as `tokenizer(text_target=texts)`.

    Args:
        tokenizer: adds the special tokens that the model was trained with. It may serve several codecs.
        side: which texts these are.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, side: Side = "source"):
        self.tokenizer = tokenizer
        self.side = side

    def encode(self, *texts: Sequence[Any], **options: Any) -> BatchEncoding:
        """What the tokenizer makes of texts, whole and without padding.

        Args:
            texts: a list of texts, or two for pairs.
            options: as for the tokenizer's own call.

        Raises:
            UserError: the tokenizer fails on one of them.
        """
        names = ("text", "text_pair") if self.side == "source" else ("text_target", "text_pair_target")
        given: dict[str, Any] = dict(zip(names, texts, strict=False))
        with exclusive(self.tokenizer):
            one_sided = _one_sided(self.tokenizer, self.side)
            return one_sided(**given, truncation=False, padding=False, verbose=False, **options)

    def token_ids(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        """The token ids of each text, with special tokens."""
        if not texts:
            return []
        options = {"return_attention_mask": False, "return_token_type_ids": False, **options}
        return self.encode(list(texts), **options)["input_ids"]

    def decode(self, token_ids: Any) -> list[str]:
        """The text of each row of token ids, without special tokens."""
        with exclusive(self.tokenizer):
            return _one_sided(self.tokenizer, self.side).batch_decode(token_ids, skip_special_tokens=True)

    def vocabulary(self) -> dict[str, int]:
        """The id of each token of this side."""
        return _one_sided(self.tokenizer, self.side).get_vocab()

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


def has_one_vocabulary(source: PreTrainedTokenizerBase, target: PreTrainedTokenizerBase) -> bool:
    """Whether a token id means the same in sources and in targets."""
    return TextCodec(source, "source").vocabulary() == TextCodec(target, "target").vocabulary()


def _one_sided(tokenizer: PreTrainedTokenizerBase, side: Side) -> Any:
    """The tokenizer itself or, if it has two vocabularies (MarianMT, FSMT), a view of it with one of them.

    The library's own code encodes FSMT's targets with the source vocabulary and decodes with the target's
    alone. The view encodes and decodes with the vocabulary, the sentencepiece model and the language of its
    side.
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
    if "langs" in state.get("init_kwargs", {}):
        state["src_lang"] = state["tgt_lang"] = state["tgt_lang" if side == "target" else "src_lang"]
    view = object.__new__(type(tokenizer))
    view.__dict__ = state
    return view


@contextmanager
def exclusive(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Let one thread at a time use a tokenizer.

    Raises:
        UserError: the tokenizer's Rust code panics.
    """
    with _locks_lock:
        lock = _locks.setdefault(tokenizer, threading.RLock())
    with lock, told_panics(str(tokenizer.name_or_path or type(tokenizer).__name__)):
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
