"""Stored distributions equal the teacher's up to k and float16, row by row, in any kind of run."""

import math
import pickle
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from toy_translation import toy_model, toy_rows, toy_tokenizer, toy_tokenizers
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import token_lengths, tokenize_corpus
from vaswani.distillation.output_cache import OutputCache
from vaswani.distillation.teacher_logits import TeacherLogits, TeacherLogitsCollator, store_logits
from vaswani.errors import UserError

VOCAB_SIZE = len(toy_tokenizer())
COLLATOR = Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=1)
OPTIONS = {"top_k": 8, "temperature": 1.0, "max_tokens_per_batch": 120}
Batch = dict[str, torch.Tensor]


@cache
def corpus() -> Dataset:
    sources, targets = zip(*toy_rows(22, seed=-1), strict=True)
    texts = Dataset.from_dict({"source": list(sources), "target": list(targets)})
    return tokenize_corpus(texts, *toy_tokenizers())


@cache
def teacher() -> Callable[[Batch], torch.Tensor]:
    model = toy_model()
    return lambda batch: model(**batch).logits


def open_cache(folder: Path, **options: Any) -> OutputCache:
    return OutputCache(folder, "logits", {**OPTIONS, **options}, len(corpus()), rows_per_shard=5)


def store(
    folder: Path,
    teacher_logits: Callable[[Batch], torch.Tensor] | None = None,
    cache: OutputCache | None = None,
    **options: Any,
) -> None:
    settings = {name: options.pop(name, value) for name, value in OPTIONS.items()}
    cache = cache or open_cache(folder, **settings)
    store_logits(cache, teacher_logits or teacher(), corpus(), COLLATOR, **settings, **options)


def stored(folder: Path, *args: Any, **options: Any) -> TeacherLogits:
    store(folder, *args, **options)
    return TeacherLogits(open_cache(folder, **options))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def true_log_probs(row: int, temperature: float) -> torch.Tensor:
    """The teacher's log-probabilities [T, V] of one row, computed by itself."""
    with torch.no_grad():
        return (teacher()(COLLATOR([corpus()[row]]))[0] / temperature).log_softmax(-1)


def bucketed(log_probs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [T, V] of some tokens [T, k] and of all others together: [T, k + 1], in float64."""
    probabilities = log_probs.double().exp()
    kept = probabilities.gather(-1, tokens)
    others = probabilities.scatter(-1, tokens, 0.0).sum(-1, keepdim=True)
    return torch.cat([kept, others], dim=-1).log()


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p ‖ q) per position; 0 · log 0 is 0."""
    p, q = p.double(), q.double()
    return torch.where(p > -torch.inf, p.exp() * (p - q), 0.0).sum(-1)


# What is stored.


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("top_k", [1, 8, VOCAB_SIZE])
def test_a_row_gives_the_likeliest_tokens_and_the_rest(
    tmp_path: Path, top_k: int, temperature: float
) -> None:
    logits = stored(tmp_path, top_k=top_k, temperature=temperature)
    for row, example in enumerate(corpus()):
        log_probs, tokens = logits[row]
        expected = true_log_probs(row, temperature)
        assert log_probs.shape == (len(example["labels"]), top_k + 1)
        assert tokens.shape == (len(example["labels"]), top_k)
        assert (log_probs.dtype, tokens.dtype) == (torch.float32, torch.int64)
        torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(len(tokens)))
        assert kl(bucketed(expected, tokens), log_probs).max() < 1e-6
        largest = expected.topk(top_k).values
        torch.testing.assert_close(expected.gather(-1, tokens), largest, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_more_tokens_approximate_the_teacher_better(tmp_path: Path, temperature: float) -> None:
    """The probability of the tail is assumed to be uniform over its tokens."""
    divergences = []
    for top_k in (1, 4, 16, 64, VOCAB_SIZE):
        logits = stored(tmp_path / str(top_k), top_k=top_k, temperature=temperature)
        summed = 0.0
        for row in range(len(corpus())):
            log_probs, tokens = logits[row]
            spread = log_probs[:, -1:] - math.log(max(VOCAB_SIZE - top_k, 1))
            rebuilt = spread.expand(-1, VOCAB_SIZE).scatter(-1, tokens, log_probs[:, :-1])
            summed += float(kl(true_log_probs(row, temperature), rebuilt).sum())
        divergences.append(summed / logits.num_tokens)
    assert all(after < before for before, after in pairwise(divergences))
    assert divergences[0] > 0.01
    assert divergences[-1] < 1e-6


def test_with_the_whole_vocabulary_the_tail_is_empty(tmp_path: Path) -> None:
    log_probs, tokens = stored(tmp_path, top_k=VOCAB_SIZE)[3]
    assert (log_probs[:, -1] == -torch.inf).all()
    assert not log_probs.isnan().any()
    assert (tokens.sort(-1).values == torch.arange(VOCAB_SIZE)).all()


def test_tokens_excluded_by_the_teacher_have_no_probability(tmp_path: Path) -> None:
    def forbidding(batch: Batch) -> torch.Tensor:
        return teacher()(batch).index_fill(-1, torch.arange(2, VOCAB_SIZE), -torch.inf)

    log_probs, tokens = stored(tmp_path, forbidding, top_k=4)[0]
    assert (tokens[:, :2].sort(-1).values == torch.tensor([0, 1])).all()
    torch.testing.assert_close(log_probs[:, :2].exp().sum(-1), torch.ones(len(tokens)))
    assert (log_probs[:, 2:] == -torch.inf).all()


@pytest.mark.parametrize("vocab_size", [1 << 16, (1 << 16) + 1])
def test_token_ids_of_large_vocabularies(tmp_path: Path, vocab_size: int) -> None:
    def likes_the_last(batch: Batch) -> torch.Tensor:
        return torch.arange(vocab_size).expand(*batch["labels"].shape, -1)

    logits = stored(tmp_path, likes_the_last, top_k=2, max_tokens_per_batch=60)
    assert (logits[0][1] == torch.tensor([vocab_size - 1, vocab_size - 2])).all()
    bytes_per_id = {1 << 16: 2}.get(vocab_size, 4)
    assert 0 <= logits.bytes_per_token - (2 * bytes_per_id + 3 * 2) < 200  # what is over is of the shards


def test_bytes_per_token_are_those_on_disk(tmp_path: Path) -> None:
    logits = stored(tmp_path)
    cache = open_cache(tmp_path)
    on_disk = sum(cache.path(shard).stat().st_size for shard in range(cache.num_shards))
    num_tokens = int(token_lengths(corpus())[1].sum())
    assert logits.num_tokens == num_tokens
    assert logits.bytes_per_token == on_disk / num_tokens
    assert stored(tmp_path / "more", top_k=9).bytes_per_token == pytest.approx(logits.bytes_per_token + 4)


def test_the_teacher_is_called_within_the_budget_in_inference_mode(tmp_path: Path) -> None:
    shapes: list[int] = []

    def recording(batch: Batch) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        shapes.append(len(batch["labels"]) * (batch["input_ids"].shape[1] + batch["labels"].shape[1]))
        return teacher()(batch)

    store(tmp_path / "small", recording, max_tokens_per_batch=60)
    num_small = len(shapes)
    assert max(shapes) <= 60
    store(tmp_path / "large", recording, max_tokens_per_batch=500)
    assert len(shapes) - num_small == 5 < num_small  # a batch for each shard


# Interruptions, and several processes.


def test_an_interrupted_run_that_is_resumed_leaves_the_same_bytes(tmp_path: Path) -> None:
    store(tmp_path / "whole")
    rows_done = 0

    def interrupt(rows: int) -> None:
        nonlocal rows_done
        rows_done += rows
        if rows_done > 12:
            raise KeyboardInterrupt

    folder = tmp_path / "resumed"
    with pytest.raises(KeyboardInterrupt):
        store(folder, progress=interrupt)
    assert open_cache(folder).missing_shards() == [2, 3, 4]
    with pytest.raises(UserError, match="lacks 3 of 5 shards"):
        TeacherLogits(open_cache(folder))
    open_cache(folder).path(0).unlink()
    resumed: list[int] = []
    store(folder, progress=resumed.append)
    assert sum(resumed) == len(corpus()) - 5
    assert files_of(folder) == files_of(tmp_path / "whole")


def test_processes_together_leave_the_same_bytes_as_one(tmp_path: Path) -> None:
    store(tmp_path / "one")
    for process in range(2):
        identity, share = dict(OPTIONS), {"process_index": process, "num_processes": 2}
        cache = OutputCache(tmp_path / "two", "logits", identity, len(corpus()), rows_per_shard=5, **share)
        store(tmp_path / "two", cache=cache)
        assert bool(open_cache(tmp_path / "two").missing_shards()) == (process == 0)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")


@pytest.mark.parametrize("cut", [True, False])
def test_a_truncated_or_damaged_shard_is_refused(tmp_path: Path, cut: bool) -> None:
    store(tmp_path)
    path = open_cache(tmp_path).path(1)
    data = bytearray(path.read_bytes())
    if cut:
        del data[-10:]
    else:
        data[-10] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match="shard-000001 is truncated or damaged; delete it"):
        TeacherLogits(open_cache(tmp_path))


# Bad input.


def test_mistakes_are_found_before_anything_is_computed(tmp_path: Path) -> None:
    def not_called(batch: Batch) -> torch.Tensor:
        raise AssertionError

    longest = int(np.add(*token_lengths(corpus())).max())
    with pytest.raises(UserError, match=f"more than a batch of {longest - 1} tokens holds"):
        store(tmp_path, not_called, max_tokens_per_batch=longest - 1)


def test_a_top_k_above_the_vocabulary_size_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=f"top_k={VOCAB_SIZE + 1} is more than the teacher's {VOCAB_SIZE} tok"
    ):
        store(tmp_path, top_k=VOCAB_SIZE + 1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_teacher_that_overflows(tmp_path: Path, value: float) -> None:
    with pytest.raises(UserError, match="infinite or not numbers; try teacher_dtype=float32"):
        store(tmp_path, lambda batch: teacher()(batch).index_fill(-1, torch.tensor([5]), value))
    assert open_cache(tmp_path).missing_shards() == [0, 1, 2, 3, 4]


# Batches for a student.


def rows_for_training() -> Dataset:
    return corpus().add_column("row", range(len(corpus())))


@pytest.mark.parametrize("pad_to_multiple_of", [None, 8])
def test_a_batch_has_the_distributions_beside_its_labels(
    tmp_path: Path, pad_to_multiple_of: int | None
) -> None:
    logits = stored(tmp_path)
    collator = Seq2SeqCollator(0, 1, pad_to_multiple_of)
    rows = [7, 0, 21, 12]
    examples = [rows_for_training()[row] for row in rows]
    batch = TeacherLogitsCollator(collator, logits)(examples)
    plain = collator(examples)
    assert batch.keys() - plain.keys() == {"teacher_log_probs", "teacher_tokens"}
    assert all(torch.equal(batch[name], plain[name]) for name in plain)
    assert batch["teacher_log_probs"].shape == (*plain["labels"].shape, 9)
    assert batch["teacher_tokens"].shape == (*plain["labels"].shape, 8)
    for place, row in enumerate(rows):
        log_probs, tokens = logits[row]
        assert torch.equal(batch["teacher_log_probs"][place, : len(tokens)], log_probs)
        assert torch.equal(batch["teacher_tokens"][place, : len(tokens)], tokens)
    is_padding = plain["labels"] == -100
    assert is_padding.any()
    assert (batch["teacher_tokens"][is_padding] == 0).all()
    torch.testing.assert_close(
        batch["teacher_log_probs"][is_padding].exp().sum(-1), torch.ones(int(is_padding.sum()))
    )


def test_a_label_that_does_not_count_has_no_distribution(tmp_path: Path) -> None:
    """Not even in the middle of a row."""

    def with_holes(examples: Any) -> Batch:
        batch = COLLATOR(examples)
        batch["labels"][:, 1] = -100
        return batch

    cache = open_cache(tmp_path)
    store_logits(cache, teacher_of_inputs, corpus(), with_holes, **OPTIONS)
    logits = TeacherLogits(cache)
    batch = TeacherLogitsCollator(with_holes, logits)([rows_for_training()[row] for row in (4, 9)])
    for place, row in enumerate((4, 9)):
        expected = true_log_probs(row, 1.0)
        for position in (0, 2):
            tokens = batch["teacher_tokens"][place, position]
            log_probs = batch["teacher_log_probs"][place, position]
            assert kl(bucketed(expected[position], tokens), log_probs) < 1e-6
    assert (batch["teacher_tokens"][:, 1] == 0).all()


def teacher_of_inputs(batch: Batch) -> torch.Tensor:
    return teacher()({name: tensor for name, tensor in batch.items() if name != "labels"})


def test_workers_read_the_same(tmp_path: Path) -> None:
    collator = TeacherLogitsCollator(COLLATOR, stored(tmp_path))
    data = rows_for_training().select([3, 1, 18, 20])
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": collator}
    here = list(DataLoader(data, **options))
    there = list(DataLoader(data, num_workers=2, **options))
    assert len(here) == len(there) == 2
    for one, other in zip(here, there, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_pickle_does_not_hold_the_distributions(tmp_path: Path) -> None:
    few, many = (stored(tmp_path / str(top_k), top_k=top_k) for top_k in (1, 100))
    assert many.bytes_per_token > 10 * few.bytes_per_token
    assert len(pickle.dumps(many)) < len(pickle.dumps(few)) + 100
    assert torch.equal(pickle.loads(pickle.dumps(many))[5][0], many[5][0])
