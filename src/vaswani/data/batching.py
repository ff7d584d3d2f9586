"""Make batches of a bounded number of tokens.

The cost of a batch is its number of tokens, padding included: rows · (longest source + longest target). The
batches hold rows of similar lengths (as in Vaswani et al., 2017, arXiv:1706.03762, section 5.1) and come as
close to a budget of tokens as possible.

N rows of a corpus
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from vaswani.data.collation import Example
from vaswani.data.columns import Integers
from vaswani.data.sources.row_report import RowReport
from vaswani.errors import UserError, listing

logger = logging.getLogger(__name__)

Splitter = Callable[[Sequence[Example], np.random.Generator], Sequence[Example]]
ROWS_IN_BUFFER = 20_000
COUNTED_PASSES = 1 << 16  # of a stream


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
    return number_of("input_ids", row), len(row.get("labels", ()))


def number_of(tokens: str, row: Example) -> int:
    """Return the number of tokens in a column of a row; raise `UserError` if the row has no such column."""
    if tokens not in row:
        raise UserError(
            f"a row has no {tokens}, only {listing(row)}; tokenize the data set first: input_ids are the "
            "tokens of a text or source, labels those of a target"
        )
    return len(row[tokens])


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
    skipping the batches that it has seen, after any number of passes. With `finished`, it does not read the
    passes before the last one for this.

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
        finished: number of batches, of all processes together, of each pass that lies wholly before the
            batch with which a training resumes. Instead of these batches, the stream yields empty ones.
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
        finished: Sequence[int] = (),
    ) -> None:
        self.examples = examples
        self._finished = finished
        self._batches_of_passes = torch.zeros(COUNTED_PASSES, dtype=torch.int64)  # 0: not read to its end
        self._batches_of_passes[: len(finished)] = torch.tensor(finished, dtype=torch.int64)
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

    @property
    def finished_passes(self) -> list[int]:
        """The number of batches of each pass that has been read to its end; also those that were given."""
        return self._batches_of_passes[self._batches_of_passes > 0].tolist()

    def share_with_worker(self) -> None:
        """Let `finished_passes` count what a worker of the loader reads; call this before it starts."""
        self._batches_of_passes.share_memory_()

    def _passes(self) -> Iterator[list[Example]]:
        yield from itertools.repeat([], sum(self._finished))
        for epoch in itertools.count(len(self._finished)):
            if self.on_pass is not None:
                self.on_pass(epoch)
            count = 0
            for count, batch in enumerate(self._one_pass(epoch=epoch), start=1):  # noqa: B007 - used below
                yield batch
            if epoch < COUNTED_PASSES:
                self._batches_of_passes[epoch] = count
            if self.rank == 0 and self.report is not None and self.report.left_out:
                logger.warning("Pass %d over the stream has ended: %s.", epoch + 1, str(self.report))
