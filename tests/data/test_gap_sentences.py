"""Gap sentences: which are removed, compared with a slow reference, and the resulting source and target."""

import numpy as np
import pytest
from datasets import Dataset
from rouge_score.rouge_scorer import RougeScorer

from toy_texts import toy_documents
from vaswani.data.text.denoising import DenoisingCollator
from vaswani.data.text.gap_sentences import (
    GapChoice,
    GapPieces,
    GapSentences,
    rouge1_with_rest,
    sentence_mask,
)
from vaswani.data.text.sequences import make_sequences
from vaswani.data.tokenization import byte_tokenizer, train_tokenizer

TEXTS = toy_documents(60)
TOKENIZER = train_tokenizer(TEXTS, 400, markers=["<mask>"])
MASK, END, START = TOKENIZER.mask_token_id, TOKENIZER.eos_token_id, TOKENIZER.bos_token_id
ARTICLE = [
    "Wolves live in packs of about ten wolves.",
    "A pack of wolves hunts deer and other large animals together!",
    "Is it cold in the north?",
    "In the north, a pack hunts over 100 km of forest; the deer are few.",
    "None of this is new.",
    "...",
]


def test_scores_are_those_of_rouge_score():
    scorer = RougeScorer(["rouge1"], use_stemmer=False)
    for sentences in [ARTICLE, *(text.split("\n") for text in TEXTS[:20] if "\n" in text)]:
        expected = []
        for number, sentence in enumerate(sentences):
            rest = " ".join([*sentences[:number], *sentences[number + 1 :]])
            expected.append(scorer.score(rest, sentence)["rouge1"].fmeasure)
        np.testing.assert_allclose(rouge1_with_rest(sentences), expected, atol=1e-12)


def test_scores_count_words_of_every_script():
    scores = rouge1_with_rest(["Волки живут в лесу.", "Волки охотятся в лесу.", "Холодно."])
    assert scores[0] == scores[1] == 2 * 3 / 9
    assert scores[2] == 0
    scores = rouge1_with_rest(["狼住在林里。", "狼在林里打猎。", "很冷。"])  # 5 characters, 6 and 2
    assert scores[0] == scores[1] == 2 * 4 / 13
    assert scores[2] == 0


@pytest.mark.parametrize("ratio", [0.2, 0.3, 0.5, 0.9, 0.001])
def test_the_best_the_first_or_random_sentences_are_removed(ratio):
    count = min(max(round(ratio * 6), 1), 5)
    scores = list(rouge1_with_rest(ARTICLE))
    best = sorted(sorted(range(6), key=lambda number: (-scores[number], number))[:count])
    assert GapChoice(ratio, "ind_orig").fixed(ARTICLE).tolist() == best
    assert GapChoice(ratio, "lead").fixed(ARTICLE).tolist() == list(range(count))
    assert GapChoice(ratio, "random").fixed(ARTICLE).tolist() == []
    generator = np.random.default_rng(0)
    drawn = [GapChoice(ratio, "random").drawn(6, generator).tolist() for _ in range(200)]
    assert all(len(set(gaps)) == count and gaps == sorted(gaps) for gaps in drawn)
    assert {number for gaps in drawn for number in gaps} == set(range(6))


def test_of_equal_sentences_the_first_are_removed():
    assert GapChoice(0.5).fixed(["a b", "c", "a b", "a b"]).tolist() == [0, 2]


def pieces(choice: GapChoice | None = None, max_length: int = 40) -> Dataset:
    rows = Dataset.from_dict({"text": TEXTS})
    made = make_sequences(rows, TOKENIZER, GapPieces(max_length, choice or GapChoice()))
    return made.filter(lambda row: row["source_length"])


def test_a_row_holds_its_sentences_and_their_choice():
    rows = pieces()
    for row in rows:
        sentences = np.split(np.array(row["input_ids"]), row["sentence_starts"][1:])
        texts = [TOKENIZER.decode(sentence).strip() for sentence in sentences]
        assert all(text.startswith("The") and text.endswith(".") for text in texts)
        assert row["gaps"] == GapChoice().fixed(texts).tolist()


@pytest.mark.parametrize("strategy", ["ind_orig", "random", "lead"])
def test_source_and_target_give_back_the_text(strategy):
    choice = GapChoice(0.4, strategy)
    collator = DenoisingCollator(TOKENIZER, START, GapSentences(choice, MASK))
    for row in pieces(choice):
        pair = collator.pair(row)
        source, target = pair["input_ids"].tolist(), pair["labels"].tolist()
        assert len(source) <= row["source_length"] <= 40
        assert len(target) <= row["target_length"]
        if strategy != "random":
            assert (len(source), len(target)) == (row["source_length"], row["target_length"])
        assert (source.pop(), target.pop()) == (END, END)
        assert source.count(MASK) == choice.count(len(row["sentence_starts"]))
        text, left = [], target
        sentences = np.split(np.array(row["input_ids"]), row["sentence_starts"][1:])
        lengths = iter(map(len, sentences))
        while source:
            if source[0] == MASK:
                source, length = source[1:], next(lengths)
                text, left = text + left[:length], left[length:]
            else:
                length = next(lengths)
                text, source = text + source[:length], source[length:]
        assert text == row["input_ids"]
        assert not left


@pytest.mark.parametrize("strategy", ["ind_orig", "random", "lead"])
@pytest.mark.parametrize("kept", [0.2, 0.5, 1])
def test_a_share_of_the_chosen_sentences_stays_in_the_source(strategy, kept):
    choice = GapChoice(0.4, strategy, kept)
    noise, generator = GapSentences(choice, MASK), np.random.default_rng(0)
    masks = chosen = 0
    for row in pieces(choice):
        sentences = np.split(np.array(row["input_ids"]), row["sentence_starts"][1:])
        row = row | {"input_ids": np.array(row["input_ids"])}
        source, target = noise(row, generator)
        assert len(source) < row["source_length"] <= 40  # one more for the end
        assert len(target) < row["target_length"]
        left, missing = source.tolist(), []
        for sentence in sentences:
            if left[:1] == [MASK]:
                left = left[1:]
                missing.append(sentence.tolist())
            else:
                assert left[: len(sentence)] == sentence.tolist()
                left = left[len(sentence) :]
        assert not left
        number_chosen = choice.count(len(sentences))
        if strategy != "random":  # the targets of all chosen sentences, kept or not
            assert target.tolist() == np.concatenate([sentences[gap] for gap in row["gaps"]]).tolist()
        assert len(missing) <= number_chosen
        masks, chosen = masks + len(missing), chosen + number_chosen
    share = 1 - masks / chosen
    assert abs(share - kept) <= 3 * (kept * (1 - kept) / chosen) ** 0.5


def test_texts_of_one_sentence_have_no_source():
    rows = make_sequences(
        Dataset.from_dict({"text": ["The dog sleeps.", "The cat sings. The dog sleeps."]}),
        TOKENIZER,
        GapPieces(40),
    )
    assert [bool(length) for length in rows["source_length"]] == [False, True]
    assert rows[0]["gaps"] == [] != rows[1]["gaps"]


def pairs(choice: GapChoice, epoch: int = 0, seed: int = 0) -> list:
    collator = DenoisingCollator(TOKENIZER, START, GapSentences(choice, MASK), seed)
    collator.set_epoch(epoch)
    return [collator.pair(row) for row in pieces(choice)]


def targets(strategy: str, ratio: float = 0.3, **draw) -> list:
    return [pair["labels"].tolist() for pair in pairs(GapChoice(ratio, strategy), **draw)]


def sources(kept: float, **draw) -> list:
    return [pair["input_ids"].tolist() for pair in pairs(GapChoice(kept=kept), **draw)]


def test_random_choices_depend_on_seed_and_epoch_and_others_do_not():
    assert targets("random") == targets("random")
    assert targets("random") != targets("random", epoch=1)
    assert targets("random") != targets("random", seed=1)
    for strategy in ("ind_orig", "lead"):
        assert targets(strategy) == targets(strategy, epoch=1) == targets(strategy, seed=1)
        assert targets(strategy) != targets(strategy, ratio=0.6)
    assert targets("ind_orig") != targets("lead")


def test_kept_sentences_depend_on_seed_and_epoch():
    assert sources(0.5) == sources(0.5)
    assert sources(0.5) != sources(0.5, epoch=1)
    assert sources(0.5) != sources(0.5, seed=1)
    assert sources(0) == sources(0, epoch=1) != sources(0.2)
    assert sources(1) == sources(1, epoch=1)


def test_the_sentence_mask_is_the_first_mask_token_of_pegasus():
    plain = byte_tokenizer(purpose="translation")
    assert sentence_mask(plain) is None
    assert sentence_mask(TOKENIZER) == MASK == 3
    plain.add_special_tokens({"mask_token": "<mask_2>", "extra_special_tokens": ["<mask_1>"]})
    assert sentence_mask(plain) == plain.convert_tokens_to_ids("<mask_1>") != plain.mask_token_id
