"""Span denoising: the choice of spans, source and target, and that both together restore the text."""

from collections import Counter
from functools import partial
from itertools import groupby, pairwise

import numpy as np
import pytest
from datasets import Dataset

from toy_texts import toy_documents
from vaswani.data.text.denoising import DenoisingCollator, with_markers
from vaswani.data.text.sequences import make_sequences
from vaswani.data.text.span_denoising import (
    SpanDenoising,
    SpanNoise,
    SpanPieces,
    remove_spans,
    sentinel_ids,
    sentinel_names,
)
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer

TEXTS = toy_documents(60)
TOKENIZER = train_tokenizer(TEXTS, 400, markers=sentinel_names(30))
SENTINELS = sentinel_ids(TOKENIZER)
END, START = TOKENIZER.eos_token_id, TOKENIZER.bos_token_id
PLAIN = SpanNoise()
NOISES = [PLAIN, SpanNoise(0.5, 1), SpanNoise(0.9, 4.5), SpanNoise(0.01, 3)]


def test_removed_spans_match_the_example_of_the_paper():
    """Figure 2: thank you <X> me to your party <Y> week → <X> for inviting <Y> last <Z>."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    numbers, removed = np.arange(10), np.isin(words, ["for", "inviting", "last"])
    source, target = remove_spans(numbers, removed, np.array([100, 101, 102]))
    assert source.tolist() == [0, 1, 100, 4, 5, 6, 7, 101, 9]
    assert target.tolist() == [100, 2, 3, 101, 8, 102]


def by_hand(tokens: list[int], removed: list[bool], sentinels: list[int]) -> tuple[list[int], list[int]]:
    """Section 3.1.4, span by span."""
    source, target, number = [], [], 0
    for gone, group in groupby(zip(tokens, removed, strict=True), key=lambda pair: pair[1]):
        span = [token for token, _ in group]
        if gone:
            source.append(sentinels[number])
            target += [sentinels[number], *span]
            number += 1
        else:
            source += span
    return source, [*target, sentinels[number]]


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_source_and_target_are_those_of_a_slow_reference(noise):
    generator = np.random.default_rng(0)
    for length in [2, 3, 4, 5, 8, 13, 30, 100]:
        tokens = generator.integers(1000, 2000, length)
        removed = noise.mask(length, generator)
        found = remove_spans(tokens, removed, np.arange(100))
        assert tuple(part.tolist() for part in found) == by_hand(tokens, removed, list(range(100)))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_source_and_target_give_back_the_text_and_have_the_planned_lengths(noise):
    denoise = SpanDenoising(noise, np.arange(200))
    for seed, length in enumerate([2, 3, 7, 20, 64, 101]):
        tokens = np.arange(1000, 1000 + length)
        source, target = denoise({"input_ids": tokens}, np.random.default_rng(seed))
        assert (len(source), len(target)) == noise.lengths(length)
        assert filled(source.tolist(), target.tolist(), 200) == tokens.tolist()


def filled(source: list[int], target: list[int], sentinels: int) -> list[int]:
    """A source with the spans of its target in the place of sentinels, which are the smallest numbers."""
    places = [place for place, token in enumerate(target) if token < sentinels]
    spans = {target[a]: target[a + 1 : b] for a, b in pairwise(places)}
    return [token for part in source for token in spans.get(part, [part])]


def test_noise_has_the_given_density_and_mean_length():
    """15 % of 512 tokens are 77, in 26 spans, between which there is text."""
    assert SpanNoise().counts(512) == (77, 26)
    generator = np.random.default_rng(0)
    masks = np.array([SpanNoise().mask(512, generator) for _ in range(50)])
    assert (masks.sum(1) == 77).all()
    begins = masks & ~np.pad(masks, ((0, 0), (1, 0)))[:, :-1]
    assert (begins.sum(1) == 26).all()
    for part in np.split(masks, 4, axis=1):  # no place is special
        assert part.mean() == pytest.approx(0.15, abs=0.02)
    assert 0 < masks[:, 0].sum() < 15
    assert 0 < masks[:, -1].sum() < 15


def test_all_spans_are_equally_likely():
    """Of six tokens, three are removed in two spans: 1 + 2 or 2 + 1, at two of four places."""
    generator = np.random.default_rng(0)
    drawn = Counter(tuple(SpanNoise(0.5, 1.6).mask(6, generator).tolist()) for _ in range(1200))
    assert len(drawn) == 2 * 6
    assert min(drawn.values()) > 60


def pieces(max_length: int = 24, noise: SpanNoise = NOISES[0]) -> Dataset:
    return make_sequences(Dataset.from_dict({"text": TEXTS}), TOKENIZER, SpanPieces(max_length, noise))


def test_pieces_cover_the_texts_and_end_between_sentences():
    rows = pieces(60)
    texts = [TOKENIZER.decode(row["input_ids"]).strip("\n") for row in rows]
    assert "\n".join(texts) == "\n".join(TEXTS)
    assert all(text.endswith(".") for text in texts)


@pytest.mark.parametrize("noise", NOISES[:3], ids=repr)
def test_batches_have_the_planned_lengths_and_fit(noise):
    denoise = SpanDenoising(noise, SENTINELS)
    collator = DenoisingCollator(TOKENIZER, START, denoise)
    rows = pieces(24, noise)
    batch = collator([rows[number] for number in range(len(rows))])
    assert batch["attention_mask"].sum(1).tolist() == rows["source_length"][:]
    assert (batch["labels"] != -100).sum(1).tolist() == rows["target_length"][:]
    assert max(rows["source_length"]) <= 24
    assert (batch["decoder_input_ids"][:, 0] == START).all()
    for row, seen in zip(rows, batch["input_ids"].tolist(), strict=True):
        assert seen[row["source_length"] - 1] == END
    source = batch["input_ids"][0][: rows[0]["source_length"]].tolist()[:-1]
    target = batch["labels"][0][: rows[0]["target_length"]].tolist()[:-1]
    assert filled(source, target, 3 + 30) == rows[0]["input_ids"]


def collated(noise: SpanNoise = NOISES[0], epoch: int = 0, seed: int = 0) -> list:
    collator = DenoisingCollator(TOKENIZER, START, SpanDenoising(noise, SENTINELS), seed)
    collator.set_epoch(epoch)
    rows = pieces()
    return [collator.pair(row)["labels"].tolist() for row in rows]


def test_noise_depends_on_seed_epoch_and_row_alone():
    assert collated() == collated()
    for other in [{"epoch": 1}, {"seed": 1}, {"noise": SpanNoise(0.4)}, {"noise": SpanNoise(0.15, 1)}]:
        assert collated(**other) != collated()
    collator = DenoisingCollator(TOKENIZER, START, SpanDenoising(SpanNoise(), SENTINELS))
    rows = pieces()
    of_all = collator([rows[number] for number in range(12)])["labels"]
    alone = collator([rows[11]])["labels"][0]
    assert of_all[11][: len(alone)].tolist() == alone.tolist()


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte"])
def test_sentinels_are_special_tokens_of_every_kind_of_tokenizer(kind, tmp_path):
    tokenizer = train_tokenizer(TEXTS, 400, kind=kind, markers=sentinel_names(5))
    ids = sentinel_ids(tokenizer).tolist()
    assert ids == [3, 4, 5, 6, 7]
    text, codec = "The <extra_id_0> sleeps.", TextCodec(tokenizer)
    (as_text,) = codec.token_ids([text])
    assert not {*ids} & {*as_text}
    assert codec.decode([as_text]) == [text]
    assert tokenizer(text).input_ids.count(ids[0]) == 1  # as T5's users write it
    assert tokenizer.decode([*ids, *tokenizer("cat").input_ids], skip_special_tokens=True) == "cat"
    tokenizer.save_pretrained(tmp_path)
    again = type(tokenizer).from_pretrained(tmp_path)
    assert sentinel_ids(again).tolist() == ids
    assert {*again.all_special_ids} >= {*ids}


def test_markers_are_added_to_a_copy_of_a_tokenizer_that_lacks_them():
    plain = byte_tokenizer(purpose="translation")
    more = with_markers(plain, [*sentinel_names(3), "<mask>"])
    assert len(plain) == 259
    assert len(more) == 263
    assert more.mask_token == "<mask>"
    assert {*more.all_special_ids} >= {*sentinel_ids(more).tolist(), more.mask_token_id}
    assert len(sentinel_ids(plain)) == 0
    assert with_markers(more, sentinel_names(2)) is more
    assert len(sentinel_ids(with_markers(more, sentinel_names(5)))) == 5


def test_no_text_needs_more_sentinels_than_the_longest():
    for noise in NOISES:
        needed = list(map(noise.num_sentinels, range(2, 300)))
        assert needed == sorted(needed)
        removed = partial(noise.mask, generator=np.random.default_rng(0))
        for length, most in zip(range(2, 300, 37), needed[::37], strict=True):
            tokens = np.arange(1000, 1000 + length)
            assert remove_spans(tokens, removed(length), np.arange(most))[1][-1] == most - 1
