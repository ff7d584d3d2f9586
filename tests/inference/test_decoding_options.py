"""Decoding options: each changes the result and equals that of the library where it has one.

The models are two half-trained toys, one of them a MarianMT of the library.
"""

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from library_translators import save_translator
from toy_translation import TRANSLATING, toy_marian, toy_model, toy_sources, toy_tokenizer, translator_of
from vaswani.errors import UserError
from vaswani.inference.cross_attention import cross_attention
from vaswani.inference.decoding import GNMTLengthPenalty
from vaswani.inference.sides import EncodedText
from vaswani.inference.translate.engine import Output, SearchOptions
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.inference.translate.phrases import Line
from vaswani.inference.translate.translation import Translator

EOS = 2
SENTENCES = toy_sources(6, seed=-11)


BOTH = pytest.mark.parametrize("kind", TRANSLATING)
SEARCHES = pytest.mark.parametrize("num_beams", [1, 4])


def outputs_of(translator: Translator, sentences: list[str] = SENTENCES, **options: Any) -> list[Output]:
    """The best output of the engine for each sentence, alone in its batch."""
    found = []
    for sentence in sentences:
        (source,) = translator.sides.sources.token_ids([sentence])
        demands = [translator.constraints.demands(Line(sentence), EncodedText(source), 0)]
        limits = [translator.constraints.limit(len(source))]
        found += translator.engine.search(
            [source], limits, translator.options, start_options={}, demands=demands, **options
        )
    return [best for best, *_ in found]


def by_the_library(translator: Translator, sentence: str, **options: Any) -> list[int]:
    """What `generate` finds, without the start token and padding."""
    encoded = toy_tokenizer()(sentence, return_tensors="pt")
    search = {"num_beams": translator.options.num_beams, "do_sample": False, **options}
    if search["num_beams"] > 1:
        search["length_penalty"] = GNMTLengthPenalty(0.6)
    limit = min(encoded["input_ids"].shape[1] + 50, translator.max_length)
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
    tokens = translator.model.generate(**inputs, **search, max_length=1 + limit)[0, 1:].tolist()
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


# Sampling.


@BOTH
def test_a_sample_depends_on_the_seed_and_its_place_and_not_on_the_batch(kind: str) -> None:
    sentences = [*SENTENCES, SENTENCES[0]]
    drawn = translator_of(kind, temperature=1.0, seed=5)(sentences)
    assert drawn == translator_of(kind, temperature=1.0, seed=5, max_tokens_per_batch=1)(sentences)
    alone = translator_of(kind, temperature=1.0, seed=5).translate(sentences, buffer_size=1)
    assert drawn == [translation.text for translation in alone]
    assert drawn != translator_of(kind, temperature=1.0, seed=6)(sentences)
    assert drawn != translator_of(kind, num_beams=1)(sentences)
    assert drawn[0] != drawn[-1]  # the same sentence at another place
    assert translator_of(kind, temperature=1.0)(sentences) == translator_of(kind, temperature=1.0, seed=0)(
        sentences
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_sampling_works_where_only_deterministic_algorithms_are_allowed() -> None:
    """Its sums of probabilities are refused on a GPU."""
    model = toy_model().cuda()
    torch.use_deterministic_algorithms(True)
    try:
        translator = Translator(model, toy_tokenizer(), max_length=24, temperature=1.0, top_p=0.9, seed=5)
        assert translator(SENTENCES) != [""] * len(SENTENCES)
    finally:
        torch.use_deterministic_algorithms(False)


@BOTH
@pytest.mark.parametrize("options", [{"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_sampling_from_one_token_equals_greedy_search(kind: str, options: dict[str, float]) -> None:
    greedy = translator_of(kind, num_beams=1)(SENTENCES)
    assert translator_of(kind, **{"temperature": 1.0, **options})(SENTENCES) == greedy


@BOTH
def test_tokens_are_drawn_with_their_probabilities(kind: str) -> None:
    translator = translator_of(kind, temperature=0.7, top_k=5, top_p=0.9, max_length=1)
    (source,) = translator.sides.sources.token_ids(["one two"])
    (samples,) = translator.engine.search([source], [1], translator.options, start_options={}, n_best=3000)
    counts = Counter(sample.token_ids[0] for sample in samples)
    start = translator.model.generation_config.decoder_start_token_id
    with torch.no_grad():
        logits = translator.model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start]])
        ).logits[0, 0]
    top = (logits / 0.7).topk(5)
    probabilities = top.values.softmax(0)
    kept = probabilities.cumsum(0) - probabilities < 0.9
    expected = torch.where(kept, probabilities, 0.0) / probabilities[kept].sum()
    assert set(counts) <= set(top.indices[kept].tolist())
    for token, probability in zip(top.indices.tolist(), expected.tolist(), strict=True):
        deviation = (probability * (1 - probability) / 3000) ** 0.5
        assert abs(counts[token] / 3000 - probability) <= 4 * deviation


@BOTH
def test_n_best_are_independent_samples_scored_by_the_model(kind: str) -> None:
    translator = translator_of(kind, temperature=1.3, seed=3)
    for translation in translator.translate(SENTENCES[:4], n_best=6):
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({hypothesis.text for hypothesis in translation.hypotheses}) > 1
        assert len(translation.hypotheses) == 6
    outputs = outputs_of(translator, with_scores=True)
    for sentence, output in zip(SENTENCES, outputs, strict=True):
        inputs = toy_tokenizer()(sentence, return_tensors="pt")
        labels = torch.tensor([output.token_ids])
        loss = translator.model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], labels=labels
        ).loss
        assert output.log_prob == pytest.approx(-loss.item() * labels.shape[1], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 3}, "top_k=3 is for sampling, and no temperature is given; add temperature=1"),
        ({"top_p": 0.5}, "top_p=0.5 is for sampling"),
        ({"seed": 0}, "seed=0 is for sampling"),
        ({"temperature": 0.5, "num_beams": 4}, "num_beams=4 searches, and temperature=0.5 samples"),
        ({"coverage_penalty": -1}, "coverage_penalty=-1 must be at least 0"),
        (
            {"coverage_penalty": 0.2, "num_beams": 1},
            "coverage_penalty=0.2 ranks the hypotheses of a beam search",
        ),
        ({"temperature": 0}, "temperature=0 must be above 0"),
        ({"temperature": float("nan")}, "temperature=nan must be above 0"),
        ({"temperature": 1, "top_p": 1.5}, "top_p=1.5 must be above 0 and at most 1"),
        ({"temperature": 1, "top_k": 0}, "top_k=0 must be at least 1"),
        ({"repetition_penalty": 0}, "repetition_penalty=0 must be above 0"),
        ({"min_length": 0}, "min_length=0 must be at least 1"),
        ({"min_length": 9, "max_length": 8}, "min_length=9 is more than max_length=8; lower min_length or"),
        (
            {"min_length_ratio": 2, "max_length_ratio": 1.5},
            "min_length_ratio=2 is more than max_length_ratio=1.5",
        ),
        ({"max_length_ratio": 0}, "max_length_ratio=0 must be above 0"),
    ],
    ids=str,
)
def test_contradictory_options_raise_an_error_before_loading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained("no/model", **options)
    with pytest.raises(UserError, match=message):
        Translator(toy_model(), toy_tokenizer(), **options)


def test_the_default_is_four_beams_or_one_when_sampling() -> None:
    assert SearchOptions().num_beams == 4
    assert SearchOptions(temperature=1).num_beams == SearchOptions(temperature=1, num_beams=1).num_beams == 1


# Lengths.


@BOTH
@SEARCHES
def test_min_length_equals_that_of_the_library(kind: str, num_beams: int) -> None:
    plain = outputs_of(translator_of(kind, num_beams=num_beams))
    translator = translator_of(kind, num_beams=num_beams, min_length=12)
    longer = outputs_of(translator)
    assert plain != longer
    assert min(len(output.token_ids) for output in plain) < 12
    assert all(len(output.token_ids) >= 12 for output in longer)
    for sentence, output in zip(SENTENCES, longer, strict=True):
        assert output.token_ids == by_the_library(translator, sentence, min_length=12)


@pytest.mark.parametrize("least", [{"min_length": 70}, {"min_length_ratio": 35.0}], ids=str)
def test_min_length_can_exceed_the_default_length_limit(least: dict[str, Any]) -> None:
    translator = translator_of("marian", num_beams=1, max_length=80, **least)
    (output,) = outputs_of(translator, ["one"])
    assert len(translator.sides.sources.token_ids(["one"])[0]) == 2
    assert len(output.token_ids) == 70


def test_min_length_beyond_the_models_positions_is_refused() -> None:
    with pytest.raises(UserError, match="min_length=100 is more than the 64 positions of the model"):
        Translator(
            toy_model(max_position_embeddings=64, position_embedding="learned"),
            toy_tokenizer(),
            min_length=100,
        )


@BOTH
@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"temperature": 1.0}], ids=str)
def test_ratios_bound_each_translation_by_its_own_source(kind: str, options: dict[str, Any]) -> None:
    sentences = ["one", "one two three four", *SENTENCES]
    translator = translator_of(kind, min_length_ratio=1.5, max_length_ratio=2.0, max_length=60, **options)
    sources = translator.sides.sources.token_ids(sentences)
    lengths = [len(output.token_ids) for output in outputs_of(translator, sentences)]
    for source, length in zip(sources, lengths, strict=True):
        assert -(-3 * len(source) // 2) <= length <= 2 * len(source)
    assert lengths != [
        len(output.token_ids) for output in outputs_of(translator_of(kind, **options), sentences)
    ]
    together = translator(sentences)
    if not translator.options.sampling:
        assert [translator([sentence])[0] for sentence in sentences] == together


def test_where_limits_conflict_for_a_source_the_maximum_applies() -> None:
    translator = translator_of("marian", min_length=9, max_length_ratio=2.0)
    sources = [len(ids) for ids in translator.sides.sources.token_ids(["one", "one two three"])]
    assert 2 * sources[0] < 9
    assert [translator.lengths.min_tokens(length) for length in sources] == [
        min(9, 2 * length) for length in sources
    ]
    assert len(outputs_of(translator, ["one"])[0].token_ids) == 2 * sources[0]
    assert Translator(toy_model(), toy_tokenizer(), max_length_ratio=1.1).lengths.max_tokens(10) == 11
    assert Translator(toy_model(), toy_tokenizer(), max_length_ratio=1.4).lengths.max_tokens(45) == 63
    assert Translator(toy_model(), toy_tokenizer(), max_length_ratio=0.01).lengths.max_tokens(10) == 1
    assert Translator(toy_model(), toy_tokenizer(), max_length_ratio=9).lengths.max_tokens(10) == 90
    assert (
        Translator(toy_model(), toy_tokenizer(), max_length_ratio=9, max_length=70).lengths.max_tokens(10)
        == 70
    )


# Repetition.


@BOTH
@SEARCHES
@pytest.mark.parametrize("options", [{"repetition_penalty": 1.7}, {"no_repeat_ngram_size": 2}], ids=str)
def test_repetition_options_equal_those_of_the_library(
    kind: str, num_beams: int, options: dict[str, Any]
) -> None:
    sentences = ["seven " * 8, "one two one two", *SENTENCES]
    translator = translator_of(kind, num_beams=num_beams, **options)
    found = [output.token_ids for output in outputs_of(translator, sentences)]
    assert found == [by_the_library(translator, sentence, **options) for sentence in sentences]
    assert found != [
        output.token_ids for output in outputs_of(translator_of(kind, num_beams=num_beams), sentences)
    ]
    best = translator(sentences)
    n_best = [
        translation.text for translation in translator.translate(sentences, n_best=num_beams)
    ]  # a list begins with the translation, whose rank no score of the model knows
    assert best == n_best


def test_a_repetition_penalty_of_the_model_holds_and_can_be_replaced() -> None:
    model = toy_model()
    sentences = ["seven " * 8]
    plain = Translator(model, toy_tokenizer())(sentences)
    model.generation_config.repetition_penalty = 3.0
    of_model = Translator(model, toy_tokenizer())
    assert of_model(sentences) != plain
    assert [t.text for t in of_model.translate(sentences, n_best=4)] == of_model(sentences)
    assert Translator(model, toy_tokenizer(), repetition_penalty=1.0)(sentences) == plain


# Coverage.


def coverage_by_hand(model: PreTrainedModel, sentence: str, tokens: list[int]) -> float:
    """Σ_i log(min(Σ_j p_ij, 1)), of the last layer's mean head."""
    source = toy_tokenizer()(sentence, return_tensors="pt")["input_ids"]
    start = model.generation_config.decoder_start_token_id
    given = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(
            input_ids=source, decoder_input_ids=torch.tensor([[start, *tokens[:-1]]]), output_attentions=True
        )
    model.set_attn_implementation(given)
    weights = outputs.cross_attentions[-1][0].mean(dim=0)  # [T, L]
    assert weights.shape == (len(tokens), source.shape[1])
    return sum(math.log(min(sum(row[i].item() for row in weights), 1.0)) for i in range(source.shape[1]))


@BOTH
def test_coverage_ranks_the_hypotheses_of_the_search_again(kind: str) -> None:
    plain = translator_of(kind, num_beams=6)
    covering = translator_of(kind, num_beams=6, coverage_penalty=2.0)
    lists = [list(each.translate(SENTENCES, n_best=6)) for each in (plain, covering)]
    for before, after in zip(*lists, strict=True):
        assert sorted(h.text for h in before.hypotheses) == sorted(h.text for h in after.hypotheses)
        scores = [h.score for h in after.hypotheses]
        assert scores == sorted(scores, reverse=True)
    assert [t.text for t in lists[0]] != [t.text for t in lists[1]]
    assert [t.text for t in lists[1]] == covering(SENTENCES)  # without scores, and in n-best lists of 1
    assert [t.text for t in lists[1]] == [t.text for t in covering.translate(SENTENCES, n_best=1)]
    for sentence, output in zip(SENTENCES, outputs_of(covering), strict=True):
        expected = 2.0 * coverage_by_hand(covering.model, sentence, output.token_ids)
        assert output.coverage == pytest.approx(expected, abs=1e-4)
        lp = ((5 + len(output.token_ids)) / 6) ** 0.6
        assert output.score(GNMTLengthPenalty(0.6)) == pytest.approx(
            output.log_prob / lp + expected, abs=1e-4
        )


@BOTH
def test_a_coverage_penalty_needs_several_samples(kind: str) -> None:
    translator = translator_of(kind, coverage_penalty=0.5, temperature=1.0)
    with pytest.raises(UserError, match=r"=0\.5 ranks the samples of a sentence, and n_best=1; raise n_best"):
        translator(["one two"])
    assert len(next(iter(translator.translate(["one two"], n_best=3))).hypotheses) == 3


@BOTH
def test_coverage_does_not_depend_on_the_batch_and_leaves_the_model_as_it_was(kind: str) -> None:
    translator = translator_of(kind, coverage_penalty=0.5, max_tokens_per_batch=1)
    translator.model.set_attn_implementation("sdpa")
    alone = list(translator.translate(SENTENCES, n_best=4))
    together = list(translator_of(kind, coverage_penalty=0.5).translate(SENTENCES, n_best=4))
    for one, other in zip(alone, together, strict=True):
        assert [h.score for h in one.hypotheses] == pytest.approx(
            [h.score for h in other.hypotheses], abs=1e-4
        )
    assert translator.model.config._attn_implementation == "sdpa"


def test_threads_that_share_a_library_model_get_the_results_of_one_thread() -> None:
    """The weights are computed by other operations, of which a search at the same time must not know."""
    model = toy_marian()
    model.set_attn_implementation("sdpa")
    covering = translator_of("marian", coverage_penalty=1.0)
    plain = translator_of("marian")
    batches = [toy_sources(5, seed=-100 - number) for number in range(12)]
    expected = [(covering(batch), plain(batch)) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda batch: (covering(batch), plain(batch)), batches * 2)
        assert list(found) == expected * 2


def test_an_ensemble_covers_with_the_mean_of_its_members() -> None:
    members = [toy_model(), toy_model(d_model=16, norm_order="pre", decoder_layers=2)]
    ids = toy_tokenizer()(SENTENCES[:2], padding=True, return_tensors="pt")
    inputs = ids["input_ids"], ids["attention_mask"]
    sequences = torch.randint(3, 300, (4, 6))
    first, second = (cross_attention(member, *inputs, sequences) for member in members)
    found = cross_attention(Ensemble(members), *inputs, sequences)
    torch.testing.assert_close(found, (first + second) / 2)
    torch.testing.assert_close(found.sum(dim=2), torch.ones(4, 5))
    found = cross_attention(Ensemble(members, weights=[1, 3]), *inputs, sequences)
    torch.testing.assert_close(found, 0.25 * first + 0.75 * second)
    translator = Translator(Ensemble(members), toy_tokenizer(), coverage_penalty=1.0)
    assert [t.text for t in translator.translate(SENTENCES, n_best=4)] == translator(SENTENCES)


def test_samples_are_ranked_by_coverage_too() -> None:
    plain, covering = (translator_of("toy", temperature=1.5, coverage_penalty=beta) for beta in (0.0, 3.0))
    lists = [list(each.translate(SENTENCES, n_best=5)) for each in (plain, covering)]
    assert [sorted(h.text for h in t.hypotheses) for t in lists[0]] == [
        sorted(h.text for h in t.hypotheses) for t in lists[1]
    ]
    assert [t.text for t in lists[0]] != [t.text for t in lists[1]]


@pytest.mark.parametrize(
    "kind",
    ["marian", "marian of two vocabularies", "fsmt", "m2m100", "mbart", "bart", "pegasus", "t5", "led"],
)
def test_coverage_of_each_model_of_the_library(kind: str, tmp_path: Path) -> None:
    folder = save_translator(kind, tmp_path / "model")
    translator = Translator.from_pretrained(folder, temperature=1.0, coverage_penalty=0.5, max_length=2)
    given = translator.model.config._attn_implementation
    plain = Translator.from_pretrained(folder, temperature=1.0, max_length=2)
    sentences = ["the big cat sees two dogs", "the small hen"]
    for one, other in zip(
        translator.translate(sentences, n_best=3), plain.translate(sentences, n_best=3), strict=True
    ):
        scores = [hypothesis.score for hypothesis in one.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert sum(scores) < sum(hypothesis.score for hypothesis in other.hypotheses)
    ids = translator.sides.sources.token_ids(sentences)
    source = torch.tensor(ids[:1])
    weights = cross_attention(translator.model, source, torch.ones_like(source), torch.tensor([[5, 6, 7, 8]]))
    assert weights.shape == (1, 3, len(ids[0]))
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(1, 3))
    assert translator.model.config._attn_implementation == given
