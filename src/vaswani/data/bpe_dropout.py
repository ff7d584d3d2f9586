"""BPE-dropout (Provilkov et al., 2020, arXiv:1910.13267): each epoch splits words into other tokens.

The token ids of a row are split into base symbols and merged again. Training therefore needs neither the
texts nor the tokenizers library, whose random generator takes no seed. All rows of an epoch are split before
its batches are planned, because the plan depends on the new lengths.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import models
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from vaswani.data.columns import Integers
from vaswani.data.sentencepiece_models import SPACE
from vaswani.data.text_codec import Side, TextCodec
from vaswani.errors import UserError

logger = logging.getLogger(__name__)

ROWS_AT_A_TIME = 20_000

Words = npt.NDArray[np.bool_]


def check_bpe_dropout(tokenizer: PreTrainedTokenizerBase, p: float) -> dict[str, Any]:
    """Return the `model` of a tokenizer's `tokenizer.json`, with its vocabulary and merges.

    Raises:
        UserError: `p` is not a probability, or the tokenizer is not a fast BPE tokenizer with merges.
    """
    if not 0 <= p <= 1:
        raise UserError(f"bpe_dropout={p} is not a probability; give a number from 0 to 1 (0.1 is usual)")
    kind = tokenizer.backend_tokenizer.model if tokenizer.is_fast else tokenizer
    if not isinstance(kind, models.BPE):
        raise UserError(
            f"BPE-dropout needs a BPE tokenizer and this one is {type(kind).__name__}; leave it at 0"
        )
    model: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    if not model["merges"]:
        raise UserError(
            f"bpe_dropout={p} skips merges, and this tokenizer has none, like a byte tokenizer; leave it at 0"
        )
    return model


class BpeDropout:
    """Splits token sequences at random: at each step, each possible merge is skipped with probability `p`.

    Args:
        tokenizer: a fast BPE tokenizer.
        p: probability of skipping a merge. 0 gives the split of the tokenizer, 1 gives base symbols.
        side: side of the sequences.

    Raises:
        UserError: see `check_bpe_dropout`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, p: float, side: Side = "source"):
        model = check_bpe_dropout(tokenizer, p)
        self.p = p
        self.num_kept = 0
        self.codec = TextCodec(tokenizer, side)
        self._read_merges(model["vocab"], model["merges"], model.get("continuing_subword_prefix") or "")

    def _read_merges(
        self, vocabulary: Mapping[str, int], merges: Sequence[str | Sequence[str]], prefix: str
    ) -> None:
        """Store the merges, sorted by pair, and the base symbols of each token."""
        size = 1 + max([*vocabulary.values(), len(self.codec.tokenizer) - 1])
        pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
        ids = np.array(
            [[vocabulary[a], vocabulary[b], vocabulary[a + b.removeprefix(prefix)]] for a, b in pairs],
            dtype=np.int64,
        ).reshape(-1, 3)
        symbols = _base_symbols(size, ids.tolist())
        keys = ids[:, 0] * size + ids[:, 1]
        order = np.argsort(keys, kind="stable")
        self._size = size
        self._keys, self._ranks = keys[order], order
        self._merged = ids[:, 2]
        self._no_merge = len(ids)  # a rank beyond all others
        self._num_symbols = np.array([len(each) for each in symbols])
        self._symbols = np.concatenate(symbols)
        self._first_symbol = np.cumsum(self._num_symbols) - self._num_symbols
        # SentencePiece marks the beginning of a word, and its tokenizers do not split texts into words.
        crosses_words = any(right.startswith(SPACE) and left.strip(SPACE) for left, right in pairs)
        marked = [token for piece, token in vocabulary.items() if piece.startswith(SPACE)]
        self._begins_word = np.zeros(size, dtype=bool)
        self._begins_word[marked] = not crosses_words

    def word_starts(self, rows: Sequence[Sequence[int]]) -> list[Words]:
        """Return True for the tokens of each row that begin a word; merges do not cross words.

        If decoding and encoding a row does not reproduce it, as with an unknown token, each of its tokens
        counts as a word and stays whole. `num_kept` counts such rows.
        """
        encoded = self.codec.encode(self.codec.decode(rows), adds_prefix=False)
        starts = []
        for i, (row, again) in enumerate(zip(rows, encoded["input_ids"], strict=True)):
            if list(row) == again:
                words = np.array(
                    [-1 - j if word is None else word for j, word in enumerate(encoded.word_ids(i))]
                )
                begins = self._begins_word[np.asarray(row, dtype=np.int64)]
                starts.append(begins | (np.diff(words, prepend=words[:1] - 1) != 0))
            else:
                starts.append(np.ones(len(row), dtype=bool))
                self.num_kept += 1
        return starts

    def split(
        self, rows: Sequence[Sequence[int]], starts: Sequence[Words], generator: np.random.Generator
    ) -> list[Integers]:
        """Return new random splits of rows.

        Args:
            rows: token ids.
            starts: the result of `word_starts`.
            generator: draws the merges to skip.

        Returns:
            The new token ids of each row, for the same text.
        """
        tokens = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
        word = np.cumsum(np.concatenate(starts)) - 1
        counts = self._num_symbols[tokens]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        symbols = self._symbols[np.repeat(self._first_symbol[tokens], counts) + within]
        tokens, words = self._merge(symbols, np.repeat(word, counts), generator)
        words_of_rows = np.cumsum([int(start.sum()) for start in starts])
        ends = np.searchsorted(words, words_of_rows)
        return np.split(tokens, ends[:-1])

    def _merge(
        self, symbols: Integers, word: Integers, generator: np.random.Generator
    ) -> tuple[Integers, Integers]:
        """Merge the pair of lowest rank that is not skipped in each word, until no word has such a pair.

        Each step merges one pair in every word. Each step draws anew which merges are skipped, as in
        algorithm 1 of the paper.

        Args:
            symbols: base symbols of all words.
            word: index of each symbol's word, ascending.

        Returns:
            The tokens of all words, and the index of each token's word.
        """
        done: list[tuple[Integers, Integers]] = []
        ranks = self._ranks_of(symbols, word, np.arange(len(symbols)))
        while len(symbols):
            drawn = np.where(generator.random(len(ranks)) < self.p, self._no_merge, ranks)
            first = np.flatnonzero(np.diff(word, prepend=-1))
            best = np.minimum.reduceat(drawn, first)
            lengths = np.diff(np.append(first, len(word)))
            goes_on = np.repeat(best < self._no_merge, lengths)
            done.append((symbols[~goes_on], word[~goes_on]))
            hits = np.flatnonzero(goes_on & (drawn == np.repeat(best, lengths)))
            hits = hits[np.diff(word[hits], prepend=-1) != 0]  # the leftmost of each word
            symbols[hits] = self._merged[drawn[hits]]
            goes_on[hits + 1] = False
            places = np.cumsum(goes_on)[hits] - 1
            symbols, word, ranks = symbols[goes_on], word[goes_on], ranks[goes_on]
            changed = np.concatenate([places, np.maximum(places - 1, 0)])
            ranks[changed] = self._ranks_of(symbols, word, changed)
        tokens, words = (np.concatenate(parts) for parts in zip(*done, strict=True))
        order = np.argsort(words, kind="stable")
        return tokens[order], words[order]

    def _ranks_of(self, symbols: Integers, word: Integers, places: Integers) -> Integers:
        """Return the ranks of the pairs that begin at `places`; `_no_merge` for pairs without a merge."""
        ranks = np.full(len(places), self._no_merge)
        if not len(self._keys):
            return ranks
        pairs = places < len(symbols) - 1
        at = places[pairs]
        keys = symbols[at] * self._size + symbols[at + 1]
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        exists = (self._keys[found] == keys) & (word[at] == word[at + 1])
        ranks[pairs] = np.where(exists, self._ranks[found], self._no_merge)
        return ranks


def _base_symbols(size: int, merges: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the symbols of each token that no merge forms, from merges of ids (left, right, merged).

    A token may have several merges, listed before those of their parts, as in SentencePiece's vocabularies.
    """
    parts: dict[int, tuple[int, int]] = {}
    for left, right, merged in merges:
        parts.setdefault(merged, (left, right))

    @cache
    def symbols(token: int) -> list[int]:
        return [symbol for part in parts[token] for symbol in symbols(part)] if token in parts else [token]

    return [symbols(token) for token in range(size)]


@dataclass(frozen=True)
class PairSplitter:
    """Applies BPE-dropout to both sides of rows.

    A row whose new split would exceed a limit keeps its old split.

    Args:
        source, target: BPE-dropout of each side.
        max_source_length, max_target_length: maximum number of tokens of each side.
        max_tokens: maximum number of tokens of both sides together, the budget of a batch.
    """

    source: BpeDropout
    target: BpeDropout
    max_source_length: int
    max_target_length: int
    max_tokens: int

    def word_starts(self, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Words]]:
        """Return `BpeDropout.word_starts` for `input_ids` and `labels`."""
        return {
            "input_ids": self.source.word_starts(rows["input_ids"]),
            "labels": self.target.word_starts(rows["labels"]),
        }

    def split(
        self,
        rows: Mapping[str, Sequence[Any]],
        starts: Mapping[str, Sequence[Words]],
        generator: np.random.Generator,
    ) -> dict[str, list[Any]]:
        """Return new `input_ids` and `labels` of rows, from these columns and their `word_starts`."""
        sources = self.source.split(rows["input_ids"], starts["input_ids"], generator)
        targets = self.target.split(rows["labels"], starts["labels"], generator)
        fits = [
            len(source) <= self.max_source_length
            and len(target) <= self.max_target_length
            and len(source) + len(target) <= self.max_tokens
            for source, target in zip(sources, targets, strict=True)
        ]
        return {
            name: [new if fit else old for new, old, fit in zip(column, rows[name], fits, strict=True)]
            for name, column in (("input_ids", sources), ("labels", targets))
        }

    def report_kept(self, num_rows: int) -> None:
        """Log how many of the rows so far stay whole, which would otherwise be unnoticed."""
        sides = {"sources": self.source, "targets": self.target}
        kept = [f"{side.num_kept:,} {name}" for name, side in sides.items() if side.num_kept]
        if kept:
            logger.warning(
                f"bpe_dropout leaves {' and '.join(kept)} of {num_rows:,} rows whole, whose tokens do not "
                "give their text again, as with unknown tokens"
            )

    def __call__(
        self, rows: Sequence[Mapping[str, Any]], generator: np.random.Generator
    ) -> list[dict[str, Any]]:
        """Return new splits of the rows of a stream's buffer; other columns are dropped."""
        columns = {name: [row[name] for row in rows] for name in ("input_ids", "labels")}
        told = self.source.num_kept or self.target.num_kept
        split = self.split(columns, self.word_starts(columns), generator)
        if not told:
            self.report_kept(len(rows))
        return [dict(zip(split, values, strict=True)) for values in zip(*split.values(), strict=True)]


class BpeDropoutDataset(Dataset[dict[str, Any]]):
    """Rows of a data set whose words are split differently in each epoch.

    The splits are a pure function of (`seed`, epoch, row). All splits of the epoch are in memory: 4 bytes per
    token, and some hundred bytes per row.

    Args:
        rows: a data set with `input_ids` and `labels`.
        splitter: splits both columns.
        seed: not negative.
    """

    def __init__(self, rows: Any, splitter: PairSplitter, seed: int):
        self.rows = rows
        self.splitter = splitter
        self.seed = seed
        self._epoch: int | None = None
        self._starts: list[dict[str, list[Words]]] = []
        self._splits: list[dict[str, list[Integers]]] = []

    def lengths_of_epoch(self, epoch: int) -> tuple[Integers, Integers]:
        """Make the splits of an epoch; return the lengths of sources and targets in tokens, both [N]."""
        if epoch != self._epoch:
            generator = np.random.default_rng((self.seed, epoch))
            self._splits = [
                {
                    name: [np.asarray(row, dtype=np.int32) for row in column]
                    for name, column in self.splitter.split(
                        rows, self._starts_of(number, rows), generator
                    ).items()
                }
                for number, rows in enumerate(self._parts())
            ]
            if self._epoch is None:
                self.splitter.report_kept(len(self))
            self._epoch = epoch
        source, target = (
            np.array([len(row) for part in self._splits for row in part[name]])
            for name in ("input_ids", "labels")
        )
        return source, target

    def _parts(self) -> Any:
        columns = self.rows.select_columns(["input_ids", "labels"])
        return (columns[at : at + ROWS_AT_A_TIME] for at in range(0, len(columns), ROWS_AT_A_TIME))

    def _starts_of(self, number: int, rows: Mapping[str, Sequence[Any]]) -> dict[str, list[Words]]:
        """Return the word starts of a part, which are the same in all epochs."""
        if number == len(self._starts):
            self._starts.append(self.splitter.word_starts(rows))
        return self._starts[number]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        part, at = divmod(row, ROWS_AT_A_TIME)
        return {name: column[at] for name, column in self._splits[part].items()}
