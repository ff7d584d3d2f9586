"""Masking: the share of tokens, their replacements, tokens never masked, and reproducibility."""

import multiprocessing
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from toy_texts import toy_documents
from vaswani.data.text.masking import MaskingCollator
from vaswani.data.text.sequences import SegmentPairs, SentenceSequences, make_sequences
from vaswani.data.tokenization import train_tokenizer
from vaswani.errors import UserError

TEXTS = toy_documents(200)
TOKENIZER = train_tokenizer(TEXTS, 300, purpose="masked")  # so few merges that most words are several tokens
MASK, SPECIAL = TOKENIZER.mask_token_id, TOKENIZER.all_special_ids


@dataclass
class Texts:
    """A minimal data set."""

    rows: list

    def __getitem__(self, place):
        return self.rows[place]

    def __len__(self):
        return len(self.rows)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return list(sequences(SentenceSequences(40)))


def sequences(recipe):
    return make_sequences(Dataset.from_dict({"text": TEXTS}), TOKENIZER, recipe)


def masked(rows: list[dict], epochs: int = 1, **options) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, model inputs and labels of all rows in all epochs, concatenated."""
    collator = MaskingCollator(TOKENIZER, **options)
    found = []
    for epoch in range(epochs):
        collator.set_epoch(epoch)
        found += [(np.array(row["input_ids"]), *collator.mask(row)) for row in rows]
    return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def assert_share(successes: int, trials: int, probability: float) -> None:
    """Within five standard deviations of a binomial."""
    deviation = (trials * probability * (1 - probability)) ** 0.5
    assert abs(successes - trials * probability) < 5 * deviation, (successes / trials, probability)


# Short rows, which always have a token masked, would have more than their share.


@pytest.mark.slow
@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_shares_are_those_of_the_paper(rows, probability):
    tokens, seen, labels = masked([row for row in rows if row["length"] > 30], 50, probability=probability)
    ordinary = ~np.isin(tokens, SPECIAL)
    chosen = labels != -100
    assert_share(chosen.sum(), ordinary.sum(), probability)
    hidden = chosen & (seen == MASK)
    other = chosen & (seen != MASK) & (seen != tokens)
    stays = chosen & (seen == tokens)
    by_chance = 0.1 / (len(TOKENIZER) - len(SPECIAL))  # a random token is the right one
    assert_share(hidden.sum(), chosen.sum(), 0.8)
    assert_share(other.sum(), chosen.sum(), 0.1 - by_chance)
    assert_share(stays.sum(), chosen.sum(), 0.1 + by_chance)


def test_only_chosen_tokens_have_labels_and_change(rows):
    tokens, seen, labels = masked(rows, 3)
    chosen = labels != -100
    assert (labels[chosen] == tokens[chosen]).all()
    assert (seen[~chosen] == tokens[~chosen]).all()
    assert not np.isin(tokens[chosen], SPECIAL).any()
    assert not np.isin(seen[chosen & (seen != MASK)], SPECIAL).any()
    random_tokens = np.unique(seen[chosen & (seen != MASK) & (seen != tokens)])
    assert len(random_tokens) > 0.5 * len(TOKENIZER)  # any may come


def test_words_are_masked_as_a_whole(rows):
    split = 0
    for row in rows:
        word = np.cumsum(row["word_starts"])
        for whole_words in (True, False):
            _, labels = MaskingCollator(TOKENIZER, 0.3, whole_words).mask(row)
            chosen = labels != -100
            words = [chosen[word == number] for number in np.unique(word)]
            if whole_words:
                assert all(tokens.all() or not tokens.any() for tokens in words)
            else:
                split += sum(tokens.any() and not tokens.all() for tokens in words)
    assert split > len(rows)  # without the option, most rows have such a word


def test_whole_words_keep_the_share(rows):
    tokens, _, labels = masked([row for row in rows if row["length"] > 30], 50, whole_words=True)
    share = (labels != -100).sum() / (~np.isin(tokens, SPECIAL)).sum()
    assert share == pytest.approx(0.15, abs=0.01)


def test_every_row_has_at_least_one_masked_token(rows):
    for row in rows:
        _, labels = MaskingCollator(TOKENIZER, probability=1e-9).mask(row)
        assert (labels != -100).sum() == 1
    nothing = {"input_ids": [1, 2], "word_starts": [True, True]}
    assert (MaskingCollator(TOKENIZER).mask(nothing)[1] == -100).all()


# --------------------------------------------------------------------------------------- what can be repeated


def test_masks_depend_on_seed_epoch_and_row_alone(rows):
    batch, other = rows[:4], rows[2:9]
    collator = MaskingCollator(TOKENIZER, seed=3)
    first = collator(batch)
    torch.manual_seed(7)
    collator(other)
    again = collator(list(reversed(batch)))
    for name in ("input_ids", "labels"):
        assert torch.equal(again[name].flip(0), first[name])
    collator.set_epoch(1)
    assert not torch.equal(collator(batch)["labels"], first["labels"])
    assert not torch.equal(MaskingCollator(TOKENIZER, seed=4)(batch)["labels"], first["labels"])
    collator.set_epoch(0)
    assert torch.equal(collator(batch)["labels"], first["labels"])


def test_persistent_workers_see_the_new_epoch(rows):
    collator = MaskingCollator(TOKENIZER)
    options = {"batch_size": 4, "collate_fn": collator}
    context = multiprocessing.get_context("fork")
    loader = DataLoader(
        Texts(rows[:8]), num_workers=1, persistent_workers=True, multiprocessing_context=context, **options
    )
    epochs = []
    for epoch in (0, 1):
        collator.set_epoch(epoch)
        epochs.append(list(loader))
        here = list(DataLoader(Texts(rows[:8]), **options))
        for mine, theirs in zip(here, epochs[-1], strict=True):
            assert torch.equal(mine["labels"], theirs["labels"])
    assert not torch.equal(epochs[0][0]["labels"], epochs[1][0]["labels"])


# --------------------------------------------------------------------------------------------------- batches


def test_batches_are_padded():
    rows = sorted(sequences(SegmentPairs(24)), key=lambda row: row["length"])[:: len(TEXTS) // 10]
    batch = MaskingCollator(TOKENIZER)(rows)
    assert batch.keys() == {
        *("input_ids", "attention_mask", "labels", "token_type_ids", "next_sentence_label")
    }
    lengths = [row["length"] for row in rows]
    assert batch["input_ids"].shape == (len(rows), max(lengths))
    assert batch["attention_mask"].sum(1).tolist() == lengths
    padding = batch["attention_mask"] == 0
    assert (batch["input_ids"][padding] == TOKENIZER.pad_token_id).all()
    assert (batch["labels"][padding] == -100).all()
    assert (batch["token_type_ids"][padding] == 0).all()
    assert batch["next_sentence_label"].tolist() == [row["next_sentence_label"] for row in rows]
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_a_missing_mask_token_or_wrong_probability_raises_an_error():
    with pytest.raises(UserError, match="the tokenizer has no mask"):
        MaskingCollator(train_tokenizer(TEXTS, 300, purpose="causal"))
    for probability in (0, 1.5):
        with pytest.raises(UserError, match=f"mask_probability={probability} must be above 0"):
            MaskingCollator(TOKENIZER, probability)
