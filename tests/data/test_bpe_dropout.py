"""BPE dropout splits words as the paper's algorithm does and leaves the text unchanged."""

import collections
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from given_tokenizers import write_sentencepiece
from vaswani.data.batching import TokenBudgetBatchSampler, token_budget_batches
from vaswani.data.bpe_dropout import BpeDropout, BpeDropoutDataset, PairSplitter
from vaswani.data.sentencepiece_models import sentencepiece_tokenizer
from vaswani.data.sources.dates import generate_dates
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError

TEXTS = ["mercredi 27 janvier", "dimanche 3 janvier", "mercredi  5\tjanvier!", "l'été — 2,5 ½", ""]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, 320)


def split(tokenizer: Any, texts: list[str], p: float, seed: int = 0) -> list[list[int]]:
    dropout = BpeDropout(tokenizer, p)
    rows = tokenizer(texts)["input_ids"]
    new = dropout.split(rows, dropout.word_starts(rows), np.random.default_rng(seed))
    return [row.tolist() for row in new]


def by_the_paper(word: list[str], merges: list[tuple[str, str]], p: float, draw: random.Random) -> list[str]:
    """Algorithm 1 of the paper."""
    while True:
        pairs = [pair for pair in itertools.pairwise(word) if pair in merges]
        possible = [merges.index(pair) for pair in pairs if draw.random() >= p]
        if not possible:
            return word
        first, second = merges[min(possible)]
        at = next(i for i in range(len(word)) if word[i : i + 2] == [first, second])
        word = [*word[:at], first + second, *word[at + 2 :]]


def test_splits_have_the_papers_frequencies():
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("abc", "d")]
    names = ["a", "b", "c", "d", *(a + b for a, b in merges)]
    vocabulary = {name: i for i, name in enumerate(dict.fromkeys(names))}
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, merges)))
    found = collections.Counter(
        " ".join(words.convert_ids_to_tokens(row)) for row in split(words, ["abcd"] * 20_000, 0.3)
    )
    draw = random.Random(0)
    expected = collections.Counter(
        " ".join(by_the_paper(list("abcd"), merges, 0.3, draw)) for _ in range(20_000)
    )
    assert found.keys() == expected.keys()
    for way, count in expected.items():
        assert abs(found[way] - count) < 6 * (2 * count) ** 0.5 + 6, way


def of_the_library(kind: str) -> PreTrainedTokenizerFast:
    """BPE tokenizers that mark the beginnings of words, their ends, or the tokens inside them."""
    option = {"suffix": {"end_of_word_suffix": "</w>"}, "prefix": {"continuing_subword_prefix": "##"}}.get(
        kind, {}
    )
    words = Tokenizer(models.BPE(unk_token="<unk>", **option))
    words.pre_tokenizer = pre_tokenizers.Metaspace() if kind == "mark" else pre_tokenizers.Whitespace()
    words.decoder = {
        "mark": decoders.Metaspace(),
        "suffix": decoders.BPEDecoder(),
        "prefix": decoders.WordPiece(cleanup=False),
    }[kind]
    words.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=80, special_tokens=["<unk>"], show_progress=False, **option)
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")


SENTENCES = [" ".join(words) for words in itertools.permutations(["teacher", "station", "nation", "reaches"])]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """A vocabulary whose merges are all the ways to form a piece, and that splits no text into words."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    file = write_sentencepiece(folder / "bpe.model", SENTENCES, vocab_size=34, model_type="bpe")
    return sentencepiece_tokenizer(file)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_splits_the_words_of_sentencepiece_as_the_paper(p, sentencepiece):
    model = json.loads(sentencepiece.backend_tokenizer.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    draw = random.Random(0)
    lengths = [
        sum(len(by_the_paper([*f"▁{word}"], merges, p, draw)) for word in text.split())
        for text in SENTENCES * 20
    ]
    found = [len(row) for row in split(sentencepiece, SENTENCES * 20, p)]
    assert np.mean(found) == pytest.approx(np.mean(lengths), rel=0.02)


def test_full_dropout_gives_the_characters_of_sentencepiece(sentencepiece):
    for row, text in zip(split(sentencepiece, SENTENCES, 1.0), SENTENCES, strict=True):
        assert sentencepiece.convert_ids_to_tokens(row) == [*f"▁{text}".replace(" ", "▁")]


def test_full_dropout_gives_the_symbols_of_a_piece_whose_parts_are_listed_later():
    merges = [("a", "bc"), ("ab", "c"), ("a", "b"), ("b", "c")]
    vocabulary = {name: i for i, name in enumerate(("a", "b", "c", "ab", "bc", "abc"))}
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocabulary, merges)))
    assert words(["abc"])["input_ids"] == [[5]] == split(words, ["abc"], 0.0)
    assert split(words, ["abc"], 1.0) == [[0, 1, 2]]


def test_pieces_may_cross_words(tmp_path):
    file = write_sentencepiece(
        tmp_path / "bpe.model",
        ["the end of the day"] * 9,
        vocab_size=40,
        model_type="bpe",
        split_by_whitespace=False,
    )
    tokenizer = sentencepiece_tokenizer(file)
    (row,) = tokenizer(["the end of the day"])["input_ids"]
    assert "▁" in tokenizer.convert_ids_to_tokens(row)[0].removeprefix("▁")
    assert split(tokenizer, ["the end of the day"], 0.0) == [row]


def test_rows_that_stay_whole_are_counted(sentencepiece, caplog):
    texts = ["nation", "Ω", "Ω nation"]
    rows = {
        "input_ids": sentencepiece(texts)["input_ids"],
        "labels": sentencepiece(SENTENCES[:3])["input_ids"],
    }
    splitter = PairSplitter(BpeDropout(sentencepiece, 0.5), BpeDropout(sentencepiece, 0.5), 90, 90, 900)
    dataset = BpeDropoutDataset(Dataset.from_dict(rows), splitter, seed=0)
    told = (
        "bpe_dropout leaves 2 sources of 3 rows whole, whose tokens do not give their text again, as with "
        "unknown tokens"
    )
    for epoch in (0, 1):
        dataset.lengths_of_epoch(epoch)
    assert caplog.messages == [told]
    caplog.clear()
    of_stream = PairSplitter(BpeDropout(sentencepiece, 0.5), BpeDropout(sentencepiece, 0.5), 90, 90, 900)
    for _ in range(2):
        of_stream(list(dataset.rows), np.random.default_rng(0))
    assert caplog.messages == [told]


@pytest.mark.parametrize("kind", ["ours", "mark", "suffix", "prefix", "sentencepiece"])
def test_dropout_keeps_the_text_and_zero_dropout_keeps_the_tokens(kind, tokenizer, sentencepiece):
    used = {"ours": tokenizer, "sentencepiece": sentencepiece}.get(kind) or of_the_library(kind)
    texts = SENTENCES if kind == "sentencepiece" else TEXTS
    rows = used(texts)["input_ids"]
    assert split(used, texts, 0.0) == rows
    for p in (0.2, 1.0):
        new = split(used, texts, p)
        assert sum(map(len, new)) > sum(map(len, rows))
        assert used.batch_decode(new) == used.batch_decode(rows)


def test_more_dropout_gives_longer_rows_up_to_symbols(tokenizer):
    lengths = [sum(map(len, split(tokenizer, TEXTS * 20, p))) for p in (0.0, 0.2, 0.6, 1.0)]
    assert lengths == sorted(set(lengths))
    assert [len(row) for row in split(tokenizer, TEXTS[:2], 1.0)] == [
        len(text.encode()) + 2 for text in TEXTS[:2]
    ]


def test_splits_are_a_function_of_the_generator(tokenizer):
    assert split(tokenizer, TEXTS, 0.5, seed=1) == split(tokenizer, TEXTS, 0.5, seed=1)
    assert split(tokenizer, TEXTS, 0.5, seed=1) != split(tokenizer, TEXTS, 0.5, seed=2)


def test_a_row_that_its_decoded_text_does_not_reproduce_keeps_its_tokens(tokenizer):
    dropout = BpeDropout(tokenizer, 1.0)
    row = [*tokenizer("janvier")["input_ids"][:-1], tokenizer.bos_token_id, tokenizer.eos_token_id]
    assert dropout.word_starts([row])[0].all()


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_dropout_is_a_probability(tokenizer, p):
    with pytest.raises(UserError, match="not a probability"):
        BpeDropout(tokenizer, p)


def test_dropout_needs_bpe():
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(UserError, match="WordLevel"):
        BpeDropout(words, 0.1)


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_dropout_needs_merges(kind):
    tokenizer = train_tokenizer(["ein Text"] * 3, 300, kind=kind)
    with pytest.raises(UserError, match="skips merges, and this tokenizer has none"):
        BpeDropout(tokenizer, 0.1)


# ------------------------------------------------------------------------------------------ rows and batches


@pytest.fixture(scope="module")
def dates():
    rows = generate_dates(["de", "fr"], train_rows=600, validation_rows=0, test_rows=0)["train"]
    used = train_tokenizer([text for row in rows for text in (row["source"], row["target"])], 400)
    columns = {
        name: used([row[side] for row in rows])["input_ids"]
        for name, side in (("input_ids", "source"), ("labels", "target"))
    }
    return used, Dataset.from_dict(columns)


def splitter(tokenizer: Any, p: float = 0.2, longest: int = 100, max_tokens: int = 1000) -> PairSplitter:
    dropout = BpeDropout(tokenizer, p)
    return PairSplitter(dropout, dropout, longest, longest, max_tokens)


def test_each_epoch_has_its_own_reproducible_segmentation(dates):
    tokenizer, rows = dates
    anew = BpeDropoutDataset(rows, splitter(tokenizer), seed=3)
    epochs = []
    for epoch in (0, 1, 0):
        lengths = anew.lengths_of_epoch(epoch)
        found = [anew[i] for i in range(len(anew))]
        assert [len(row["input_ids"]) for row in found] == lengths[0].tolist()
        assert [len(row["labels"]) for row in found] == lengths[1].tolist()
        epochs.append([row["input_ids"].tolist() for row in found])
    assert epochs[0] == epochs[2] != epochs[1]
    assert tokenizer.batch_decode(epochs[1]) == tokenizer.batch_decode(rows["input_ids"][:])
    other = BpeDropoutDataset(rows, splitter(tokenizer), seed=4)
    other.lengths_of_epoch(0)
    assert [other[i]["input_ids"].tolist() for i in range(len(other))] != epochs[0]


@pytest.mark.parametrize("limit", ["longest", "max_tokens"])
def test_a_row_that_would_exceed_a_limit_keeps_its_tokens(dates, limit):
    tokenizer, rows = dates
    longest = {"longest": 12, "max_tokens": 24}[limit]
    new = splitter(tokenizer, 1.0, **{limit: longest})(rows.to_list(), np.random.default_rng(0))
    kept = [list(row["input_ids"]) == old for row, old in zip(new, rows["input_ids"][:], strict=True)]
    fits = [
        max(len(row["input_ids"]), len(row["labels"])) <= 12
        if limit == "longest"
        else len(row["input_ids"]) + len(row["labels"]) <= 24
        for row in new
    ]
    assert any(kept)
    assert all(kept or fits for kept, fits in zip(kept, fits, strict=True))


def test_each_epoch_has_as_many_batches_with_hardly_any_padding(dates):
    tokenizer, rows = dates
    anew = BpeDropoutDataset(rows, splitter(tokenizer), seed=0)
    first = anew.lengths_of_epoch(0)
    sampler = TokenBudgetBatchSampler(*first, 1000, lengths_of_epoch=anew.lengths_of_epoch, num_replicas=2)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        source, target = anew.lengths_of_epoch(epoch)
        batches = list(sampler)
        assert sorted(row for batch in batches for row in batch) == list(range(len(rows)))
        assert len(batches) == len(sampler)
        costs = [len(batch) * (source[batch].max() + target[batch].max()) for batch in batches]
        assert max(costs) <= 1000 * 1.1
        assert sum(costs) < 1.1 * (source.sum() + target.sum())


def test_each_pass_of_a_stream_has_its_own_segmentation(dates):
    tokenizer, rows = dates

    def one_pass(epoch: int) -> list[list[int]]:
        batches = token_budget_batches(rows, 1000, 200, seed=0, epoch=epoch, splitter=splitter(tokenizer))
        return [np.asarray(row["input_ids"]).tolist() for batch in batches for row in batch]

    passes = [one_pass(epoch) for epoch in (0, 1, 0)]
    assert [[int(token) for token in row] for row in passes[0]] == [
        [int(t) for t in row] for row in passes[2]
    ]
    texts = [sorted(tokenizer.batch_decode(rows)) for rows in passes]
    assert texts[0] == texts[1] == sorted(tokenizer.batch_decode(rows["input_ids"][:]))
    assert sorted(map(len, passes[0])) != sorted(map(len, passes[1]))


def test_equal_neighbours_are_merged_from_the_left():
    tokenizer = train_tokenizer(["aa aa aa aa b"] * 4, 270)
    assert split(tokenizer, ["aaa", "aaaaa"], 0.0) == tokenizer(["aaa", "aaaaa"])["input_ids"]
