"""Sequences made of documents: no token lost, cut between sentences, pairs labelled correctly."""

import itertools
import random
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import Dataset
from tokenizers import normalizers

from toy_texts import toy_documents, write_texts
from vaswani.data.sources.corpus import load_corpus
from vaswani.data.sources.corpus_spec import TextCorpusSpec
from vaswani.data.text.sequences import (
    DOCUMENTS_AT_ONCE,
    DocumentParts,
    PackedBlocks,
    SegmentPairs,
    SentenceSequences,
    SlidingParts,
    make_sequences,
    read_documents,
)
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer
from vaswani.errors import UserError

TEXTS = toy_documents(60)
MASKED = train_tokenizer(TEXTS, 320, purpose="masked")
CAUSAL = train_tokenizer(TEXTS, 320, purpose="causal")
BEGIN, END = 1, 2


def made(recipe, texts: list[str] = TEXTS, tokenizer=None) -> list[dict]:
    if tokenizer is None:
        tokenizer = CAUSAL if isinstance(recipe, PackedBlocks | DocumentParts | SlidingParts) else MASKED
    return list(make_sequences(Dataset.from_dict({"text": texts}), tokenizer, recipe))


def ids_of(text: str, tokenizer) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


# ------------------------------------------------------------------------------------------------ documents


@pytest.mark.parametrize("tokenizer", [MASKED, CAUSAL, byte_tokenizer(purpose="masked")])
def test_words_and_sentences_are_found(tokenizer):
    text = "The dog's 12 cats. One\ntwo! Mr. No 3.5"
    (document,) = read_documents([text], tokenizer)
    ends = [*np.flatnonzero(document.word_starts)[1:], len(document.ids)]
    starts = np.flatnonzero(document.word_starts)
    words = [
        tokenizer.decode(document.ids[start:end]).strip(" ") for start, end in zip(starts, ends, strict=True)
    ]
    expected = ["The", "dog", "'", "s", "1", "2", "cats", ".", "One", "\n", "two", "!", "Mr", ".", "No"]
    assert words == [*expected, "3", ".", "5"]
    places = np.flatnonzero(document.sentence_starts)
    first = [words[np.searchsorted(starts, place)] for place in places]
    assert first == ["One", "\n", "Mr", "No"]
    assert set(places) <= set(starts)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("房子很老。人们喜欢它！真的？！是的。", ["房子很老。", "人们喜欢它！", "真的？！", "是的。"]),
        ("彼は「はい。」と言った。 終わり。", ["彼は「はい。」", "と言った。", " 終わり。"]),
        ("One. Two.\n", ["One.", " Two.\n"]),
        (
            'He said "Go." (It rained.) “No!” he cried.',
            ['He said "Go."', " (It rained.)", " “No!” he cried."],
        ),
        ("राम घर गया। सीता गई।", ["राम घर गया।", " सीता गई।"]),
        ("هل أنت بخير؟ نعم", ["هل أنت بخير؟", " نعم"]),
        ("\n One.\n \n\n Two", ["\n One.", "\n \n\n Two"]),
        ("One\n \nTwo \n", ["One", "\n \nTwo \n"]),
        (" \n ", [" \n "]),
        ("一。", ["一。"]),
    ],
)
def test_sentences_are_not_blank_and_need_no_white_space(text: str, sentences: list[str]):
    (document,) = read_documents([text], byte_tokenizer(purpose="masked"))
    starts = np.union1d([0], np.flatnonzero(document.sentence_starts))
    begins = [*document.characters[starts, 0], len(text)]
    assert [text[begin:end] for begin, end in itertools.pairwise(begins)] == sentences


def test_text_that_looks_like_a_special_token_is_text():
    (document,) = read_documents(["a <mask> and </s>"], MASKED)
    assert not set(document.ids) & set(MASKED.all_special_ids)


# ----------------------------------------------------------------------------------------------- for decoders


@pytest.mark.parametrize("length", [8, 16, 64, 10_000])
def test_packed_blocks_hold_every_token_once_as_a_label(length):
    line = list(itertools.chain(*([BEGIN, *ids_of(text, CAUSAL), END] for text in TEXTS)))
    rows = made(PackedBlocks(length))
    assert line == rows[0]["input_ids"][:1] + list(itertools.chain(*(row["input_ids"][1:] for row in rows)))
    assert all(row["length"] == len(row["input_ids"]) == length for row in rows[:-1])
    for before, after in itertools.pairwise(rows):
        assert before["input_ids"][-1] == after["input_ids"][0]


@pytest.mark.parametrize(("length", "stride"), [(16, 15), (16, 5), (16, 1), (5, 4), (4000, 100)])
def test_overlapping_parts_hold_every_token_once_as_a_label_with_a_long_context(length, stride):
    rows = iter(made(SlidingParts(length, stride)))
    for text in TEXTS:
        whole, labels = [BEGIN, *ids_of(text, CAUSAL), END], []
        while len(labels) < len(whole) - 1:
            row, start = next(rows), len(labels) + 1
            begin = start - row["context"]  # where the block begins
            assert row["input_ids"] == whole[begin : begin + length]
            assert row["context"] >= (1 if begin == 0 else length - stride)
            labels += row["input_ids"][row["context"] :]
        assert labels == whole[1:]
    assert next(rows, None) is None
    if stride == length - 1:
        assert [row["input_ids"] for row in made(SlidingParts(length, stride))] == [
            row["input_ids"] for row in made(DocumentParts(length))
        ]


def test_parts_hold_one_document_each():
    rows = made(DocumentParts(16))
    found = iter(rows)
    for text in TEXTS:
        whole = [BEGIN, *ids_of(text, CAUSAL), END]
        part = next(found)["input_ids"]
        while len(part) < len(whole):
            part = part + next(found)["input_ids"][1:]
        assert part == whole
    assert next(found, None) is None
    assert max(row["length"] for row in rows) == 16


# ----------------------------------------------------------------------------------------------- for encoders


@pytest.mark.parametrize("length", [8, 24, 60])
def test_sentence_sequences_hold_every_token_once(length):
    rows = iter(made(SentenceSequences(length)))
    for document in read_documents(TEXTS, MASKED):
        found, starts = [], []
        while len(found) < len(document.ids):
            row = next(rows)
            assert len(row["word_starts"]) == row["length"] <= length
            assert (row["input_ids"][0], row["input_ids"][-1]) == (BEGIN, END)
            found += row["input_ids"][1:-1]
            starts += row["word_starts"][1:-1]
        assert found == document.ids.tolist()
        assert starts == document.word_starts.tolist()
    assert next(rows, None) is None


def test_sequences_end_between_sentences_else_between_words():
    text = "One two three. Four five six seven eight nine ten eleven twelve thirteen. Ten."
    lengths = {len(ids_of(part, MASKED)) for part in ("One two three.", "Ten.")}
    rows = made(SentenceSequences(2 + max(lengths) + 3), [text])
    texts = [MASKED.decode(row["input_ids"], skip_special_tokens=True) for row in rows]
    assert texts[0] == "One two three."
    assert texts[-1] == "Ten."
    words = [word for part in texts for word in part.split()]
    assert words == text.split()


def segments(row: dict, tokenizer) -> tuple[str, str]:
    """The texts of a pair, checked against its token types."""
    ids, types = np.array(row["input_ids"]), np.array(row["token_type_ids"])
    first, second = ids[types == 0], ids[types == 1]
    assert (first[0], first[-1], second[-1]) == (BEGIN, END, END)
    assert len(first) > 2
    assert len(second) > 1
    assert (np.diff(types) >= 0).all()
    return tuple(tokenizer.decode(part, skip_special_tokens=True) for part in (first, second))


LETTERS = str.maketrans("0123456789", "abcdefghij")


def counting(documents: int) -> list[str]:
    """Texts of consecutive numbers, each text from its own thousand, in sentences of one to nine words."""
    generator = random.Random(0)
    texts = []
    for document in range(documents):
        words = [
            str(10_000 + 1000 * document + i).translate(LETTERS) for i in range(generator.randint(9, 90))
        ]
        for place in generator.sample(range(len(words)), len(words) // 5):
            words[place] += "."
        texts.append(" ".join(words))
    return texts


def numbers(words: list[str]) -> list[int]:
    return [int(word.translate(str.maketrans("abcdefghij", "0123456789"))) for word in words]


def test_labels_of_pairs_are_right():
    texts = counting(80)
    tokenizer = train_tokenizer(texts, 400, purpose="masked")
    rows = made(SegmentPairs(60), texts, tokenizer)
    assert len(rows) > 200
    cut = 0
    for row in rows:
        assert row["length"] <= 60
        parts = [text.replace(".", "").split() for text in segments(row, tokenizer)]
        if not all(parts) or any(len(word) != 5 for part in parts for word in part):
            cut += 1  # a short pair, of one word cut in two
            continue
        first, second = map(numbers, parts)
        for segment in (first, second):
            assert segment == list(range(segment[0], segment[0] + len(segment)))
        if row["next_sentence_label"] == 0:
            assert second[0] == first[-1] + 1
        else:
            assert second[0] // 1000 != first[0] // 1000
    assert cut < 0.1 * len(rows)
    share = np.mean([row["next_sentence_label"] for row in rows])
    assert abs(share - 0.5) < 5 * (0.25 / len(rows)) ** 0.5


def test_every_token_is_in_a_first_or_a_true_second_segment():
    for seed in (0, 1):
        rows = iter(made(SegmentPairs(30, seed), TEXTS))
        row = next(rows)
        for text in TEXTS:
            ids, found = ids_of(text, MASKED), []
            while row is not None and len(found) < len(ids) - 1:  # one token alone makes no pair
                types = np.array(row["token_type_ids"])
                keep = types == 0 if row["next_sentence_label"] else types < 2
                tokens = [token for token in np.array(row["input_ids"])[keep].tolist() if token > END]
                found += tokens
                row = next(rows, None)
            assert found == ids[: len(found)]


def test_pairs_are_drawn_from_the_seed():
    first, again, other = (made(SegmentPairs(40, seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "recipe", [PackedBlocks(8), DocumentParts(8), SlidingParts(8, 3), SentenceSequences(8), SegmentPairs(8)]
)
def test_no_sequence_is_made_of_a_document_without_tokens(recipe):
    """A sequence of only special tokens has nothing to learn."""
    purpose = "causal" if isinstance(recipe, PackedBlocks | DocumentParts | SlidingParts) else "masked"
    tokenizer = train_tokenizer(TEXTS, 320, purpose=purpose)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("~", "")
    rows = made(recipe, ["~", TEXTS[0], "~~", TEXTS[1]], tokenizer)
    assert all(set(row["input_ids"]) - {BEGIN, END} for row in rows)
    if not isinstance(recipe, SegmentPairs):  # which draws
        assert rows == made(recipe, TEXTS[:2], tokenizer)
    with pytest.raises(UserError, match="none of 2 documents is long enough"):
        made(recipe, ["~", "~"], tokenizer)


def test_pairs_need_two_documents():
    with pytest.raises(UserError, match="needs two documents or more"):
        made(SegmentPairs(40), TEXTS[:1])


@pytest.mark.slow
def test_no_batch_holds_one_document_alone():
    texts = counting(1) * DOCUMENTS_AT_ONCE + ["The dog sleeps. The cat sings. " * 40]
    last = made(SegmentPairs(40), texts)[-8:]
    assert any(row["next_sentence_label"] for row in last)


# ----------------------------------------------------------------------------------------- streams and cache


@pytest.mark.parametrize("recipe", [PackedBlocks(16), SentenceSequences(16), SegmentPairs(16)])
def test_a_stream_gives_the_same_sequences(tmp_path, monkeypatch, recipe):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = write_texts(tmp_path, train=30)
    tokenizer = CAUSAL if isinstance(recipe, PackedBlocks) else MASKED
    found = []
    for streaming in (True, False):
        texts = load_corpus(TextCorpusSpec(**files, streaming=streaming)).split("train")
        rows = make_sequences(texts, tokenizer, recipe)
        found.append([{name: np.asarray(value).tolist() for name, value in row.items()} for row in rows])
    assert found[0] == found[1]
    assert found[0]


def test_the_cache_key_of_sequences_covers_every_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    texts = load_corpus(TextCorpusSpec(**write_texts(tmp_path, train=30))).split("train")

    def files() -> set[Path]:
        return set((tmp_path / "cache" / "vaswani").glob("tokens-*"))

    counts = []
    for tokenizer, recipe in [
        (MASKED, SentenceSequences(16)),
        (MASKED, SentenceSequences(16)),
        (MASKED, SentenceSequences(24)),
        (MASKED, SegmentPairs(16)),
        (MASKED, SegmentPairs(16, seed=1)),
        (CAUSAL, PackedBlocks(16)),
        (CAUSAL, DocumentParts(16)),
        (byte_tokenizer(purpose="causal"), DocumentParts(16)),
    ]:
        make_sequences(texts, tokenizer, recipe)
        counts.append(len(files()))
    assert counts == [1, 1, 2, 3, 4, 5, 6, 7]


def test_a_tenth_of_the_pairs_is_shorter():
    """As in BERT's code, so that models see short texts."""
    rows = made(SegmentPairs(40), [" ".join(TEXTS)] * 30)
    lengths = np.array([len(row["input_ids"]) for row in rows])
    assert len(lengths) > 1000
    assert 0.02 < (lengths < 20).mean() < 0.12
