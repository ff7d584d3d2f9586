"""Tokenize corpora and make batches of a bounded number of tokens.

The cost of a batch is its number of tokens, padding included: rows · (longest source + longest target). The
batches hold rows of similar lengths (as in Vaswani et al., 2017, arXiv:1706.03762, section 5.1) and come as
close to a budget of tokens as possible.

N rows of a corpus · B rows of a batch · S tokens of its longest source · T tokens of its longest target, both
with the end-of-sequence token
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset, Features, List, Value
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase

from vaswani.data import text_codec
from vaswani.data.caching import map_to_file, tokenizer_key
from vaswani.data.evenly_spread import at_most
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import Frame, Side, TextCodec
from vaswani.errors import UserError

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.integer[Any]]
Example = Mapping[str, Any]  # one tokenized row: input_ids, labels and other columns
Splitter = Callable[[Sequence[Example], np.random.Generator], Sequence[Example]]

IGNORED_LABEL = -100  # cross-entropy skips these
ROWS_IN_BUFFER = 20_000
ROWS_TO_COUNT = 10_000  # to estimate the share of unknown tokens
TOKEN_FEATURES = Features(
    {
        "input_ids": List(Value("int32")),
        "labels": List(Value("int32")),
        "source_length": Value("int32"),
        "target_length": Value("int32"),
    }
)


def tokenize_corpus(
    dataset: Dataset | datasets.IterableDataset,
    source_tokenizer: PreTrainedTokenizerBase,
    target_tokenizer: PreTrainedTokenizerBase,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    report: RowReport | None = None,
    truncated: Collection[str] = (),
    *,
    keep_targets: bool = False,
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
        keep_targets: keep the column `target` for scores, because a tokenizer may lose parts of a text.

    Returns:
        Columns `input_ids` and `labels` (lists of int32, with special tokens), `source_length` and
        `target_length` (int32), and `target` if it is kept.

    Raises:
        UserError: a column is missing, a tokenizer does not end sequences or does not know the language of
            the targets, a limit has no room for text, or no row is left.
    """
    columns = dataset.column_names or []
    if missing := {"source", "target"}.difference(columns):
        raise UserError(f"the rows to tokenize have no column {sorted(missing)}; they have {columns}")
    encoding = _Encoding(
        check_encodes(source_tokenizer, "source", max_source_length),
        check_encodes(target_tokenizer, "target", max_target_length),
        Features({**TOKEN_FEATURES, "target": Value("string")}) if keep_targets else TOKEN_FEATURES,
    )
    limits = _LengthLimits(
        frames=(encoding.sources.frame(), encoding.targets.frame()),
        longest=(max_source_length, max_target_length),
        truncated=("source" in truncated, "target" in truncated),
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
    table = dataset.select_columns(["source_length", "target_length"]).with_format("arrow")[:]
    return table["source_length"].to_numpy(), table["target_length"].to_numpy()


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
    rows = at_most(dataset, ROWS_TO_COUNT)
    token_ids = np.fromiter(itertools.chain.from_iterable(rows[column][:]), dtype=np.int64)
    return float((token_ids == unknown).mean())


@dataclass(frozen=True)
class _LengthLimits:
    """Limits on lengths; each pair is (source, target).

    Args:
        frames: the special tokens around each text.
        longest: the maximum length, or None.
        truncated: whether longer texts are truncated instead of left out.
    """

    frames: tuple[Frame, Frame]
    longest: tuple[int | None, int | None]
    truncated: tuple[bool, bool] = (False, False)

    def truncate(self, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Truncate the token ids of rows and update their lengths; special tokens are kept."""
        rows = dict(rows)  # a copy, as `map` removes columns from its batch
        names = (("input_ids", "source_length"), ("labels", "target_length"))
        parts = zip(names, self.frames, self.longest, self.truncated, strict=True)
        for (ids, length), frame, most, cuts in parts:
            if cuts and most is not None:
                rows[ids] = [frame.cut(row, most) for row in rows[ids]]
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
        return f"max_source_length={self.longest[0]}, max_target_length={self.longest[1]}"


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
        raise UserError(f"none of {len(tokens):,} rows fits within {limits}; raise the limits")
    if 2 * fit.size < len(tokens):
        logger.warning("Only %d of %d rows fit within %s.", fit.size, len(tokens), limits)
    is_cut = limits.too_long(source, target, truncated=True)[fit].any()
    tokens = tokens if fit.size == len(tokens) else tokens.select(fit)
    if not is_cut:
        return tokens
    key = hashlib.sha256(f"{key} {limits!r}".encode()).hexdigest()
    return map_to_file(tokens, limits.truncate, encoding.features, key, folder, desc="Truncating")


def source_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the attention mask of a batch, int64 [B, S]; all ones if it has none, as models assume."""
    mask = batch.get("attention_mask")
    return torch.ones_like(batch["input_ids"]) if mask is None else mask


class TokenBudgetBatchSampler(Sampler[list[int]]):
    """Batches of row indices that cost at most `max_tokens`, rows · (longest source + longest target).

    The rows are ordered so that neighbours have similar lengths, then cut into batches that fill the budget.
    Each epoch shuffles rows of equal lengths, and the order of the batches; the shapes of the batches depend
    only on the lengths. Every epoch has the same number of batches and contains every row once. The order is
    a pure function of (`seed`, `epoch`), so skipping batches resumes a run exactly.

    Args:
        source_lengths: tokens of each source [N].
        target_lengths: tokens of each target [N]; None for rows of one sequence each.
        max_tokens: the budget of a batch. (For a collator with `pad_to_multiple_of`, give rounded lengths.)
        seed: not negative.
        shuffle: False gives every epoch the same order, longest batches first, so that memory runs out at the
            start or not at all.
        num_replicas: number of processes, which take turns at the batches. The batches with the most rows are
            halved until the number of batches is divisible by it; no row is repeated or lost. With too few
            rows and without `shuffle`, batches of one row are repeated.
        batches_per_update: batches of each process in an update. If there are enough rows, the number of
            batches is also divisible by `num_replicas * batches_per_update`, the batches in an update. Any
            number of processes that divides it then makes the same updates from the same batches in the same
            order.
        lengths_of_epoch: returns the lengths of an epoch, if they change; the lengths given above are those
            of epoch 0. Each epoch has as many batches as epoch 0, so some batches may exceed the budget by a
            few percent.

    Raises:
        UserError: a row exceeds the budget, there are no rows, or too few for `num_replicas` with `shuffle`.
    """

    def __init__(
        self,
        source_lengths: npt.ArrayLike,
        target_lengths: npt.ArrayLike | None,
        max_tokens: int,
        seed: int = 0,
        shuffle: bool = True,
        num_replicas: int = 1,
        batches_per_update: int = 1,
        lengths_of_epoch: Callable[[int], tuple[Integers, Integers]] | None = None,
    ) -> None:
        source = np.asarray(source_lengths, dtype=np.int64)
        target = None if target_lengths is None else np.asarray(target_lengths, dtype=np.int64)
        _check_lengths(source, target, max_tokens)
        target = np.zeros_like(source) if target is None else target
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.max_tokens = max_tokens
        self.lengths_of_epoch = lengths_of_epoch
        self._place, starts = _best_batch_plan(source, target, max_tokens)
        of_an_update = num_replicas * batches_per_update
        by = of_an_update if of_an_update <= len(source) else num_replicas
        self._repeated = 0 if shuffle else max(0, _multiple(len(starts) - 1, by) - len(source))
        self._starts = _halved(starts, len(source)) if self._repeated else _divisible(starts, by)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which selects the order of the next pass and, if they change, the lengths."""
        if self.lengths_of_epoch is not None and epoch != self.epoch:
            self._replan(*self.lengths_of_epoch(epoch))
        self.epoch = epoch

    def _replan(self, source: Integers, target: Integers) -> None:
        """Plan as many batches as before for new lengths, raising the budget by 1 % at a time if needed."""
        most = self.max_tokens
        while (plan := _best_batch_plan(source, target, most))[1].size > self._starts.size:
            most = -(-most * 101 // 100)
        self._place, starts = plan
        self._starts = _halved(starts, len(self))

    def __len__(self) -> int:
        return len(self._starts) - 1 + self._repeated

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            generator = np.random.default_rng((self.seed, self.epoch))
            rows = generator.permutation(len(self._place))
            rows = rows[np.argsort(self._place[rows], kind="stable")]
            batches = generator.permutation(len(self))
        else:
            rows = np.argsort(self._place, kind="stable")
            batches = np.resize(np.arange(len(self._starts) - 1)[::-1], len(self))
        for batch in batches:
            yield rows[self._starts[batch] : self._starts[batch + 1]].tolist()


def _check_lengths(source: Integers, target: Integers | None, max_tokens: int) -> None:
    sides = [source] if target is None else [source, target]
    if source.ndim != 1 or any(side.shape != source.shape for side in sides):
        shapes = " and targets ".join(str(side.shape) for side in sides)
        raise ValueError(f"lengths of sources {shapes} must be two equal lists")
    if not source.size:
        raise UserError("there are no rows to make batches of")
    if any(side.min() < 1 for side in sides):
        raise ValueError("every source and every target must have at least one token")
    longest = int(np.argmax(np.add.reduce(sides)))
    held = [int(side[longest]) for side in sides]
    if sum(held) > max_tokens:
        tokens = f"{held[0]} tokens" if target is None else f"{held[0]} source and {held[1]} target tokens"
        raise UserError(
            f"row {longest} has {tokens}, more than a batch of {max_tokens} tokens holds; "
            "raise max_tokens or lower the length limits"
        )


def _best_batch_plan(source: Integers, target: Integers, max_tokens: int) -> tuple[Integers, Integers]:
    """Try serpentine orders with stripes of 1, 2, 4 … source lengths until padding stops decreasing.

    Returns:
        The position of each row's pair of lengths in the best order [N], and the starts of its batches,
        followed by the number of rows.
    """
    height = int(target.max()) + 1
    pairs, pair_of_row, rows_of_pair = np.unique(
        source * height + target, return_inverse=True, return_counts=True
    )
    pair_source, pair_target = np.divmod(pairs, height)
    least, width = np.inf, 1
    while True:
        walk = _serpentine_order(pair_source, pair_target, width)
        along_source = np.repeat(pair_source[walk], rows_of_pair[walk])
        along_target = np.repeat(pair_target[walk], rows_of_pair[walk])
        starts = _cut(along_source, along_target, max_tokens)
        padded = _padded_tokens(along_source, along_target, starts)
        if padded >= least:
            break
        best_walk, best_starts, least, width = walk, starts, padded, 2 * width
    place = np.empty(len(pairs), dtype=np.min_scalar_type(len(pairs)))  # small integers sort fastest
    place[best_walk] = np.arange(len(pairs))
    return place[pair_of_row], best_starts


def _serpentine_order(source: Integers, target: Integers, width: int) -> Integers:
    """Order pairs of lengths by stripes of similar sources, with target lengths rising and falling in turn.

    Targets are similar where one stripe ends and the next begins, so a batch may cross the border.
    """
    stripe = np.unique(source // width, return_inverse=True)[1]
    return np.lexsort((source, np.where(stripe % 2 == 0, target, -target), stripe))


def _cut(source: Integers, target: Integers, max_tokens: int) -> Integers:
    """Cut ordered rows into batches that fill the budget; return their starts and the number of rows."""
    starts = [0]
    while (start := starts[-1]) < len(source):
        most = start + max_tokens // int(source[start] + target[start])  # an upper bound with this row
        longest = np.maximum.accumulate(source[start:most]) + np.maximum.accumulate(target[start:most])
        cost = np.arange(1, len(longest) + 1) * longest
        starts.append(start + int(np.searchsorted(cost, max_tokens, side="right")))
    return np.array(starts)


def _padded_tokens(source: Integers, target: Integers, starts: Integers) -> int:
    longest = np.maximum.reduceat(source, starts[:-1]) + np.maximum.reduceat(target, starts[:-1])
    return int((np.diff(starts) * longest).sum())


def _divisible(starts: Integers, num_replicas: int) -> Integers:
    """Halve the batches with the most rows until the number of batches is divisible by `num_replicas`."""
    batches = _multiple(len(starts) - 1, num_replicas)
    if batches > starts[-1]:
        raise UserError(
            f"{starts[-1]} rows in batches of one cannot be shared evenly by {num_replicas} processes; "
            "give more rows, raise max_tokens_per_batch, or use fewer processes"
        )
    return _halved(starts, batches)


def _multiple(number: int, of: int) -> int:
    """Return the least multiple of `of` that is not smaller than `number`."""
    return -(-number // of) * of


def _halved(starts: Integers, batches: int) -> Integers:
    """Halve the batches with the most rows until there are `batches`, at most one per row."""
    while len(starts) - 1 < batches:
        rows = np.diff(starts)
        largest = int(np.argmax(rows))
        starts = np.insert(starts, largest + 1, starts[largest] + rows[largest] // 2)
    return starts


def token_budget_batches(
    examples: Iterable[Example],
    max_tokens: int,
    buffer_size: int = ROWS_IN_BUFFER,
    seed: int = 0,
    epoch: int = 0,
    report: RowReport | None = None,
    splitter: Splitter | None = None,
) -> Iterator[list[Example]]:
    """Batch one pass over a stream, with `TokenBudgetBatchSampler` for each buffer of rows.

    The batches are a pure function of the rows, `buffer_size`, `seed`, `epoch` and `splitter`.

    Args:
        examples: rows with `input_ids` and, if there is a target, `labels`. Instead of labels, rows may have
            `source_length` and `target_length`, the lengths that a collator will give them.
        max_tokens: the budget of a batch, rows · (longest source + longest target).
        buffer_size: rows in memory at a time; larger buffers pad less and mix better.
        seed: not negative.
        epoch: selects the order.
        report: counts rows that exceed the budget and are left out, as over-long.
        splitter: turns the rows of a buffer into new ones within the budget, different in each pass.

    Raises:
        UserError: no row is left.
    """
    fitting = _within_budget(examples, max_tokens, report if report is not None else RowReport())
    for number in itertools.count():
        buffer = list(islice(fitting, buffer_size))
        if not buffer and number > 0:
            return
        if splitter is not None and buffer:
            buffer = list(splitter(buffer, np.random.default_rng((seed, epoch, number))))
        source_lengths, target_lengths = zip(*map(_lengths, buffer), strict=True) if buffer else ((), ())
        sampler = TokenBudgetBatchSampler(
            source_lengths,
            target_lengths if any(target_lengths) else None,
            max_tokens,
            seed=int(np.random.SeedSequence((seed, number)).generate_state(1)[0]),
        )
        sampler.set_epoch(epoch)
        for batch in sampler:
            yield [buffer[i] for i in batch]


def _lengths(row: Example) -> tuple[int, int]:
    """Return the lengths of a row's source and target in tokens; 0 without a target."""
    if "labels" not in row and "target_length" in row:
        return row["source_length"], row["target_length"]
    return len(row["input_ids"]), len(row.get("labels", ()))


def _within_budget(examples: Iterable[Example], max_tokens: int, report: RowReport) -> Iterator[Example]:
    told = False
    for row in examples:
        tokens = sum(_lengths(row))
        if tokens <= max_tokens:
            yield row
            continue
        report.leave_out("over_long", 1)
        if not told:
            logger.warning(
                "Rows that fit no batch of max_tokens_per_batch=%d are left out, as one of %d tokens.",
                max_tokens,
                tokens,
            )
            told = True


class TokenBudgetStream(torch.utils.data.IterableDataset[list[Example]]):
    """Endless batches of a stream, for a `DataLoader` with `batch_size=None` and a `Seq2SeqCollator`.

    Each pass over the stream has another order. A trainer counts `max_steps` and not passes, and resumes by
    skipping the batches that it has seen, after any number of passes.

    With several processes, give each its `rank`, and do not pass the loader to `Accelerator.prepare`, which
    would distribute the batches again.

    Args:
        examples: rows with `input_ids` and, if there is a target, `labels`; the same in every pass.
        max_tokens: the budget of a batch, rows · (longest source + longest target).
        buffer_size: rows in memory at a time; larger buffers pad less and mix better.
        seed: not negative.
        num_replicas: number of processes, which take turns at the batches; each reads the whole stream.
        rank: rank of this process.
        report: counts rows that exceed the budget and are left out, as over-long. If rows are left out, for
            whatever reason, rank 0 logs the counts at the end of each pass.
        on_pass: called at the start of each pass with its number, from 0.
        splitter: as for `token_budget_batches`.
    """

    def __init__(
        self,
        examples: Iterable[Example],
        max_tokens: int,
        buffer_size: int = ROWS_IN_BUFFER,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        report: RowReport | None = None,
        on_pass: Callable[[int], None] | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        self.examples = examples
        self.on_pass = on_pass
        self.num_replicas = num_replicas
        self.rank = rank
        self.report = report
        self._one_pass = partial(
            token_budget_batches, examples, max_tokens, buffer_size, seed, report=report, splitter=splitter
        )

    def __iter__(self) -> Iterator[list[Example]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise UserError(
                f"a streamed corpus is read by one process, not by {worker.num_workers} workers; "
                "set dataloader_num_workers to 0 or 1"
            )
        return islice(self._passes(), self.rank, None, self.num_replicas)

    def _passes(self) -> Iterator[list[Example]]:
        for epoch in itertools.count():
            if self.on_pass is not None:
                self.on_pass(epoch)
            yield from self._one_pass(epoch=epoch)
            if self.rank == 0 and self.report is not None and self.report.left_out:
                logger.warning("Pass %d over the stream has ended: %s.", epoch + 1, str(self.report))


@dataclass(frozen=True)
class Seq2SeqCollator:
    """Pad rows on the right to a batch.

    Also makes the decoder's input, because label smoothing removes the labels before the model is called.

    Args:
        pad_token_id: pads `input_ids` and `decoder_input_ids`; labels are padded with -100.
        decoder_start_token_id: first token of every decoder input; the labels follow, shifted by one.
        pad_to_multiple_of: round S and T up to a multiple of this, for kernels that prefer it.

    Returns:
        From rows with `input_ids` and `labels` (other columns are ignored), int64 tensors: `input_ids` and
        `attention_mask` [B, S], `labels` and `decoder_input_ids` [B, T].
    """

    pad_token_id: int
    decoder_start_token_id: int
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of={self.pad_to_multiple_of} must be at least 1")

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        """Pad a batch."""
        multiple = self.pad_to_multiple_of or 1
        input_ids, attention_mask = pad([row["input_ids"] for row in examples], self.pad_token_id, multiple)
        labels, _ = pad([row["labels"] for row in examples], IGNORED_LABEL, multiple)
        decoder_input_ids = np.full_like(labels, self.decoder_start_token_id)
        decoder_input_ids[:, 1:] = np.where(labels == IGNORED_LABEL, self.pad_token_id, labels)[:, :-1]
        arrays = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "labels": labels,
            "decoder_input_ids": decoder_input_ids,
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pad_rows(rows: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return padded `input_ids`, `attention_mask` and, if rows have them, `token_type_ids` [B, S]."""
    input_ids, attention_mask = pad([row["input_ids"] for row in rows], pad_token_id)
    padded = {"input_ids": input_ids, "attention_mask": attention_mask}
    if "token_type_ids" in rows[0]:
        padded["token_type_ids"], _ = pad([row["token_type_ids"] for row in rows], 0)
    return padded


def pad(
    sequences: Sequence[Any], filler: int, pad_to_multiple_of: int = 1
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return sequences padded on the right, [B, S], and their mask."""
    longest = max(len(sequence) for sequence in sequences)
    shape = (len(sequences), -(-longest // pad_to_multiple_of) * pad_to_multiple_of)
    padded, mask = np.full(shape, filler, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        padded[row, : len(sequence)] = sequence
        mask[row, : len(sequence)] = 1
    return padded, mask
