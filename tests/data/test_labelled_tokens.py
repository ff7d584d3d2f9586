"""Token ids and targets of labelled rows, and batches of them."""

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toy_labels import toy_rows, toy_tokenizer
from vaswani.data.labels.labelled_tokens import LabelCollator, tokenize_labelled
from vaswani.data.sources.row_report import RowReport
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer
from vaswani.errors import UserError


def tokenize(rows: list[dict], max_length: int | None = None, truncate: bool = True, target=None, **options):
    report = RowReport(kept=len(rows))
    tokenizer = options.get("tokenizer", toy_tokenizer())
    target = target or (lambda row: row["label"])
    data = Dataset.from_list(rows)
    return tokenize_labelled(data, tokenizer, target, max_length, report, truncate), report


def test_texts_have_the_tokens_that_the_tokenizer_gives():
    rows = list(toy_rows("classification", 30, seed=0))
    tokens, report = tokenize(rows, target=lambda row: len(row["label"]))
    expected = toy_tokenizer()([row["text"] for row in rows])
    assert tokens["input_ids"][:] == expected["input_ids"]
    assert tokens["length"][:] == list(map(len, expected["input_ids"]))
    assert tokens["labels"][:] == [len(row["label"]) for row in rows]
    assert tokens["text"][:] == [row["text"] for row in rows]
    assert report == RowReport(kept=30)


def test_pairs_have_both_texts_and_their_types():
    rows = [{"text": "the film", "text_pair": "was good", "label": 1}]
    tokens, _ = tokenize(rows)
    expected = toy_tokenizer()("the film", "was good")
    assert tokens[0]["input_ids"] == expected["input_ids"]
    assert tokens[0]["token_type_ids"] == expected["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]


def test_long_texts_are_cut_off_as_the_tokenizer_does_it():
    rows = [{"text": "the film was good", "label": 0}, {"text": "the film", "label": 1}]
    tokens, report = tokenize(rows, max_length=5)
    expected = toy_tokenizer()([row["text"] for row in rows], truncation=True, max_length=5)
    assert tokens["input_ids"][:] == expected["input_ids"]
    assert tokens["length"][:] == [5, 4]
    assert (report.kept, report.truncated, report.over_long) == (2, 1, 0)


def test_without_truncation_long_rows_are_left_out():
    rows = [{"text": ["the", "film", "was", "good"], "label": 0}, {"text": ["bad"], "label": 1}]
    tokens, report = tokenize(rows, max_length=5, truncate=False)
    assert tokens["label"][:] == [1]
    assert (report.kept, report.truncated, report.over_long) == (1, 0, 1)
    with pytest.raises(UserError, match="none of 1 rows has 5 tokens or less"):
        tokenize(rows[:1], max_length=5, truncate=False)


def test_the_tokenizer_does_not_keep_the_limit():
    tokenizer = train_tokenizer(["the film was good"], 262, purpose="masked")
    tokenize([{"text": "the film was good", "label": 0}], max_length=5, tokenizer=tokenizer)
    assert tokenizer.backend_tokenizer.truncation is None


def test_rows_of_special_tokens_alone_are_left_out():
    tokenizer = train_tokenizer(["a film"], 262, purpose="masked")  # takes "</s>" in a text for the token
    rows = [{"text": text, "label": 0} for text in ("a", "</s><s>", "a </s>")]
    tokens, report = tokenize(rows, tokenizer=tokenizer)
    assert tokens["text"][:] == ["a", "a </s>"]
    assert (report.kept, report.empty) == (2, 1)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_limit_that_leaves_only_special_tokens_is_refused(pairs):
    special = toy_tokenizer().num_special_tokens_to_add(pair=pairs)
    row = {"text": "the film", "label": 0} | ({"text_pair": "was good"} if pairs else {})
    tokenize([row], max_length=special + 1)
    for most in range(special + 1):
        with pytest.raises(UserError, match=f"max_length={most} has no room beside {special} special"):
            tokenize([row], max_length=most)


def test_words_are_split_as_in_a_text_and_know_where_they_begin():
    """A word outside the vocabulary has several tokens; the first one counts."""
    words = ["the", "unbelievable", "film"]
    tokens, _ = tokenize([{"text": words, "label": [0, 1, 2]}], target=lambda row: row["word_starts"])
    tokenizer = toy_tokenizer()
    assert tokens[0]["input_ids"] == tokenizer(" ".join(words))["input_ids"]
    starts = tokens[0]["labels"]
    assert len(starts) == 3
    assert tokenizer.convert_ids_to_tokens([tokens[0]["input_ids"][place] for place in starts]) == [
        "Ġthe",
        "Ġ",
        "Ġfilm",
    ]


@pytest.mark.parametrize("kind", ["gpt2", "bytes"])
def test_words_keep_the_leading_space_of_byte_level_tokens(kind):
    """For tokenizers that do not add a space before a word."""
    tokenizer = byte_tokenizer(purpose="masked")
    if kind == "gpt2":
        backend = train_tokenizer(["the film was"] * 4, 300).backend_tokenizer
        backend.normalizer, backend.pre_tokenizer = None, pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    words = ["the", "film", "was"]
    assert tokenizer(words, is_split_into_words=True)["input_ids"] != tokenizer("the film was")["input_ids"]
    rows = [{"text": words, "label": [0, 1, 2]}]
    tokens, _ = tokenize(rows, tokenizer=tokenizer, target=lambda row: row["word_starts"])
    assert tokens[0]["input_ids"] == tokenizer("the film was")["input_ids"]
    first = [tokens[0]["input_ids"][place] for place in tokens[0]["labels"]]
    assert [token[0] for token in tokenizer.convert_ids_to_tokens(first)] == ["t", "Ġ", "Ġ"]


def test_truncated_words_have_no_position():
    rows = [{"text": ["the", "film", "was", "good"], "label": [0] * 4}]
    tokens, _ = tokenize(rows, max_length=5, target=lambda row: row["word_starts"])
    assert tokens[0]["labels"] == [1, 2, 3]


def word_tokenizer(unk_token: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, whose normalizer removes joiners."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Replace("\u200d", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unk_token)


def test_a_word_that_tokenizes_to_nothing_becomes_the_unknown_token():
    rows = [{"text": ["a", "\u200d", "b"], "label": [0, 1, 2]}]
    tokens, _ = tokenize(rows, tokenizer=word_tokenizer("[UNK]"), target=lambda row: row["word_starts"])
    assert tokens[0]["input_ids"] == [1, 0, 2]
    assert tokens[0]["labels"] == [0, 1, 2]
    with pytest.raises(UserError, match="the tokenizer has no token for the word"):
        tokenize(rows, tokenizer=word_tokenizer(None))


def test_max_length_must_leave_room_for_a_token():
    with pytest.raises(UserError, match="max_length=2 has no room beside 2 special tokens; give 3 or more"):
        tokenize([{"text": "a", "label": 0}], max_length=2)


@pytest.mark.parametrize(
    ("labels", "dtype", "shape"),
    [
        ([2, 0], torch.int64, (2,)),
        ([1.5, -2.0], torch.float32, (2,)),
        ([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]], torch.float32, (2, 3)),
        ([[-100, 4, 2], [-100, 1]], torch.int64, (2, 3)),
    ],
    ids=["classification", "regression", "multi_label", "tagging"],
)
def test_batches_are_padded_on_the_right(labels, dtype, shape):
    ids = [[5, 6, 7], [8, 9]]
    rows = [{"input_ids": ids[i], "labels": labels[i], "text": "passed over"} for i in range(2)]
    batch = LabelCollator(pad_token_id=3)(rows)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert (batch["labels"].dtype, batch["labels"].shape) == (dtype, shape)
    padded = [[*row, -100][:3] if isinstance(row, list) else row for row in labels]
    assert batch["labels"].tolist() == padded
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}


def test_token_types_are_padded_too():
    rows = [{"input_ids": [5] * n, "token_type_ids": [1] * n, "labels": 0} for n in (3, 1)]
    batch = LabelCollator(pad_token_id=3)(rows)
    assert batch["token_type_ids"].tolist() == [[1, 1, 1], [1, 0, 0]]
