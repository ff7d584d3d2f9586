"""Training text is split anew; the text itself, and everything else, stays."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from vaswani.data.batching import Seq2SeqCollator
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import train_tokenizer
from vaswani.training.trainer.bpe_dropout import BpeDropoutCollator

TEXTS = ["mercredi 27 janvier", "dimanche 3 janvier", "mercredi 5 janvier"]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 3, 320)


def collate(tokenizer, p, max_length=100):
    rows = [{"input_ids": ids, "labels": ids} for ids in tokenizer(TEXTS)["input_ids"]]
    collator = BpeDropoutCollator(
        Seq2SeqCollator(0, 1),
        tokenizer,
        tokenizer,
        max_source_length=max_length,
        max_target_length=max_length,
        p=p,
    )
    return collator(rows)


def test_text_is_split_into_more_tokens_and_stays_the_same(tokenizer):
    plain, dropped = collate(tokenizer, 0.0), collate(tokenizer, 1.0)
    for name in ("input_ids", "labels"):
        assert dropped[name].shape[1] > plain[name].shape[1]
    assert tokenizer.batch_decode(dropped["input_ids"], skip_special_tokens=True) == TEXTS
    assert (dropped["input_ids"] == tokenizer.eos_token_id).sum() == len(TEXTS)


def test_each_pass_splits_differently(tokenizer):
    splits = {tuple(collate(tokenizer, 0.5)["input_ids"].flatten().tolist()) for _ in range(8)}
    assert len(splits) > 1


def test_a_split_beyond_the_limit_is_not_used(tokenizer):
    longest = max(map(len, tokenizer(TEXTS)["input_ids"]))
    assert collate(tokenizer, 1.0, max_length=longest)["input_ids"].shape[1] == longest


def test_threads_that_share_the_tokenizer_do_not_see_dropout(tokenizer):
    plain = tokenizer(TEXTS)["input_ids"]
    longest = collate(tokenizer, 1.0)["input_ids"].shape[1]

    def work(number):
        return (
            collate(tokenizer, 1.0)["input_ids"].shape[1]
            if number % 2
            else TextCodec(tokenizer).token_ids(TEXTS)
        )

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(80))) == [plain, longest] * 40


def test_the_tokenizer_is_left_as_it_was(tokenizer):
    before = tokenizer(TEXTS)["input_ids"]
    collate(tokenizer, 1.0)
    assert tokenizer(TEXTS)["input_ids"] == before
