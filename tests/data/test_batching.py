"""Token ids, batches within a token budget, and resuming with the same batches."""

import copy
import gc
import itertools
import json
import tempfile
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, skip_first_batches
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from transformers.models.bart.modeling_bart import shift_tokens_right

from library_tokenizers import library_tokenizers
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.data import batching, pair_tokens
from vaswani.data.batching import TokenBudgetBatchSampler, TokenBudgetStream, token_budget_batches
from vaswani.data.collation import Seq2SeqCollator
from vaswani.data.pair_tokens import token_lengths, tokenize_corpus
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import CorpusSpec
from vaswani.data.sources.row_report import RowReport
from vaswani.data.text_codec import for_languages
from vaswani.data.tokenization import load_tokenizers, train_tokenizer
from vaswani.errors import UserError

__all__ = ["library_tokenizers"]

PAIRS = [
    ("a man and a woman walk", "ein Mann und eine Frau gehen"),
    ("a man", "ein Mann"),
    ("the woman and the man and the dog", "die Frau und der Mann und der Hund"),
    ("dogs", "Hunde"),
    ("a dog and a man", "ein Hund und ein Mann"),
    ("the dog", "der Hund"),
]
MULTI30K = Path(__file__).parents[3] / "shared" / "data" / "multi30k"

length_pairs = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=300)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for pair in PAIRS for text in pair], 300, min_frequency=1)


@pytest.fixture
def corpus(tmp_path):
    """The rows of `PAIRS` as a corpus on disk; call it with `streaming`."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in PAIRS))
    return lambda streaming=False: load_corpus(CorpusSpec(train_file=[str(path)], streaming=streaming))


@pytest.mark.parametrize(
    "options",
    [{"source_prefix": "the "}, {"source_language": "deu_Latn"}, {"target_language": "eng_Latn"}],
    ids=lambda options: next(iter(options)),
)
def test_languages_and_prefix_are_part_of_the_cache_key(options, corpus, library_tokenizers):
    rows, tokenizers = corpus().split("train"), load_tokenizers(library_tokenizers["nllb"])
    before = tokenize_corpus(rows, *tokenizers)
    after = tokenize_corpus(rows, *for_languages(*tokenizers, **options))
    changed = "labels" if "target_language" in options else "input_ids"
    for name in ("input_ids", "labels"):
        assert (before[name][:] != after[name][:]) == (name == changed)
    assert tokenize_corpus(rows, *tokenizers)[changed][:] == before[changed][:]


def tokenized_rows(count=400, seed=0):
    """Rows of random tokens whose first source token is the row's number."""
    random = np.random.default_rng(seed)
    sources = np.clip(random.gamma(4, 3, count).astype(int) + 1, 1, 40)
    targets = np.clip(sources + random.integers(-3, 4, count), 1, 40)
    return [
        {"input_ids": [1000 + i, *[7] * (s - 1)], "labels": list(random.integers(3, 50, t))}
        for i, (s, t) in enumerate(zip(sources, targets, strict=True))
    ]


def lengths_of(rows):
    return [len(row["input_ids"]) for row in rows], [len(row["labels"]) for row in rows]


def cost(batch, source, target):
    return len(batch) * (max(source[i] for i in batch) + max(target[i] for i in batch))


def epoch_of(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


class TestTokenizing:
    @pytest.mark.parametrize("streaming", [False, True])
    def test_rows_become_ids_that_end_sequences(self, streaming, corpus, tokenizer):
        loaded = corpus(streaming)
        tokens = tokenize_corpus(loaded.split("train"), tokenizer, tokenizer, report=loaded.reports["train"])
        assert tokens.column_names == ["input_ids", "labels", "source_length", "target_length"]
        rows = list(tokens)
        for row, (source, target) in zip(rows, PAIRS, strict=True):
            assert row["input_ids"] == tokenizer(source)["input_ids"]
            assert row["labels"] == tokenizer(target)["input_ids"]
            assert row["input_ids"][-1] == row["labels"][-1] == tokenizer.eos_token_id
            assert (row["source_length"], row["target_length"]) == (len(row["input_ids"]), len(row["labels"]))
        assert loaded.reports["train"] == RowReport(kept=len(PAIRS))

    def test_each_side_has_its_tokenizer(self, corpus, tokenizer):
        other = train_tokenizer(["zzz"], 259, min_frequency=1)
        row = tokenize_corpus(corpus().split("train"), tokenizer, other)[0]
        assert row["input_ids"] == tokenizer(PAIRS[0][0])["input_ids"]
        assert row["labels"] == other(PAIRS[0][1])["input_ids"]

    @pytest.mark.parametrize("streaming", [False, True])
    def test_over_long_rows_are_left_out_whole_and_counted(self, streaming, corpus, tokenizer):
        lengths = [(len(tokenizer(s)["input_ids"]), len(tokenizer(t)["input_ids"])) for s, t in PAIRS]
        most_source, most_target = sorted(s for s, _ in lengths)[-2], sorted(t for _, t in lengths)[-3]
        expected = [pair for pair in lengths if pair[0] <= most_source and pair[1] <= most_target]
        assert 0 < len(expected) < len(PAIRS)
        for _ in range(2):  # the second time from the cache, or in a second pass
            loaded = corpus(streaming)
            report = loaded.reports["train"]
            rows = list(
                tokenize_corpus(
                    loaded.split("train"), tokenizer, tokenizer, most_source, most_target, report=report
                )
            )
            assert [(row["source_length"], row["target_length"]) for row in rows] == expected
            assert report == RowReport(kept=len(expected), over_long=len(PAIRS) - len(expected))

    @pytest.mark.parametrize("truncated", [["source"], ["target"], ["source", "target"]], ids=str)
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("is_evaluation", [False, True])
    def test_over_long_rows_can_be_cut_off_instead(
        self, is_evaluation, streaming, truncated, corpus, tokenizer
    ):
        """In an evaluation, a cut target has no end token, which would be scored where the text goes on."""
        whole = list(tokenize_corpus(corpus().split("train"), tokenizer, tokenizer))
        columns = {"source": "input_ids", "target": "labels"}
        longest = {side: max(len(row[column]) for row in whole) for side, column in columns.items()}
        most = {side: 3 if side in truncated else longest[side] - 1 for side in columns}
        for _ in range(2):  # the second time from the cache, or in a second pass
            loaded = corpus(streaming)
            report = loaded.reports["train"]
            rows = list(
                tokenize_corpus(
                    *(loaded.split("train"), tokenizer, tokenizer, most["source"], most["target"], report),
                    truncated,
                    is_evaluation=is_evaluation,
                )
            )
            expected, num_cut = [], 0
            for row in whole:
                too_long = [side for side in most if len(row[columns[side]]) > most[side]]
                if set(too_long) <= set(truncated):
                    num_cut += bool(too_long)
                    expected.append(
                        {
                            side: row[column]
                            if side not in too_long
                            else row[column][: most[side]]
                            if is_evaluation and side == "target"
                            else [*row[column][: most[side] - 1], row[column][-1]]
                            for side, column in columns.items()
                        }
                    )
            assert [{side: row[columns[side]] for side in most} for row in rows] == expected
            assert [(row["source_length"], row["target_length"]) for row in rows] == [
                (len(row["source"]), len(row["target"])) for row in expected
            ]
            assert num_cut > 0
            left_out = len(PAIRS) - len(expected)
            assert report == RowReport(kept=len(expected), over_long=left_out, truncated=num_cut)
            assert str(report).startswith(f"kept {len(expected)} of 6 rows, {num_cut} of them cut off")

    @pytest.mark.parametrize("streaming", [False, True])
    def test_text_without_tokens_is_empty(self, streaming, tokenizer):
        bare = train_tokenizer(["abc"], 259, min_frequency=1)
        bare.backend_tokenizer.normalizer = normalizers.Replace("~", "")
        rows = Dataset.from_dict({"source": ["~", "a", "b"], "target": ["x", "~~", "y"]})
        report = RowReport(kept=3)
        rows = rows.to_iterable_dataset() if streaming else rows
        assert len(list(tokenize_corpus(rows, bare, bare, report=report))) == 1
        assert report == RowReport(kept=1, empty=2)

    def test_a_stream_counts_with_each_pass(self, corpus, tokenizer):
        loaded = corpus(streaming=True)
        report = loaded.reports["train"]
        tokens = tokenize_corpus(loaded.split("train"), tokenizer, tokenizer, 6, None, report)
        kept = [len(list(tokens)) for _ in range(2)]
        assert kept[0] == kept[1] == report.kept
        assert report.over_long == len(PAIRS) - report.kept > 0

    def test_mistakes(self, corpus, tokenizer, caplog):
        rows = corpus().split("train")
        for limits in ([1], [None, 1], [0, 9]):
            with pytest.raises(UserError, match=r"length=[01] leaves no room for text .*; give 2 or more"):
                tokenize_corpus(rows, tokenizer, tokenizer, *limits)
        long = Dataset.from_dict({"source": ["two words"], "target": ["one"]})
        with pytest.raises(
            UserError, match="none of 1 rows fits within at most 2 tokens of a source and any number of"
        ):
            tokenize_corpus(long, tokenizer, tokenizer, 2)
        with pytest.raises(UserError, match=r"no column \['target'\]; they have \['source'\]"):
            tokenize_corpus(rows.remove_columns("target"), tokenizer, tokenizer)
        endless = train_tokenizer(["abc"], 259, min_frequency=1)
        endless.backend_tokenizer.post_processor = None
        with pytest.raises(UserError, match="does not end a sequence with its end-of-sequence token '</s>'"):
            tokenize_corpus(rows, tokenizer, endless)
        assert not caplog.text
        tokenize_corpus(rows, tokenizer, tokenizer, 2)
        assert "of 6 rows fit within at most 2 tokens of a source" in caplog.text


class TestTokenCache:
    def test_the_same_rows_and_tokenizers_are_tokenized_once(self, corpus, tokenizer, monkeypatch):
        first = tokenize_corpus(corpus().split("train"), tokenizer, tokenizer)[:]
        monkeypatch.setattr(pair_tokens, "_encode", None)
        assert tokenize_corpus(corpus().split("train"), tokenizer, tokenizer)[:] == first

    def test_another_tokenizer_gives_other_tokens(self, corpus, tokenizer):
        rows = corpus().split("train")
        first = tokenize_corpus(rows, tokenizer, tokenizer)["input_ids"][:]
        other = train_tokenizer([text for pair in PAIRS for text in pair], 280, min_frequency=1)
        assert tokenize_corpus(rows, other, tokenizer)["input_ids"][:] != first

    def test_special_tokens_in_text_are_part_of_the_key(self, tmp_path, tokenizer):
        path = tmp_path / "b.tsv"
        path.write_text("source\ttarget\na </s> b\tx\n")
        rows = load_corpus(CorpusSpec(train_file=[str(path)])).split("train")
        spelled = tokenize_corpus(rows, tokenizer, tokenizer)[0]["input_ids"]
        assert spelled.count(tokenizer.eos_token_id) == 1
        tokenizer = copy.deepcopy(tokenizer)
        del tokenizer.init_kwargs["plain_texts"]
        marked = tokenize_corpus(rows, tokenizer, tokenizer)[0]["input_ids"]
        assert marked.count(tokenizer.eos_token_id) == 2

    def test_dropout_tokenizes_anew_each_time_and_leaves_no_files(self, corpus, tmp_path, monkeypatch):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        words = train_tokenizer([text for pair in PAIRS for text in pair], 400, min_frequency=1)
        rows = corpus().split("train")
        plain = tokenize_corpus(rows, words, words)["input_ids"][:]
        words.backend_tokenizer.model.dropout = 0.5
        tokens = [tokenize_corpus(rows, words, words) for _ in range(3)]
        ids = [t["input_ids"][:] for t in tokens]
        assert all(one != other for one, other in itertools.combinations([plain, *ids], 2))
        assert len(list(tmp_path.glob("vaswani-tokens-*"))) == 3
        del tokens
        gc.collect()
        assert not list(tmp_path.glob("vaswani-tokens-*"))
        words.backend_tokenizer.model.dropout = None
        assert tokenize_corpus(rows, words, words)["input_ids"][:] == plain

    @pytest.mark.parametrize("dropout", [None, 0.5])
    def test_tokenizing_writes_no_files_into_a_saved_data_set(self, dropout, tmp_path):
        words = train_tokenizer([text for pair in PAIRS for text in pair], 300, min_frequency=1)
        words.backend_tokenizer.model.dropout = dropout
        Dataset.from_dict({"source": ["a man"], "target": ["ein Mann"]}).save_to_disk(tmp_path / "saved")
        before = sorted((tmp_path / "saved").iterdir())
        assert len(tokenize_corpus(datasets.load_from_disk(tmp_path / "saved"), words, words)) == 1
        assert sorted((tmp_path / "saved").iterdir()) == before

    def test_rows_in_memory_are_not_cached_on_disk(self, tokenizer, cache):
        tokens = tokenize_corpus(Dataset.from_dict({"source": ["a"], "target": ["b"]}), tokenizer, tokenizer)
        assert not tokens.cache_files
        assert not cache.exists()


class TestSampler:
    @given(
        lengths=length_pairs,
        spare=st.integers(0, 300),
        seed=st.integers(0, 2**32),
        epoch=st.integers(0, 1000),
        num_replicas=st.integers(1, 5),
    )
    @settings(deadline=None)
    def test_every_epoch_holds_each_row_once_within_the_token_budget(
        self, lengths, spare, seed, epoch, num_replicas
    ):
        source, target = zip(*lengths, strict=True)
        budget = max(s + t for s, t in lengths) + spare

        def make(shuffle=True):
            return TokenBudgetBatchSampler(source, target, budget, seed, shuffle, num_replicas)

        least = len(TokenBudgetBatchSampler(source, target, budget))
        if -(-least // num_replicas) * num_replicas > len(lengths):  # more batches than rows would be needed
            with pytest.raises(UserError, match="cannot be shared evenly"):
                make()
            repeated = list(make(shuffle=False))
            assert len(repeated) % num_replicas == 0
            assert {len(batch) for batch in repeated} == {1}
            assert {row for batch in repeated for row in batch} == set(range(len(lengths)))
            return
        sampler = make()
        for batches in (epoch_of(sampler, epoch), list(make(shuffle=False))):
            assert len(batches) == len(sampler)
            assert len(batches) % num_replicas == 0
            assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
            assert all(batches)
            assert max(cost(batch, source, target) for batch in batches) <= budget
        assert epoch_of(make(), epoch) == epoch_of(sampler, epoch)

    @given(lengths=length_pairs, spare=st.integers(0, 300))
    @settings(deadline=None)
    def test_batch_cuts_equal_those_of_a_plain_loop(self, lengths, spare):
        budget = max(s + t for s, t in lengths) + spare
        slow, batch = [0], []
        for i, pair in enumerate(lengths):
            if (len(batch) + 1) * sum(max(side) for side in zip(*batch, pair, strict=True)) > budget:
                slow.append(i)
                batch = []
            batch.append(pair)
        source, target = np.array(lengths).T
        assert batching._cut(source, target, budget).tolist() == [*slow, len(lengths)]

    def test_seed_and_epoch_change_the_order_but_not_the_batch_shapes(self):
        source, target = lengths_of(tokenized_rows())

        def shapes(batches):
            columns = (
                ([source[i] for i in batch] for batch in batches),
                ([target[i] for i in batch] for batch in batches),
            )
            return sorted((len(s), max(s), max(t)) for s, t in zip(*columns, strict=True))

        orders = [
            epoch_of(TokenBudgetBatchSampler(source, target, 200, seed), epoch)
            for seed, epoch in [(0, 0), (0, 1), (1, 0), (1, 1)]
        ]
        assert all(one != other for one, other in itertools.combinations(orders, 2))
        contents = [{frozenset(batch) for batch in order} for order in orders]
        assert all(one != other for one, other in itertools.combinations(contents, 2))
        assert all(shapes(order) == shapes(orders[0]) for order in orders)

    def test_returning_to_an_epoch_gives_the_same_batches(self):
        source, target = lengths_of(tokenized_rows())
        sampler = TokenBudgetBatchSampler(source, target, 200, seed=3)
        epochs = [epoch_of(sampler, epoch) for epoch in (0, 1, 2)]
        assert [epoch_of(sampler, epoch) for epoch in (2, 0, 1)] == [epochs[2], epochs[0], epochs[1]]

    def test_without_shuffling_batches_run_from_longest_to_shortest(self):
        source, target = lengths_of(tokenized_rows())
        sampler = TokenBudgetBatchSampler(source, target, 200, shuffle=False)
        batches = epoch_of(sampler, 0)
        assert epoch_of(sampler, 1) == batches
        longest = [max(source[i] for i in batch) for batch in batches]
        assert longest[0] == max(source)
        assert longest == sorted(longest, reverse=True)

    @pytest.mark.parametrize("budget", [500, 2000, 8000])
    def test_batches_are_nearly_full_and_hardly_padded(self, budget):
        random = np.random.default_rng(0)
        source = np.clip(random.gamma(4, 5, 20_000).astype(int) + 2, 2, 100)
        target = np.clip((source * random.normal(1, 0.2, 20_000)).astype(int) + 1, 2, 100)
        batches = list(TokenBudgetBatchSampler(source, target, budget))
        padded, real = sum(cost(batch, source, target) for batch in batches), source.sum() + target.sum()
        assert padded <= 1.07 * real
        assert padded >= 0.93 * budget * len(batches)
        rows = [len(batch) for batch in batches]
        unsorted = np.split(random.permutation(20_000), np.cumsum(rows)[:-1])
        assert sum(cost(batch, source, target) for batch in unsorted) > 1.8 * real

    def test_the_stripe_width_with_the_least_padding_is_chosen(self):
        source, target = map(np.array, lengths_of(tokenized_rows(2000)))
        place, starts = batching._best_batch_plan(source, target, 3000)
        by_width = []
        for width in (1, 2, 4, 8):
            walk = batching._serpentine_order(source, target, width)
            cut = batching._cut(source[walk], target[walk], 3000)
            by_width.append(batching._padded_tokens(source[walk], target[walk], cut))
        walk = np.argsort(place, kind="stable")
        assert batching._padded_tokens(source[walk], target[walk], starts) == min(by_width) < by_width[0]

    def test_mistakes(self):
        with pytest.raises(
            UserError, match="row 1 has 9 source and 8 target tokens, more than a batch of 16 tokens"
        ):
            TokenBudgetBatchSampler([1, 9], [1, 8], 16)
        with pytest.raises(UserError, match="no rows"):
            TokenBudgetBatchSampler([], [], 16)
        with pytest.raises(ValueError, match="two equal lists"):
            TokenBudgetBatchSampler([1, 2], [1], 16)
        with pytest.raises(ValueError, match="at least one token"):
            TokenBudgetBatchSampler([1, 0], [1, 1], 16)

    def test_rows_of_one_sequence_count_only_its_tokens(self):
        lengths = [3, 9, 4, 4, 9, 3, 4]
        batches = list(TokenBudgetBatchSampler(lengths, None, 18))
        assert sorted(itertools.chain(*batches)) == list(range(7))
        found = sorted(sorted(lengths[row] for row in batch) for batch in batches)
        assert found == [[3, 3, 4, 4], [4, 9], [9]]  # four times 4, twice 9
        with pytest.raises(UserError, match="row 1 has 9 tokens, more than a batch of 8 tokens holds"):
            TokenBudgetBatchSampler(lengths, None, 8)
        with pytest.raises(ValueError, match="at least one token"):
            TokenBudgetBatchSampler([1, 0], None, 16)

    def test_the_largest_batches_are_halved_to_give_processes_equal_steps(self):
        def rows_of_batches(num_replicas):
            lengths = [1] * 12 + [6] * 2  # one batch of twelve rows, one of two
            sampler = TokenBudgetBatchSampler(lengths, lengths, 24, num_replicas=num_replicas)
            return sorted(len(batch) for batch in sampler)

        assert rows_of_batches(1) == [2, 12]
        assert rows_of_batches(3) == [2, 6, 6]
        assert rows_of_batches(5) == [2, 3, 3, 3, 3]

    def test_batches_of_one_row_cannot_be_halved(self):
        with pytest.raises(
            UserError, match="3 rows in batches of one cannot be shared evenly by 2 processes"
        ):
            TokenBudgetBatchSampler([5, 5, 5], [5, 5, 5], 10, num_replicas=2)

    def test_small_integers_do_not_overflow(self):
        lengths = np.full(1000, 200, dtype=np.uint8)
        assert [len(batch) for batch in TokenBudgetBatchSampler(lengths, lengths, 40_000)] == [100] * 10

    def test_processes_share_the_rows_in_equal_steps(self):
        source, target = lengths_of(tokenized_rows())
        sampler = TokenBudgetBatchSampler(source, target, 200, num_replicas=3)
        shards = [BatchSamplerShard(sampler, 3, rank, even_batches=False) for rank in range(3)]
        taken = [list(shard) for shard in shards]
        assert len({len(batches) for batches in taken}) == 1
        assert sorted(itertools.chain(*itertools.chain(*taken))) == list(range(400))

    def test_lengths_come_from_the_tokenized_rows_that_are_left(self, corpus, tokenizer):
        tokens = tokenize_corpus(corpus().split("train"), tokenizer, tokenizer, 7)
        assert len(tokens) < len(PAIRS)
        source, target = token_lengths(tokens)
        assert source.tolist() == tokens["source_length"][:]
        assert target.tolist() == tokens["target_length"][:]


class TestStream:
    @given(
        lengths=length_pairs,
        budget=st.integers(20, 300),
        buffer_size=st.integers(1, 200),
        epoch=st.integers(0, 9),
    )
    @settings(deadline=None)
    def test_a_stream_batches_each_fitting_row_once_within_the_token_budget(
        self, lengths, budget, buffer_size, epoch
    ):
        rows = [{"input_ids": [i] * s, "labels": [i] * t} for i, (s, t) in enumerate(lengths)]
        fitting = [i for i, (s, t) in enumerate(lengths) if s + t <= budget]
        report = RowReport(kept=len(rows))

        def run(report=None):
            return list(token_budget_batches(iter(rows), budget, buffer_size, 5, epoch, report))

        if not fitting:
            with pytest.raises(UserError, match="no rows"):
                run()
            return
        batches = run(report)
        taken = [[row["input_ids"][0] for row in batch] for batch in batches]
        assert sorted(itertools.chain(*taken)) == fitting
        assert all(cost(batch, *zip(*lengths, strict=True)) <= budget for batch in taken)
        assert report == RowReport(kept=len(fitting), over_long=len(rows) - len(fitting))
        assert run() == batches

    def test_the_order_depends_on_seed_epoch_and_buffer(self):
        rows = tokenized_rows()
        options = [(100, 0, 0), (100, 0, 1), (100, 1, 0), (300, 0, 0)]
        orders = [
            list(token_budget_batches(rows, 200, size, seed, epoch=epoch)) for size, seed, epoch in options
        ]
        assert all(one != other for one, other in itertools.combinations(orders, 2))

    def test_equal_buffers_are_shuffled_differently(self):
        rows = [{"input_ids": [number] * 5, "labels": [number] * 5} for number in range(30)]
        batches = list(token_budget_batches(rows * 2, 20, len(rows), 0))
        orders = [
            [row["input_ids"][0] for row in itertools.chain(*half)] for half in (batches[:15], batches[15:])
        ]
        assert [sorted(order) for order in orders] == [[*range(30)]] * 2
        assert orders[0] != orders[1]

    def test_a_stream_reads_at_most_one_buffer_ahead(self):
        read = itertools.count()

        def rows():
            for row in itertools.cycle(tokenized_rows()):
                next(read)
                yield row

        list(itertools.islice(token_budget_batches(rows(), 200, buffer_size=50), 1))
        assert next(read) <= 50 + 1

    def test_larger_buffers_pad_less(self):
        rows = tokenized_rows(4000)

        def padded(size):
            batches = token_budget_batches(rows, 400, size)
            return sum(len(b) * sum(map(max, lengths_of(b))) for b in batches)

        assert padded(4000) < padded(400) < padded(40)

    def test_rows_noised_later_count_their_planned_lengths(self):
        generator = np.random.default_rng(0)
        rows = [
            {"input_ids": [1] * 40, "source_length": int(source), "target_length": int(target)}
            for source, target in generator.integers(1, 30, (300, 2))
        ]
        found = list(token_budget_batches(rows, 50))
        for batch in found:
            longest = [max(row[name] for row in batch) for name in ("source_length", "target_length")]
            assert len(batch) * sum(longest) <= 50
        fitting = [row for row in rows if row["source_length"] + row["target_length"] <= 50]
        assert len(fitting) < 300
        assert sum(map(len, found)) == len(fitting)

    def test_a_stream_repeats_its_rows_without_end_in_new_orders(self):
        rows = tokenized_rows()
        passes = [list(token_budget_batches(rows, 200, 90, seed=1, epoch=epoch)) for epoch in range(3)]
        assert passes[0] != passes[1] != passes[2]
        expected = list(itertools.chain(*passes))
        stream = TokenBudgetStream(rows, 200, 90, seed=1)
        assert list(itertools.islice(stream, len(expected))) == expected
        for rank in range(3):
            share = TokenBudgetStream(rows, 200, 90, seed=1, num_replicas=3, rank=rank)
            assert list(itertools.islice(share, len(expected[rank::3]))) == expected[rank::3]

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_loader_collates_its_batches(self, workers):
        stream = TokenBudgetStream(tokenized_rows(), 200, 100)
        loader = DataLoader(stream, batch_size=None, collate_fn=Seq2SeqCollator(0, 1), num_workers=workers)
        for batch, rows in itertools.islice(zip(loader, stream, strict=True), 200):
            wanted = Seq2SeqCollator(0, 1)(rows)
            assert all(torch.equal(batch[name], wanted[name]) for name in wanted)

    @pytest.mark.parametrize("replicas", [1, 2, 3])
    def test_finished_passes_are_counted_and_not_read_again(self, replicas):
        rows, started = tokenized_rows(), []

        class Rows:
            def __iter__(self):
                started.append(None)
                return iter(rows)

        def share(rank, **options):
            return TokenBudgetStream(Rows(), 200, 90, seed=1, num_replicas=replicas, rank=rank, **options)

        lengths = [len(list(token_budget_batches(rows, 200, 90, seed=1, epoch=epoch))) for epoch in range(4)]
        for rank in range(replicas):
            whole = share(rank)
            expected = list(itertools.islice(whole, sum(lengths) // replicas - 1))
            assert whole.finished_passes == lengths[:3]
            started.clear()
            resumed = share(rank, finished=lengths[:2])
            found = list(itertools.islice(resumed, len(expected)))
            skipped = len(range(rank, sum(lengths[:2]), replicas))
            assert found == [*itertools.repeat([], skipped), *expected[skipped:]]
            assert len(started) == 2  # passes 3 and 4
            assert resumed.finished_passes == lengths[:3]

    def test_a_worker_counts_passes_in_shared_memory(self):
        rows = tokenized_rows()
        length = len(list(token_budget_batches(rows, 200, 100)))
        stream = TokenBudgetStream(rows, 200, 100)
        stream.share_with_worker()
        loader = DataLoader(stream, batch_size=None, collate_fn=Seq2SeqCollator(0, 1), num_workers=1)
        next(itertools.islice(loader, length, None))
        assert stream.finished_passes[:1] == [length]

    def test_rows_of_one_sequence_are_streamed_and_each_pass_is_reported(self):
        told: list[int] = []
        rows = [{"input_ids": [5] * length} for length in (3, 9, 4, 4)]
        stream = iter(TokenBudgetStream(rows, 9, on_pass=told.append))
        one_pass = [next(stream) for _ in range(3)]
        assert sorted(len(row["input_ids"]) for batch in one_pass for row in batch) == [3, 4, 4, 9]
        assert told == [0]
        next(stream)
        assert told == [0, 1]

    def test_one_process_reports_the_rows_left_out_of_a_pass(self, caplog):
        rows = [{"input_ids": [5] * length} for length in (3, 9, 4, 12)]
        for rank in (0, 1):
            caplog.clear()
            report = RowReport(kept=len(rows), empty=2)
            stream = TokenBudgetStream(rows, 8, num_replicas=2, rank=rank, report=report)
            next(itertools.islice(stream, 1, None))  # a pass has one batch
            assert "max_tokens_per_batch=8 are left out, as one of 9 tokens." in caplog.messages[0]
            ended = [message for message in caplog.messages if "has ended" in message]
            told = "Pass 1 over the stream has ended: kept 2 of 6 rows; left out: 2 empty, 2 over-long."
            assert ended[:1] == ([told] if rank == 0 else [])

    def test_several_workers_would_repeat_rows_and_are_refused(self):
        loader = DataLoader(TokenBudgetStream(tokenized_rows(), 200), batch_size=None, num_workers=2)
        with pytest.raises(UserError, match="not by 2 workers; set dataloader_num_workers to 0 or 1"):
            next(iter(loader))


class Recorder(torch.nn.Module):
    """A model that learns one number and records the rows that it received."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.shown = []

    def forward(self, input_ids, labels, **_):
        if self.training:
            self.shown.append(input_ids[:, 0].tolist())
        return {"loss": (self.weight - labels[labels >= 0].float().mean()) ** 2}


class RowTrainer(Trainer):
    def __init__(self, rows, kind, **options):
        super().__init__(model=Recorder(), train_dataset=rows, **options)
        self.rows, self.kind = rows, kind

    def get_train_dataloader(self):
        collator = Seq2SeqCollator(0, 1)
        if self.kind == "rows":
            sampler = TokenBudgetBatchSampler(*lengths_of(self.rows), 300, seed=4)
            return self.accelerator.prepare(DataLoader(self.rows, batch_sampler=sampler, collate_fn=collator))
        stream = TokenBudgetStream(self.rows, 300, 150, seed=4)
        loader = DataLoader(stream, batch_size=None, collate_fn=collator)
        return self.accelerator.prepare(loader) if self.kind == "prepared stream" else loader


class TestResuming:
    @pytest.mark.parametrize("skipped", [0, 1, 17])
    @pytest.mark.parametrize("epoch", [0, 2])
    def test_skipping_batches_leaves_the_rest_of_the_same_epoch(self, epoch, skipped):
        rows = tokenized_rows()
        sampler = TokenBudgetBatchSampler(*lengths_of(rows), 300)

        def loader():
            return DataLoader(rows, batch_sampler=sampler, collate_fn=Seq2SeqCollator(0, 1))

        whole, rest = Accelerator(cpu=True).prepare(loader()), Accelerator(cpu=True).prepare(loader())
        whole.set_epoch(epoch)
        expected = [batch["input_ids"].tolist() for batch in whole]
        rest = skip_first_batches(rest, skipped)
        rest.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert [batch["input_ids"].tolist() for batch in rest] == expected[skipped:]

    @pytest.mark.parametrize("kind", ["rows", "stream", "prepared stream"])
    @pytest.mark.parametrize("accumulation", [1, 2])
    def test_resuming_within_an_epoch_gives_the_same_batches(self, kind, accumulation, tmp_path):
        rows = tokenized_rows()

        def run(steps, resume=None):
            arguments = TrainingArguments(
                tmp_path / "run",
                max_steps=steps,
                save_strategy="steps",
                save_steps=12,
                gradient_accumulation_steps=accumulation,
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
                logging_strategy="no",
            )
            trainer = RowTrainer(rows, kind, args=arguments)
            trainer.train(resume_from_checkpoint=resume)
            return trainer.model

        whole = run(60)
        epoch = len(TokenBudgetBatchSampler(*lengths_of(rows), 300)) // accumulation
        checkpoint = next(step for step in range(12, 60, 12) if step > epoch and step % epoch)
        resumed = run(60, str(tmp_path / "run" / f"checkpoint-{checkpoint}"))
        assert len(resumed.shown) >= 60 - checkpoint
        assert resumed.shown == whole.shown[-len(resumed.shown) :]
        assert torch.equal(resumed.weight, whole.weight)


class TestCollator:
    rows = (
        {"input_ids": [5, 6, 2], "labels": [7, 2], "source_length": 3, "target_length": 2},
        {"input_ids": [8, 2], "labels": [9, 10, 11, 2], "source_length": 2, "target_length": 4},
    )

    def test_pads_and_shifts(self):
        batch = Seq2SeqCollator(pad_token_id=0, decoder_start_token_id=1)(self.rows)
        assert {name: tensor.tolist() for name, tensor in batch.items()} == {
            "input_ids": [[5, 6, 2], [8, 2, 0]],
            "attention_mask": [[1, 1, 1], [1, 1, 0]],
            "labels": [[7, 2, -100, -100], [9, 10, 11, 2]],
            "decoder_input_ids": [[1, 7, 2, 0], [1, 9, 10, 11]],
        }
        assert {tensor.dtype for tensor in batch.values()} == {torch.int64}

    @pytest.mark.parametrize("multiple", [None, 1, 4, 8])
    def test_agrees_with_the_library(self, multiple, tokenizer):
        """transformers' collator for padding and BART's shift; each leaves to the other what it lacks."""
        rows = [{"input_ids": row["input_ids"], "labels": list(row["labels"])} for row in tokenized_rows(20)]
        theirs = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=multiple)(rows)
        batch = Seq2SeqCollator(tokenizer.pad_token_id, 1, multiple)(rows)
        for name in ("input_ids", "attention_mask", "labels"):
            assert torch.equal(batch[name], theirs[name])
        shifted = shift_tokens_right(theirs["labels"], tokenizer.pad_token_id, 1)
        assert torch.equal(batch["decoder_input_ids"], shifted)

    def test_labels_that_are_ignored_already_are_padding_for_the_decoder(self):
        batch = Seq2SeqCollator(0, 1)([{"input_ids": [5], "labels": [-100, 7, 2]}])
        assert batch["labels"].tolist() == [[-100, 7, 2]]
        assert batch["decoder_input_ids"].tolist() == [[1, 0, 7]]

    def test_takes_lists_arrays_and_tensors(self):
        collator = Seq2SeqCollator(0, 1)
        expected = collator(self.rows)
        for kind in (np.array, torch.tensor):
            rows = [{name: kind(row[name]) for name in ("input_ids", "labels")} for row in self.rows]
            batch = collator(rows)
            assert all(torch.equal(batch[name], expected[name]) for name in expected)

    def test_the_model_needs_no_labels_for_its_logits(self):
        """Label smoothing takes the labels away before the model sees the batch."""
        sizes = {
            f"{side}_{what}": 1 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")
        }
        model = VaswaniForConditionalGeneration(VaswaniConfig(vocab_size=12, d_model=8, **sizes)).eval()
        batch = Seq2SeqCollator(0, 1)(self.rows)
        expected = model(**batch).logits
        del batch["labels"]
        torch.testing.assert_close(model(**batch).logits, expected)

    def test_pad_to_multiple_of_must_be_positive(self):
        with pytest.raises(ValueError, match="pad_to_multiple_of=0 must be at least 1"):
            Seq2SeqCollator(0, 1, 0)


@pytest.mark.slow
@pytest.mark.skipif(not MULTI30K.is_dir(), reason=f"needs the corpus in {MULTI30K}")
def test_a_real_corpus_is_hardly_padded():
    corpus = load_corpus(CorpusSpec(dataset=str(MULTI30K), source_field="en", target_field="de"), ["train"])
    rows = corpus.split("train")
    tokenizer = train_tokenizer(itertools.chain(rows["source"][:], rows["target"][:]), 8000)
    source, target = token_lengths(tokenize_corpus(rows, tokenizer, tokenizer))
    batches = list(TokenBudgetBatchSampler(source, target, 3000))
    padded = sum(cost(batch, source, target) for batch in batches)
    assert padded <= 1.04 * (source.sum() + target.sum())
    assert padded >= 0.98 * 3000 * len(batches)
