"""Tokenize parallel corpora: rows of text become rows of token ids, within limits on their lengths."""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from vaswani.data import text_codec
from vaswani.data.caching import map_to_file, tokenizer_key
from vaswani.data.columns import Integers, integer_column
from vaswani.data.evenly_spread import limit_rows
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import Frame, Side, TextCodec
from vaswani.errors import UserError

logger = logging.getLogger(__name__)

ROWS_TO_COUNT = 10_000  # to estimate the share of unknown tokens
TOKEN_FEATURES = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "source_length": Value("int32"),
        "target_length": Value("int32"),
    }
)


class NoRowFitsError(UserError):
    """All rows are empty or beyond the length limits."""


def tokenize_corpus(
    dataset: Dataset | datasets.IterableDataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    report: RowReport | None = None,
    truncated: Collection[str] = (),
    *,
    is_evaluation: bool = False,
) -> Dataset | datasets.IterableDataset:
    """Tokenize a corpus; leave out and count rows that are too long or have no tokens.

    The result is kept in the cache of `datasets` under a key of the rows and the tokenizers. With a tokenizer
    that has no key (BPE-dropout or a slow one, see `tokenizer_key`), every call tokenizes again, into a
    temporary file that is deleted with the result.

    Args:
        dataset: text columns `source` and `target`. The rows of a stream are tokenized as they are read.
        source_tokenizer: must add its end-of-sequence token.
        target_tokenizer: likewise; may be the same object. It encodes targets as `text_target`.
        max_source_length: maximum tokens of a source, including the end-of-sequence token; None for no limit.
        max_target_length: likewise for the target.
        report: receives the counts; use each report for one call.
        truncated: sides (`"source"`, `"target"` or both) whose over-long texts are truncated instead of left
            out; their special tokens are kept.
        is_evaluation: keep the column `target` for scores, because a tokenizer may lose parts of a text, and
            `direction`. Of a truncated target, keep the first tokens: no end token, which would count as
            right where the text goes on.

    Returns:
        Columns `input_ids` and `labels` (lists of int32, with special tokens), `source_length` and
        `target_length` (int32), and those that are kept.

    Raises:
        UserError: a column is missing, a tokenizer does not end sequences or does not know the language of
            the targets, a limit has no room for text, or no row is left.
    """
    columns = dataset.column_names or []
    if missing := {"source", "target"}.difference(columns):
        raise UserError(f"the rows to tokenize have no column {sorted(missing)}; they have {columns}")
    kept = {name: Value("string") for name in ("target", "direction") if is_evaluation and name in columns}
    encoding = _Encoding(
        check_encodes(source_tokenizer, "source", max_source_length),
        check_encodes(target_tokenizer, "target", max_target_length),
        Features({**TOKEN_FEATURES, **kept}),
    )
    limits = _LengthLimits(
        frames=(encoding.sources.frame(), encoding.targets.frame()),
        longest=(max_source_length, max_target_length),
        truncated=("source" in truncated, "target" in truncated),
        ends_targets=not is_evaluation,
    )
    report = report if report is not None else RowReport()
    if isinstance(dataset, Dataset):
        return _tokenize_whole(dataset, encoding, limits, report)
    return dataset.map(
        partial(_encode_fit, limits, report),
        batched=True,
        remove_columns=columns,
        features=encoding.features,
        fn_kwargs={"encoding": encoding},
    )


def token_lengths(dataset: Dataset) -> tuple[Integers, Integers]:
    """Return the columns `source_length` and `target_length` of a tokenized data set: int32 arrays [N]."""
    return integer_column(dataset, "source_length"), integer_column(dataset, "target_length")


def unknown_share(dataset: Dataset, column: str, codec: TextCodec) -> float | None:
    """Return the share of unknown tokens in a column of a tokenized data set.

    Args:
        dataset: tokenized.
        column: `input_ids` or `labels`.
        codec: the codec of that side.

    Returns:
        A number from 0 to 1, measured on at most 10,000 evenly spread rows; None if the tokenizer has no
        unknown token.
    """
    unknown = codec.unknown_id()
    if unknown is None:
        return None
    rows = limit_rows(dataset, ROWS_TO_COUNT)
    token_ids = np.fromiter(itertools.chain.from_iterable(rows[column][:]), dtype=np.int64)
    return float((token_ids == unknown).mean())


@dataclass(frozen=True)
class _LengthLimits:
    """Limits on lengths; each pair is (source, target).

    Args:
        frames: the special tokens around each text.
        longest: the maximum length, or None.
        truncated: whether longer texts are truncated instead of left out.
        ends_targets: whether truncated targets keep their special tokens; otherwise their first tokens.
    """

    frames: tuple[Frame, Frame]
    longest: tuple[int | None, int | None]
    truncated: tuple[bool, bool] = (False, False)
    ends_targets: bool = True

    def truncate(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Truncate the token ids of rows and update their lengths."""
        rows = dict(rows)  # a copy, as `map` removes columns from its batch
        names = (("input_ids", "source_length"), ("labels", "target_length"))
        parts = zip(names, self.frames, self.longest, self.truncated, strict=True)
        for (ids, length), frame, most, cuts in parts:
            if cuts and most is not None:
                whole = ids == "input_ids" or self.ends_targets
                rows[ids] = [frame.cut(row, most) if whole else row[:most] for row in rows[ids]]
                rows[length] = [len(row) for row in rows[ids]]
        return rows

    def too_long(self, source: Integers, target: Integers, truncated: bool) -> npt.NDArray[np.bool_]:
        """Return which rows [N] are too long on a truncated side or, if not `truncated`, on another side."""
        is_long = np.zeros(len(source), dtype=bool)
        for lengths, most, cuts in zip((source, target), self.longest, self.truncated, strict=True):
            if most is not None and cuts == truncated:
                is_long |= lengths > most
        return is_long

    def fitting(self, source: Integers, target: Integers, report: RowReport) -> Integers:
        """Return indices of the rows [N] that are neither empty nor over-long; report the others."""
        empty = (source == 0) | (target == 0)
        over_long = self.too_long(source, target, truncated=False)
        report.leave_out("empty", int(empty.sum()))
        report.leave_out("over_long", int((over_long & ~empty).sum()))
        fits = ~(empty | over_long)
        report.truncated += int((self.too_long(source, target, truncated=True) & fits).sum())
        return np.flatnonzero(fits)

    def __str__(self) -> str:
        source, target = ("any number of" if most is None else f"at most {most:,}" for most in self.longest)
        return f"{source} tokens of a source and {target} tokens of a target"


def check_encodes(tokenizer: PreTrainedTokenizerBase, side: Side, max_length: int | None) -> TextCodec:
    """Return the codec of one side for training.

    Args:
        tokenizer: the tokenizer of that side.
        side: `"source"` or `"target"`.
        max_length: maximum tokens of a text; None for no limit.

    Raises:
        UserError: the tokenizer does not end sequences or does not know the language of the targets, or the
            limit has no room for text.
    """
    codec = TextCodec(tokenizer, side)
    if not codec.ends_sequences():
        raise UserError(
            f"the tokenizer does not end a sequence with its end-of-sequence token {tokenizer.eos_token!r}; "
            "its post-processor must add it"
        )
    codec.frame().check_room(**{f"max_{side}_length": max_length})
    return codec


@dataclass(frozen=True)
class _Encoding:
    """The codecs that turn texts into columns.

    Args:
        sources, targets: the codec of each side.
        features: the columns of the result; input columns among them are kept.
    """

    sources: TextCodec
    targets: TextCodec
    features: Features

    @property
    def keys(self) -> list[str | None]:
        """The keys of both tokenizers; None for a tokenizer without a key (see `tokenizer_key`)."""
        tokenizers = (self.sources.tokenizer, self.targets.tokenizer)
        return [tokenizer_key(each, __file__, text_codec.__file__) for each in tokenizers]


def _encode(rows: dict[str, list[str]], encoding: _Encoding) -> dict[str, list[Any]]:
    """Tokenize rows into columns; a text with only special tokens counts as empty."""
    input_ids = _text_ids(encoding.sources, rows["source"])
    labels = _text_ids(encoding.targets, rows["target"])
    return {
        "input_ids": input_ids,
        "labels": labels,
        "source_length": [len(ids) for ids in input_ids],
        "target_length": [len(ids) for ids in labels],
        **{name: rows[name] for name in encoding.features.keys() & rows.keys()},
    }


def _text_ids(codec: TextCodec, texts: list[str]) -> list[list[int]]:
    special = codec.special_ids()
    return [ids if not special.issuperset(ids) else [] for ids in codec.token_ids(texts)]


def _encode_fit(
    limits: _LengthLimits,
    report: RowReport,
    rows: dict[str, list[str]],
    encoding: _Encoding,
) -> dict[str, list[Any]]:
    """Tokenize rows of a stream and leave out those that do not fit."""
    tokens = _encode(rows, encoding)
    source, target = (np.asarray(tokens[name]) for name in ("source_length", "target_length"))
    fit = limits.fitting(source, target, report)
    return limits.truncate({name: [column[i] for i in fit] for name, column in tokens.items()})


def _tokenize_whole(
    dataset: Dataset, encoding: _Encoding, limits: _LengthLimits, report: RowReport
) -> Dataset:
    if all(keys := encoding.keys):
        parts = [dataset._fingerprint, *map(str, keys), *map(str, limits.frames), *encoding.features]
        key = hashlib.sha256("".join(parts).encode()).hexdigest()
        return _tokenize_to_file(dataset, encoding, limits, report, key)
    scratch = Path(tempfile.mkdtemp(prefix="vaswani-tokens-"))
    tokens = _tokenize_to_file(dataset, encoding, limits, report, secrets.token_hex(16), scratch)
    weakref.finalize(tokens, shutil.rmtree, scratch, ignore_errors=True)
    return tokens


def _tokenize_to_file(
    dataset: Dataset,
    encoding: _Encoding,
    limits: _LengthLimits,
    report: RowReport,
    key: str,
    folder: Path | None = None,
) -> Dataset:
    """Return the rows that fit; `folder` replaces the cache with a folder of this process alone."""
    options: dict[str, Any] = {"fn_kwargs": {"encoding": encoding}, "desc": "Tokenizing"}
    tokens = map_to_file(dataset, _encode, encoding.features, key, folder, **options)
    source, target = token_lengths(tokens)
    fit = limits.fitting(source, target, report)
    if not fit.size:
        raise NoRowFitsError(
            f"none of {len(tokens):,} rows fits within {limits}; raise max_source_length and "
            "max_target_length, or give shorter texts"
        )
    if 2 * fit.size < len(tokens):
        logger.warning("Only %d of %d rows fit within %s.", fit.size, len(tokens), limits)
    is_cut = limits.too_long(source, target, truncated=True)[fit].any()
    tokens = tokens if fit.size == len(tokens) else tokens.select(fit)
    if not is_cut:
        return tokens
    key = hashlib.sha256(f"{key} {limits!r}".encode()).hexdigest()
    return map_to_file(tokens, limits.truncate, encoding.features, key, folder, desc="Truncating")
