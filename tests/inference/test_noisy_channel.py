"""Reranking by a model of the other direction: the scores computed here one by one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel

from library_translators import save_translator
from toy_translation import (
    TRANSLATING,
    save_toy_checkpoint,
    save_toy_reverse_checkpoint,
    toy_model,
    toy_reverse_model,
    toy_rows,
    toy_tokenizer,
    toy_tokenizers,
    translator_of,
)
from vaswani import Scorer
from vaswani.cli.options import ReverseWeight
from vaswani.data.text_codec import for_languages, with_source_tags
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import UserError
from vaswani.inference.other_direction import check_other_direction, exchanged_languages
from vaswani.inference.translate.noisy_channel import WEIGHT, NoisyChannel
from vaswani.inference.translate.reranking import Reranking
from vaswani.inference.translate.results import Hypothesis, Translation
from vaswani.inference.translate.translation import Translator

PAIRS = toy_rows(60, seed=-21)
SENTENCES = [source for source, _ in PAIRS]


def reverse(**options: Any) -> Scorer:
    return Scorer(toy_reverse_model(), toy_tokenizer(), **options)


def ranked_by_hand(found: Translation, weight: float, alpha: float) -> list[tuple[float | None, str]]:
    """The score and the text of each hypothesis, best first; empty ones have no score."""
    read = [hypothesis for hypothesis in found.hypotheses if hypothesis.text]
    ranked = []
    for hypothesis, score in zip(read, reverse()([(h.text, found.source) for h in read]), strict=True):
        assert score.log_prob is not None
        assert hypothesis.score is not None
        lp = ((5 + score.num_tokens) / 6) ** alpha
        ranked.append((hypothesis.score + weight * score.log_prob / lp, hypothesis.text))
    empty = [(None, "")] * (len(found.hypotheses) - len(read))
    return [*sorted(ranked, reverse=True), *empty]


def check_ranked(before: list[Translation], after: list[Translation], weight: float, alpha: float) -> None:
    for one, other in zip(before, after, strict=True):
        scores, texts = zip(*ranked_by_hand(one, weight, alpha), strict=True)
        assert [h.text for h in other.hypotheses] == [*texts]
        assert [h.score for h in other.hypotheses] == pytest.approx([*scores], abs=1e-4)
        log_probs = ([h.log_prob for h in each.hypotheses] for each in (one, other))
        assert sorted(next(log_probs)) == pytest.approx(sorted(next(log_probs)), abs=1e-4)
    assert [t.text for t in before] != [t.text for t in after]


@pytest.mark.parametrize(("weight", "alpha"), [(None, 0.6), (2.0, 0.6), (0.5, 0.0)])
@pytest.mark.parametrize("kind", TRANSLATING)
def test_the_hypotheses_of_a_search_are_ranked(kind: str, weight: float | None, alpha: float) -> None:
    search: dict[str, Any] = {"num_beams": 6, "length_penalty": alpha}
    plain = list(translator_of(kind, **search).translate(SENTENCES, n_best=6))
    both = {"reverse_model": reverse(length_penalty=alpha), "reverse_weight": weight}
    ranking = translator_of(kind, **search, **both)
    ranked = list(ranking.translate(SENTENCES, n_best=6))
    check_ranked(plain, ranked, weight or WEIGHT, alpha)
    # The best is chosen from all beams, however many are asked for, and in any batch.
    assert ranking(SENTENCES) == [t.text for t in ranked]
    assert [len(t.hypotheses) for t in ranking.translate(SENTENCES, n_best=2)] == [2] * len(SENTENCES)
    one_by_one = translator_of(kind, **search, **both, max_tokens_per_batch=1)
    assert one_by_one(SENTENCES) == [t.text for t in ranked]


def test_more_translations_are_right() -> None:
    """Both models have half learned the language, and their errors differ."""
    pairs = toy_rows(400, seed=-5)
    options = ({}, {"reverse_model": reverse()})
    right = [
        sum(
            found == target
            for found, (_, target) in zip(
                translator_of("toy", num_beams=6, **more)([source for source, _ in pairs]), pairs, strict=True
            )
        )
        for more in options
    ]
    assert right[1] > 1.1 * right[0]


def test_samples_are_ranked() -> None:
    plain, ranked = (
        list(translator_of("toy", temperature=1.5, **more).translate(SENTENCES, n_best=5))
        for more in ({}, {"reverse_model": reverse()})
    )
    check_ranked(plain, ranked, WEIGHT, 0.6)


def test_coverage_counts_too() -> None:
    plain, ranked = (
        list(translator_of("toy", num_beams=4, coverage_penalty=2.0, **more).translate(SENTENCES, n_best=4))
        for more in ({}, {"reverse_model": reverse()})
    )
    check_ranked(plain, ranked, WEIGHT, 0.6)


def test_a_multilingual_model_is_both_with_its_languages_exchanged(tmp_path: Path) -> None:
    folder = save_translator("m2m100", tmp_path)
    sentences = ["ein Hund sieht zwei Katzen", "der kleine Hund"]
    languages = {"source_language": "de", "target_language": "fr"}
    search: dict[str, Any] = {"num_beams": 4, "max_length": 8, **languages}
    plain, ranked = (
        list(Translator.from_pretrained(folder, **search, **more).translate(sentences, n_best=4))
        for more in ({}, {"reverse_model": folder, "reverse_weight": 5.0})
    )
    exchanged = {"source_language": "fr", "target_language": "de"}
    turned = Scorer.from_pretrained(folder, **exchanged)
    for before, after in zip(plain, ranked, strict=True):
        (expected,) = NoisyChannel(turned, 5.0)([before], [before.source])
        assert [h.reverse_log_prob for h in after.hypotheses] == pytest.approx(
            [h.reverse_log_prob for h in expected.hypotheses], abs=1e-3
        )
    with pytest.raises(UserError, match="which reads one direction only"):
        Translator.from_pretrained(folder, reverse_model=folder)


def test_the_tag_of_a_language_does_not_count(tmp_path: Path) -> None:
    scorer = Scorer.from_pretrained(save_translator("m2m100", tmp_path), length_penalty=0.5)
    texts, source = ("ein Hund", "zwei Katzen"), "two cats"
    found = Translation(source, tuple(Hypothesis(text, True, -1.0) for text in texts))
    (ranked,) = NoisyChannel(scorer, 2.0)([found], [source])
    scores = scorer([(h.text, source) for h in ranked.hypotheses], with_tokens=True)
    for hypothesis, score in zip(ranked.hypotheses, scores, strict=True):
        ((tag, _), *rest) = score.tokens or ()
        chosen = sum(log_prob for _, log_prob in rest)
        assert tag == "__de__"
        assert hypothesis.reverse_log_prob == pytest.approx(chosen, abs=1e-4)
        lp = ((5 + score.num_tokens) / 6) ** 0.5
        assert hypothesis.score == pytest.approx(-1.0 + 2 * chosen / lp, abs=1e-4)


def test_a_model_with_prefixes_is_both(tmp_path: Path) -> None:
    folder = save_translator("t5", tmp_path)
    options: dict[str, Any] = {"source_prefix": "see: ", "reverse_source_prefix": "two ", "num_beams": 3}
    translator = Translator.from_pretrained(folder, reverse_model=folder, max_length=6, **options)
    found = next(translator.translate(["der kleine Hund"], n_best=3))
    turned = Scorer.from_pretrained(folder, source_prefix="two ")
    (expected,) = NoisyChannel(turned)([found], [found.source])
    assert [h.reverse_log_prob for h in found.hypotheses] == pytest.approx(
        [h.reverse_log_prob for h in expected.hypotheses], abs=1e-3
    )
    (other,) = NoisyChannel(Scorer.from_pretrained(folder))([found], [found.source])
    assert other.hypotheses[0].reverse_log_prob != found.hypotheses[0].reverse_log_prob
    with pytest.raises(
        UserError, match="reverse_source_prefix='two ' is for a reverse_model to load; name one"
    ):
        Translator.from_pretrained(folder, reverse_source_prefix="two ")


def test_the_options_of_loading_apply_to_both(tmp_path: Path) -> None:
    forward = save_toy_checkpoint(tmp_path / "forward")
    backward = save_toy_reverse_checkpoint(tmp_path / "backward")
    options: dict[str, Any] = {"dtype": "bfloat16", "length_penalty": 0.3, "max_tokens_per_batch": 100}
    reranking = Translator.from_pretrained(forward, reverse_model=backward, **options).reranking
    assert reranking is not None
    assert reranking.noisy_channel is not None
    assert reranking.noisy_channel.scorer.model.dtype == torch.bfloat16
    assert reranking.noisy_channel.scorer.max_tokens_per_batch == 100
    assert reranking.noisy_channel.scorer.length_penalty.of(7) == 2**0.3
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(tmp_path / "masked")
    with pytest.raises(UserError, match="is a masked language model; expected an encoder-decoder"):
        Translator.from_pretrained(forward, reverse_model=tmp_path / "masked")


def test_hypotheses_that_cannot_be_read_come_last() -> None:
    hypotheses = tuple(Hypothesis(text, True, score) for text, score in (("", -0.1), ("1 2", -9.0)))
    rank = NoisyChannel(reverse())
    (ranked,) = rank([Translation("one two", hypotheses)], ["one two"])
    assert [h.text for h in ranked.hypotheses] == ["1 2", ""]
    assert ranked.hypotheses[1].score is None is ranked.hypotheses[1].reverse_log_prob
    only_empty = replace(ranked, hypotheses=ranked.hypotheses[1:])
    assert rank([only_empty], ["one two"]) == [only_empty]
    assert rank([Translation("one two")], ["one two"]) == [Translation("one two")]


@pytest.mark.parametrize("metric", [None, "chrf"])
def test_a_source_that_the_other_direction_cannot_write_is_a_problem(metric: str | None) -> None:
    translator = translator_of("toy", reverse_model=reverse(max_length=4), mbr_metric=metric)
    found = list(translator.translate(["one two", "one two three four"]))
    assert [bool(each.hypotheses) for each in found] == [True, False]
    expected = "in the other direction, its target has 5 tokens, more than max_length=4; raise that"
    assert found[1].problem == expected


def test_only_the_text_that_is_translated_counts() -> None:
    """Neither a part of the source that was cut off, nor a prefix or a tag before it."""
    (expected,) = translator_of("toy", reverse_model=reverse()).translate(["one two"], n_best=4)
    (tagged,) = translator_of("toy").translate(["nine one two"], n_best=4)
    source = "one two three four five"
    cut = translator_of("toy", reverse_model=reverse(max_length=4), max_source_length=3)
    (found,) = cut.translate([source], n_best=4)
    assert (found.source, found.source_cut_off) == (source, True)
    log_probs = [[h.reverse_log_prob for h in each.hypotheses] for each in (found, expected)]
    assert log_probs[0] == pytest.approx(log_probs[1], abs=1e-4)
    with_prefix = translator_of(
        "toy", reverse_model=reverse(), max_source_length=4, source_prefix="nine ", reverse_weight=1e-9
    )
    tokenizer = with_source_tags(toy_tokenizer(), ["nine"])
    with_tag = Translator(toy_model(), tokenizer, max_length=30, reverse_model=reverse(), reverse_weight=1e-9)
    for translator, text in (with_prefix, source), (with_tag, "nine one two"):
        (found,) = translator.translate([text], n_best=4)
        assert found.source == text
        assert {h.text for h in found.hypotheses} == {h.text for h in tagged.hypotheses}
        read = [h for h in found.hypotheses if h.text]
        by_hand = reverse()([(h.text, "one two") for h in read])
        assert [h.reverse_log_prob for h in read] == pytest.approx([s.log_prob for s in by_hand], abs=1e-4)


def test_a_model_of_languages_is_ranked_by_one_without(tmp_path: Path) -> None:
    folder = save_translator("m2m100", tmp_path / "forward")
    backward = save_toy_reverse_checkpoint(tmp_path / "backward")
    languages = {"source_language": "de", "target_language": "fr"}
    translator = Translator.from_pretrained(
        folder, max_length=8, num_beams=4, reverse_model=backward, **languages
    )
    (found,) = translator.translate(["one two"], n_best=4)
    read = [h for h in found.hypotheses if h.text.strip()]
    by_hand = reverse()([(h.text, "one two") for h in read])
    assert [h.reverse_log_prob for h in read] == pytest.approx([s.log_prob for s in by_hand], abs=1e-3)


def test_a_language_that_is_not_given_is_the_one_saved_with_the_model(tmp_path: Path) -> None:
    folder = save_translator("m2m100", tmp_path)
    options: dict[str, Any] = {"reverse_model": folder, "max_length": 8}
    for given in ({"target_language": "fr"}, {"source_language": "fr"}):
        partly = Translator.from_pretrained(folder, **options, **given)
        source: Any = partly.source_tokenizer
        languages = {"source_language": source.src_lang, "target_language": source.tgt_lang}
        assert languages.items() > given.items()
        both = Translator.from_pretrained(folder, **options, **languages)
        found, expected = (next(each.translate(["ein Hund"], n_best=4)) for each in (partly, both))
        log_probs = [[h.reverse_log_prob for h in each.hypotheses] for each in (found, expected)]
        assert log_probs[0] == pytest.approx(log_probs[1], abs=1e-4)


def test_languages_that_are_not_known_are_an_error(tmp_path: Path) -> None:
    folder = save_translator("m2m100", tmp_path)
    forward = load_tokenizers(folder)
    saved: Any = forward[0].src_lang, forward[1].tgt_lang  # type: ignore[attr-defined]
    turned = for_languages(*forward, source_language=saved[1], target_language=saved[0])
    assert exchanged_languages((None, None), forward, turned) == (None, None)
    assert exchanged_languages((None, "fr"), forward, turned) == ("fr", saved[0])
    assert exchanged_languages(("fr", None), forward, toy_tokenizers()) == (None, None)
    with pytest.raises(UserError, match=rf"are for {saved[0]} to {saved[1]}; give source_language and"):
        exchanged_languages((None, None), forward, forward)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tgt_lang": None}))
    without = load_tokenizers(folder)
    assert exchanged_languages((None, None), without, without) == (None, None)  # the models choose
    with pytest.raises(
        UserError, match="needs both languages, and the tokenizer of the model has no target_"
    ):
        exchanged_languages(("fr", None), without, turned)


def test_a_scorer_is_taken_as_it_is(tmp_path: Path) -> None:
    forward = save_toy_checkpoint(tmp_path / "forward")
    translator = Translator.from_pretrained(forward, reverse_model=(scorer := reverse()))
    assert translator.reranking == Reranking(NoisyChannel(scorer))
    with pytest.raises(
        UserError, match=r"reverse_model='runs/x' is not a Scorer; give Scorer.from_pretrained"
    ):
        translator_of("toy", reverse_model="runs/x")
    causal = Scorer(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8)), toy_tokenizer())
    with pytest.raises(UserError, match="is a causal language model; expected an encoder-decoder"):
        translator_of("toy", reverse_model=causal)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reverse_weight": 0.3}, "reverse_weight=0.3 is for a reverse_model; add one, or leave it out"),
        ({"reverse_model": "x", "reverse_weight": 0.0}, "reverse_weight=0.0 must be above 0"),
        ({"reverse_model": "x", "num_beams": 1}, "reverse_model ranks the hypotheses of a beam search, and"),
    ],
    ids=str,
)
def test_contradictory_options_raise_an_error_before_loading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained("no/model", **options)
    of_class = {**options, "reverse_model": reverse()} if "reverse_model" in options else options
    with pytest.raises(UserError, match=message):
        translator_of("toy", **of_class)


def test_the_help_names_the_default_weight() -> None:
    assert ReverseWeight.__metadata__[0].help.endswith(f"Default: {WEIGHT}.")  # type: ignore[attr-defined]
    assert f"None means {WEIGHT}." in (Translator.__doc__ or "")


def test_one_sample_or_a_stream_raises_an_error() -> None:
    translator = translator_of("toy", temperature=1.0, reverse_model=reverse())
    with pytest.raises(
        UserError, match=r"reverse_model=Vaswani\w+ ranks the samples of a sentence, and n_best=1"
    ):
        translator(["one two"])
    with pytest.raises(UserError, match="reverse_model needs the whole translation"):
        translator.stream("one two")


def settings(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "training_config.yaml").write_text(text)
    return folder


def test_two_models_of_one_direction_are_an_error(tmp_path: Path) -> None:
    forward, again = (
        settings(tmp_path / name, "source_field: en\ntarget_field: de\n") for name in ("forward", "again")
    )
    backward = settings(tmp_path / "backward", "source_field: de\ntarget_field: en\n")
    check_other_direction(forward, backward)
    with pytest.raises(
        UserError, match=r"the model and the reverse_model are both .*forward, which reads one"
    ):
        check_other_direction(forward, forward)
    with pytest.raises(UserError, match="were both trained from the column 'en' to 'de'; give a reverse"):
        check_other_direction(forward, again)
    with pytest.raises(UserError, match="or --allow_mismatch if the columns held other languages"):
        Translator.from_pretrained([backward, forward], reverse_model=again)
    check_other_direction(forward, again, allow_mismatch=True)
    check_other_direction(forward, forward, languages=(None, "de"))
    for prefixes in (None, ""), ("", ""), (">>de<< ", ">>en<< "), (None, ">>en<< "):
        check_other_direction(forward, forward, prefixes=prefixes)
    same = (">>de<< ", ">>de<< ")
    told = "source_prefix and reverse_source_prefix are both '>>de<< '"
    with pytest.raises(UserError, match=f"{told}, with which .*forward writes one language"):
        check_other_direction(forward, forward, prefixes=same)
    check_other_direction(forward, backward, prefixes=same)
    check_other_direction(forward, forward, ("en", "de"), same)
    options = dict(zip(("source_prefix", "reverse_source_prefix"), same, strict=True))
    with pytest.raises(UserError, match=told):
        Translator.from_pretrained(forward, reverse_model=forward, **options)
    # Text files have the default columns in either direction, and models of others record none.
    files = [settings(tmp_path / name, "source_field: source\ntarget_field: target\n") for name in "ab"]
    check_other_direction(*files)
    check_other_direction("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en")
