"""Minimum Bayes risk: the hypothesis that is most similar to the likely others, computed here by hand."""

import math
from typing import Any

import pytest
import sacrebleu
import torch

from toy_translation import TRANSLATING, toy_reverse_model, toy_sources, toy_tokenizer, translator_of
from vaswani import Scorer
from vaswani.errors import UserError
from vaswani.inference.translate.minimum_risk import SCALE, MinimumRisk, expected_utilities
from vaswani.inference.translate.results import Hypothesis, Translation
from vaswani.inference.translate.translation import Translator

SENTENCES = toy_sources(30, seed=-21)
METRICS = pytest.mark.parametrize("metric", ["chrf", "bleu"])
BY_HAND = {
    "chrf": lambda text, other: sacrebleu.sentence_chrf(text, [other]).score / 100,
    "bleu": lambda text, other: sacrebleu.sentence_bleu(text, [other], use_effective_order=True).score / 100,
}


def by_hand(texts: list[str], log_probs: list[float] | None, metric: str) -> list[float]:
    """The mean similarity of each hypothesis to all, itself included."""
    weights = [1.0] * len(texts) if log_probs is None else [math.exp(SCALE * each) for each in log_probs]
    return [
        sum(
            weight * (1.0 if other == text else BY_HAND[metric](text, other))
            for other, weight in zip(texts, weights, strict=True)
        )
        / sum(weights)
        for text in texts
    ]


@METRICS
@pytest.mark.parametrize(
    "log_probs", [None, [-1.0, -2.0, -0.5, -30.0, -1.5, -2.5, -1.2, -0.7]], ids=["samples", "beams"]
)
def test_expected_utilities(metric: str, log_probs: list[float] | None) -> None:
    texts = [
        "Ein Mann steht am Ufer.",
        "Ein Mann steht am Fluss.",
        "Eine Frau sitzt.",
        "Eine Frau sitzt.",
        "",
        "Ja",
        "Ja, ja, ja, ja, ja",
        "Ja, ja, ja",  # shares an n-gram of the line before more than once
    ]
    weights = [0.0] * len(texts) if log_probs is None else [SCALE * each for each in log_probs]
    found = expected_utilities(texts, weights, metric)
    assert found == pytest.approx(by_hand(texts, log_probs, metric), abs=1e-6)
    assert found[2] == found[3]
    assert all(0 < each < 1 for each in found)


@METRICS
def test_hypotheses_that_are_equally_similar_to_the_others_tie_exactly(metric: str) -> None:
    """Two with the same n-grams: the sums of their similarities can differ in the last digits."""
    same_ngrams = ["3 0 0 0 0 0 0 4 0 0 0 0 0", "3 0 0 0 0 0 4 0 0 0 0 0 0"]
    others = ["3 0 0", "7 0 4 0 0", "4", "0 0 0 0 0 4 1", "3 4 0 0 0 0 0 2"]
    for seed in range(100):
        log_probs = (-5 * torch.rand(7, generator=torch.Generator().manual_seed(seed))).tolist()
        expected = expected_utilities([*same_ngrams, *others], log_probs, metric)
        assert expected[0] == expected[1]
        assert len({*expected}) == 6  # the others do not


def test_bleu_splits_words_as_the_script_needs() -> None:
    """Without spaces, a sentence would be one word, and two sentences would have nothing in common."""
    different, similar = (
        expected_utilities(["我喜欢大象", text], [0.0, 0.0], "bleu") for text in ("他走", "我喜欢象")
    )
    assert similar[0] > different[0]


@METRICS
@pytest.mark.parametrize("kind", TRANSLATING)
def test_the_hypotheses_of_a_search_are_ranked(kind: str, metric: str) -> None:
    plain = list(translator_of(kind, num_beams=6).translate(SENTENCES, n_best=6))
    risk = translator_of(kind, num_beams=6, mbr_metric=metric)
    ranked = list(risk.translate(SENTENCES, n_best=6))
    for before, after in zip(plain, ranked, strict=True):
        texts, log_probs = zip(*((h.text, h.log_prob) for h in before.hypotheses), strict=True)
        expected = sorted(zip(by_hand(texts, log_probs, metric), texts, strict=True), reverse=True)
        scores = [h.score for h in after.hypotheses]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)
        assert scores == sorted(scores, reverse=True)
        assert sorted(h.text for h in after.hypotheses) == sorted(texts)
        kept = dict(zip(texts, log_probs, strict=True))
        assert [h.log_prob for h in after.hypotheses] == pytest.approx(
            [kept[h.text] for h in after.hypotheses], abs=1e-4
        )
    assert [t.text for t in plain] != [t.text for t in ranked]
    # The best is chosen from all beams, however many are asked for, and in any batch.
    assert risk(SENTENCES) == [t.text for t in ranked]
    assert [len(t.hypotheses) for t in risk.translate(SENTENCES, n_best=2)] == [2] * len(SENTENCES)
    one_by_one = translator_of(kind, num_beams=6, mbr_metric=metric, max_tokens_per_batch=1)
    assert one_by_one(SENTENCES) == [t.text for t in ranked]


@METRICS
def test_samples_count_equally(metric: str) -> None:
    plain, risk = (translator_of("toy", temperature=1.5, mbr_metric=each) for each in (None, metric))
    lists = [list(each.translate(SENTENCES, n_best=5)) for each in (plain, risk)]
    for before, after in zip(*lists, strict=True):
        texts = [h.text for h in before.hypotheses]
        assert sorted(h.text for h in after.hypotheses) == sorted(texts)
        expected = sorted(by_hand(texts, None, metric), reverse=True)
        assert [h.score for h in after.hypotheses] == pytest.approx(expected, abs=1e-6)
    assert [t.text for t in lists[0]] != [t.text for t in lists[1]]


@METRICS
@pytest.mark.parametrize("search", [{"num_beams": 6}, {"temperature": 1.5}], ids=str)
def test_the_other_direction_counts_too(search: dict[str, Any], metric: str) -> None:
    """A hypothesis has the weight (P(y|x) · P(x|y)^λ)^SCALE, a sample P(x|y)^(λ · SCALE)."""
    options = {"reverse_model": Scorer(toy_reverse_model(), toy_tokenizer()), "reverse_weight": 0.7}
    plain, risk, both = (
        list(translator_of("toy", **search, **more).translate(SENTENCES, n_best=6))
        for more in (options, {"mbr_metric": metric}, {"mbr_metric": metric, **options})
    )
    for before, after in zip(plain, both, strict=True):
        read = [h for h in before.hypotheses if h.reverse_log_prob is not None]
        texts = [h.text for h in read]
        log_probs = [(h.log_prob if "num_beams" in search else 0.0) + 0.7 * h.reverse_log_prob for h in read]
        expected = sorted(by_hand(texts, log_probs, metric), reverse=True)
        assert [h.score for h in after.hypotheses[: len(read)]] == pytest.approx(expected, abs=1e-4)
        assert all((h.text, h.score) == ("", None) for h in after.hypotheses[len(read) :])
    assert len({tuple(t.text for t in each) for each in (plain, risk, both)}) == 3


@METRICS
def test_hypotheses_that_the_other_direction_cannot_read_come_last(metric: str) -> None:
    """Even if they are the most similar to all others: the mean of two that have nothing in common."""
    unread = Hypothesis("eine Katze hier und ein Hund dort", True, log_prob=-0.1)
    read = [
        Hypothesis(text, True, -1.0, -1.0, reverse_log_prob=-2.0)
        for text in ("eine Katze hier", "und ein Hund dort")
    ]
    rank = MinimumRisk(metric, are_samples=False, reverse_weight=1.0)
    (ranked,) = rank([Translation("one", (unread, *read))])
    assert {h.text for h in ranked.hypotheses[:2]} == {h.text for h in read}
    assert ranked.hypotheses[2] == unread
    expected = by_hand([h.text for h in read], [-3.0, -3.0], metric)
    assert sorted(h.score or 0.0 for h in ranked.hypotheses[:2]) == pytest.approx(sorted(expected))
    only_unread = Translation("one", (unread,))
    assert rank([only_unread]) == [only_unread]


def test_phrases_and_prefixes_are_respected() -> None:
    translator = translator_of("toy", num_beams=6, mbr_metric="chrf", banned_phrases=["7"])
    found = list(translator.translate(SENTENCES, prefixes=["9 8"] * len(SENTENCES)))
    assert all(each.text.startswith("9 8") and "7" not in each.text for each in found)


def test_a_sentence_without_a_translation_has_a_problem() -> None:
    translator = translator_of("toy", num_beams=4, mbr_metric="chrf", max_length=3)
    one, other = translator.translate(["one two", "one"], required=[["1 2 3 4 5 6"], []])
    assert (one.hypotheses, bool(one.problem)) == ((), True)
    assert other.text
    long = Scorer(toy_reverse_model(), toy_tokenizer(), max_length=2)
    found = translator_of("toy", mbr_metric="chrf", reverse_model=long).translate(["one two", "one"])
    assert [bool(each.problem) for each in found] == [True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mbr_metric": "ter"}, "mbr_metric=ter is unknown; choose chrf or bleu"),
        (
            {"mbr_metric": "chrf", "num_beams": 1},
            "mbr_metric=chrf ranks the hypotheses of a beam search, and ",
        ),
        (
            {"mbr_metric": "bleu", "coverage_penalty": 0.2},
            "mbr_metric=bleu and coverage_penalty=0.2 both rank the hypotheses; leave one out",
        ),
    ],
    ids=str,
)
def test_contradictory_options_raise_an_error_before_loading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained("no/model", **options)
    with pytest.raises(UserError, match=message):
        translator_of("toy", **options)


def test_one_sample_or_a_stream_raises_an_error() -> None:
    translator = translator_of("toy", temperature=1.0, mbr_metric="chrf")
    with pytest.raises(
        UserError, match="mbr_metric=chrf ranks the samples of a sentence, and n_best=1; raise"
    ):
        translator(["one two"])
    with pytest.raises(UserError, match="mbr_metric needs the whole translation"):
        translator.stream("one two")
