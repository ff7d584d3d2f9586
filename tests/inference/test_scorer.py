"""Scores of given texts equal those of the search, and those of one text or masked token at a time."""

import math
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel

import toy_labels
from given_tokenizers import gpt2
from library_tokenizers import KINDS, SOURCES, TARGETS
from library_translators import OF_ANY_TOKENIZER, save_translator
from toy_translation import save_toy_checkpoint, toy_model, toy_rows, toy_tokenizer, toy_tokenizers
from vaswani import Scorer, Translator
from vaswani.data.text_codec import TextCodec
from vaswani.data.tokenization import load_tokenizers
from vaswani.errors import RunError, UserError
from vaswani.inference.pairs import Pair, PairEncoder
from vaswani.inference.translate.ensembling import Ensemble

TEXTS = ["the film was great", "awful", "ann saw bob in rome and oslo"]


@torch.no_grad()
def one_by_one(model: Any, source: list[int], start: int, target: list[int]) -> list[float]:
    """The log-probability of each token of a target, each after a pass of its own."""
    found = []
    for place, token in enumerate(target):
        given = torch.tensor([[start, *target[:place]]])
        # With a cache, FSMT of transformers 5.12 does not mask later tokens in such a pass.
        outputs = model(input_ids=torch.tensor([source]), decoder_input_ids=given, use_cache=False)
        logits = outputs.logits[0, -1].double()
        found.append(float(logits.log_softmax(-1)[token]))
    return found


# Encoder-decoders.


@pytest.mark.parametrize("separate", [False, True])
def test_a_pair_is_scored_token_by_token_with_its_end(separate: bool) -> None:
    model, (source, target) = toy_model(separate), toy_tokenizers(separate)
    rows = toy_rows(9, seed=-3)
    scores = Scorer(model, source, target)(rows, with_tokens=True)
    for (text, translation), score in zip(rows, scores, strict=True):
        ids = target(translation)["input_ids"]
        expected = one_by_one(model, source(text)["input_ids"], model.config.decoder_start_token_id, ids)
        assert score.tokens is not None
        names, log_probs = zip(*score.tokens, strict=True)
        assert list(names) == target.convert_ids_to_tokens(ids)
        assert names[-1] == "</s>"
        assert log_probs == pytest.approx(expected, abs=1e-4)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-4)
        assert score.num_tokens == len(ids)
        assert score.perplexity == pytest.approx(math.exp(-sum(expected) / len(ids)), rel=1e-4)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_hypothesis_has_the_same_score_as_in_its_search(num_beams: int) -> None:
    model, tokenizer = toy_model(), toy_tokenizer()
    translator = Translator(model, tokenizer, num_beams=num_beams, max_length=6, length_penalty=1.3)
    scorer = Scorer(model, tokenizer, length_penalty=1.3)
    sources = [source for source, _ in toy_rows(40, seed=-5)]
    found = [
        (Pair(translation.source, hypothesis.text, hypothesis.complete), hypothesis)
        for translation in translator.translate(sources, n_best=num_beams)
        for hypothesis in translation.hypotheses
    ]
    assert {hypothesis.complete for _, hypothesis in found} == {True, False}
    for (_, hypothesis), score in zip(found, scorer([pair for pair, _ in found]), strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=2e-5)
        assert scorer.rank_key(score) == pytest.approx(hypothesis.score, abs=2e-5)


@pytest.mark.parametrize(("kind", "tag"), [("m2m100", 1), ("nllb", 1), ("mbart50", 1), ("mbart", 0)])
def test_a_language_that_is_forced_counts_as_in_a_search(kind: str, tag: int, tmp_path: Path) -> None:
    """The log-probability of a hypothesis counts it, the score that ranks hypotheses does not."""
    folder = save_translator(kind, tmp_path)
    translator, scorer = Translator.from_pretrained(folder, max_length=20), Scorer.from_pretrained(folder)
    for model in (translator.model, scorer.model):  # they end after the prefix
        ends = torch.nn.functional.one_hot(torch.tensor(model.config.eos_token_id), model.config.vocab_size)
        model.get_output_embeddings().register_forward_hook(
            lambda _, __, logits, ends=ends: logits + 5 * ends
        )
    targets = ["kleine Kuh", "zwei Katzen", "Hund"]
    found = translator.translate(["the big cat"] * 3, prefixes=targets)
    hypotheses = [translation.hypotheses[0] for translation in found]
    assert [(each.text, each.complete) for each in hypotheses] == [(text, True) for text in targets]
    scores = scorer([("the big cat", text) for text in targets], with_tokens=True)
    for hypothesis, score in zip(hypotheses, scores, strict=True):
        assert score.log_prob == pytest.approx(hypothesis.log_prob, abs=2e-5)
        assert scorer.rank_key(score) == pytest.approx(hypothesis.score, abs=2e-5)
        assert score.forced_log_prob == sum(log_prob for _, log_prob in (score.tokens or ())[:tag])


@pytest.mark.parametrize("kind", [*KINDS, *OF_ANY_TOKENIZER])
def test_targets_of_the_library_are_encoded_as_in_training(kind: str, tmp_path: Path) -> None:
    folder = save_translator(kind, tmp_path)
    scorer = Scorer.from_pretrained(folder)
    source_tokenizer, target_tokenizer = load_tokenizers(folder)
    sources, targets = TextCodec(source_tokenizer), TextCodec(target_tokenizer, "target")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    options = targets.start_options()
    start = options.get("decoder_start_token_id", model.config.decoder_start_token_id)
    pairs = [(SOURCES[0], TARGETS[0]), ("the cow", "kleine Kuh"), (SOURCES[5], "")]
    scores = scorer(pairs, with_tokens=True)
    for (source, target), score in zip(pairs, scores, strict=True):
        (ids,) = targets.token_ids([target])
        end = target_tokenizer.eos_token_id if kind != "fsmt" else target_tokenizer.sep_token_id
        ids = ids[: 1 + ids.index(end)]  # mBART adds its language after the end
        expected = one_by_one(model, sources.token_ids([source])[0], start, ids)
        assert [log_prob for _, log_prob in score.tokens or ()] == pytest.approx(expected, abs=1e-4)
        if "forced_bos_token_id" in options:
            assert ids[0] == options["forced_bos_token_id"]


def test_members_of_an_ensemble_see_no_later_tokens(tmp_path: Path) -> None:
    """FSMT masks them only on request; the ensemble of a model with itself equals that model."""
    folder = save_translator("fsmt", tmp_path)
    model, tokenizers = AutoModelForSeq2SeqLM.from_pretrained(folder), load_tokenizers(folder)
    pairs = list(zip(SOURCES[:3], TARGETS[:3], strict=True))
    (expected, found) = (
        [score.log_prob for score in Scorer(each, *tokenizers)(pairs)]
        for each in (model, Ensemble([model, model]))
    )
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_target_language_and_a_prefix_change_the_tokens(tmp_path: Path) -> None:
    pair = (SOURCES[0], TARGETS[0])
    folder = save_translator("m2m100", tmp_path / "m2m100")
    scores = [
        Scorer.from_pretrained(folder, target_language=language)([pair], with_tokens=True)[0]
        for language in ("de", "fr")
    ]
    assert [(score.tokens or (("", 0.0),))[0][0] for score in scores] == ["__de__", "__fr__"]
    folder = save_translator("m2m100", tmp_path / "sources")
    of_source = [
        Scorer.from_pretrained(folder, source_language=language)([pair])[0] for language in ("en", "fr")
    ]
    assert of_source[0] != of_source[1]
    folder = save_translator("t5", tmp_path / "t5")
    prefixed = Scorer.from_pretrained(folder, source_prefix="see: ")([pair])
    assert prefixed == Scorer.from_pretrained(folder)([("see: " + pair[0], pair[1])])
    assert prefixed != Scorer.from_pretrained(folder)([pair])


def test_an_end_token_that_the_tokenizer_lacks_is_added(tmp_path: Path) -> None:
    tokenizer = toy_tokenizer()
    without = toy_labels.given_tokenizers.gpt2(tmp_path)
    model = toy_model()
    encoder = PairEncoder(model, tokenizer, without)
    (target,) = encoder.encode_targets(["1 2"], [True])
    assert target.token_ids == [*without("1 2")["input_ids"], model.generation_config.eos_token_id]


@pytest.mark.parametrize("kind", ["toy", "m2m100", "mbart"])
def test_a_target_without_tokens_is_not_scored(kind: str, tmp_path: Path) -> None:
    """A language that is forced is no token of its own; nothing would rank before all other targets."""
    save = save_toy_checkpoint if kind == "toy" else partial(save_translator, kind)
    scorer = Scorer.from_pretrained(save(tmp_path))
    scores = scorer([Pair("one", "", complete=False), ("one", "")])
    assert [score.problem for score in scores] == ["its target is empty and has no end token", None]


def test_hypotheses_are_ranked_by_the_length_penalty() -> None:
    hypotheses = ["1 2 3", "1", "", "1 2 3 4 5 6 7 8"]
    ranked = {}
    for alpha in (0.0, 0.6, 8.0):
        scorer = Scorer(toy_model(), toy_tokenizer(), length_penalty=alpha)
        found = scorer.rank("one two three", hypotheses)
        keys = [score.log_prob / ((5 + score.num_tokens) / 6) ** alpha for _, score in found]
        assert keys == sorted(keys, reverse=True)
        ranked[alpha] = [text for text, _ in found]
    assert ranked[0.0] != ranked[8.0]
    assert sorted(ranked[0.6]) == sorted(hypotheses)


@pytest.mark.parametrize("options", [{"max_tokens_per_batch": 1}, {"max_tokens_per_batch": 64}])
@pytest.mark.parametrize("logits_at_once", [1, 1 << 26])
def test_a_score_does_not_depend_on_the_batch(options: dict[str, Any], logits_at_once: int) -> None:
    rows = [(source, target) for source, _ in toy_rows(4, seed=-1) for _, target in toy_rows(5, seed=-2)]
    expected = [score.log_prob for score in Scorer(toy_model(), toy_tokenizer())(rows)]
    with patch("vaswani.inference.token_log_probs._LOGITS_AT_ONCE", logits_at_once):
        scorer = Scorer(toy_model(), toy_tokenizer(), **options)
        found = [score.log_prob for score in scorer.stream(rows, buffer_size=7)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_unreadable_pairs_have_a_problem_and_the_others_a_score() -> None:
    model = toy_model(position_embedding="learned", max_position_embeddings=12)
    long = " ".join(["one"] * 12)
    rows = [("one", "1"), (long, "1"), ("one", " ".join("1" * 12)), ("", "1"), ("one", "")]
    scores = Scorer(model, toy_tokenizer())(rows)
    assert [score.log_prob is None for score in scores] == [False, True, True, True, False]
    problems = [score.problem for score in scores]
    assert problems[1:4] == [
        "its source has 13 tokens, and the model has positions for 12; max_source_length=12 would truncate "
        "it",
        "its target has 13 tokens, and the model has positions for 12",
        "its source is empty",
    ]
    assert scores[4].num_tokens == 1  # the end of an empty target
    cut = Scorer(model, toy_tokenizer(), too_long="cut")(rows)[1]
    assert cut.cut_off
    (expected,) = Scorer(model, toy_tokenizer())([(" ".join(["one"] * 11), "1")])
    assert cut.log_prob == pytest.approx(expected.log_prob, abs=1e-5)
    limited = Scorer(toy_model(), toy_tokenizer(), max_length=3, max_source_length=3, too_long="skip")
    assert [
        score.problem for score in limited([("one two three", "1"), ("one", "1 2 3"), ("one", "1 2")])
    ] == [
        "its source has 4 tokens, more than max_source_length=3; raise that, or truncate it (too_long=cut)",
        "its target has 4 tokens, more than max_length=3; raise that",
        None,
    ]


# Language models.


@pytest.mark.parametrize("library", [False, True])
def test_a_causal_model_scores_every_token_after_the_begin_token(library: bool, tmp_path: Path) -> None:
    scorer = Scorer.from_pretrained(toy_labels.save_toy_decoder(tmp_path, library))
    model, tokenizer = scorer.model, load_tokenizers(tmp_path)[0]
    for text, score in zip(TEXTS, scorer(TEXTS, with_tokens=True), strict=True):
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = [tokenizer.bos_token_id, *plain]  # GPT-2's tokenizer has one and does not add it
        with torch.no_grad():
            log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [float(log_probs[place, token]) for place, token in enumerate(plain)]
        assert [log_prob for _, log_prob in score.tokens or ()] == pytest.approx(expected, abs=1e-4)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-4)


def test_without_a_token_that_begins_texts_the_first_token_is_not_scored(tmp_path: Path) -> None:
    scorer = Scorer.from_pretrained(toy_labels.save_toy_decoder(tmp_path, library=True))
    tokenizer = load_tokenizers(tmp_path)[0]
    tokenizer.bos_token = None
    whole, (one, nothing, score) = scorer(TEXTS), Scorer(scorer.model, tokenizer)(["t", "", TEXTS[0]])
    assert score.num_tokens == whole[0].num_tokens - 1
    ids = tokenizer(TEXTS[0])["input_ids"]
    with torch.no_grad():
        loss = scorer.model(torch.tensor([ids]), labels=torch.tensor([ids])).loss
    assert score.log_prob == pytest.approx(-float(loss) * (len(ids) - 1), abs=1e-4)
    for empty in (one, nothing):
        assert (empty.log_prob, empty.num_tokens, empty.perplexity) == (0.0, 0, None)


@pytest.mark.parametrize("library", [False, True])
def test_a_masked_model_masks_and_scores_each_token(library: bool, tmp_path: Path) -> None:
    scorer = Scorer.from_pretrained(toy_labels.save_toy_encoder(tmp_path, library))
    tokenizer = load_tokenizers(tmp_path)[0]
    for text, score in zip(TEXTS, scorer(TEXTS, with_tokens=True), strict=True):
        batch = tokenizer(text, return_tensors="pt")
        expected = []
        for place in range(1, batch["input_ids"].shape[1] - 1):
            ids = batch["input_ids"].clone()
            token, ids[0, place] = int(ids[0, place]), tokenizer.mask_token_id
            with torch.no_grad():
                logits = scorer.model(**{**batch, "input_ids": ids}).logits[0, place]
            expected.append(float(logits.log_softmax(-1)[token]))
        assert [log_prob for _, log_prob in score.tokens or ()] == pytest.approx(expected, abs=1e-4)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-4)
    assert scorer([""])[0].num_tokens == 0


def test_a_model_of_two_objectives_scores_by_its_masked_one(tmp_path: Path) -> None:
    tokenizer = toy_labels.toy_tokenizer()
    BertForPreTraining(toy_labels.toy_config(library=True)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = Scorer.from_pretrained(tmp_path)
    (score,) = scorer(["ann"])
    batch = tokenizer("ann", return_tensors="pt")
    (place,) = range(1, batch["input_ids"].shape[1] - 1)
    token = int(batch["input_ids"][0, place])
    batch["input_ids"][0, place] = tokenizer.mask_token_id
    with torch.no_grad():
        logits = scorer.model(**batch).prediction_logits[0, place]
    assert score.log_prob == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-5)


@pytest.mark.parametrize("kind", ["causal", "masked"])
@pytest.mark.parametrize("max_tokens", [1, 40])
def test_the_score_of_a_text_does_not_depend_on_the_batch(kind: str, max_tokens: int, tmp_path: Path) -> None:
    save = toy_labels.save_toy_decoder if kind == "causal" else toy_labels.save_toy_encoder
    folder = save(tmp_path)
    expected = [score.log_prob for score in Scorer.from_pretrained(folder)(TEXTS)]
    counts: list[int] = []
    with patch("vaswani.inference.token_log_probs._LOGITS_AT_ONCE", 1):
        scorer = Scorer.from_pretrained(folder, max_tokens_per_batch=max_tokens)
        found = [score.log_prob for score in scorer.stream(TEXTS, buffer_size=2, progress=counts.append)]
    assert found == pytest.approx(expected, abs=1e-4)
    assert sum(counts) == len(TEXTS)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_a_text_that_is_too_long_has_a_problem(kind: str, tmp_path: Path) -> None:
    save = toy_labels.save_toy_decoder if kind == "causal" else toy_labels.save_toy_encoder
    folder = save(tmp_path, max_position_embeddings=40, position_embedding="learned")
    long, short = Scorer.from_pretrained(folder)([" ".join(["good"] * 60), "good"])
    assert "tokens, and at most 40 can be read" in (long.problem or "")
    assert short.log_prob is not None
    assert Scorer.from_pretrained(folder, max_length=3)(TEXTS)[0].problem is not None


# What cannot be scored.


def test_non_finite_weights_raise_an_error(tmp_path: Path) -> None:
    scorer = Scorer(toy_model(), toy_tokenizer())
    with torch.no_grad():
        scorer.model.model.decoder.layers[0].fc1.weight[3] = math.nan  # type: ignore[attr-defined]
    with pytest.raises(RunError, match="the model's scores are not finite numbers in float32"):
        scorer([("one two", "1 2")])
    for save in (toy_labels.save_toy_decoder, toy_labels.save_toy_encoder):
        of_texts = Scorer.from_pretrained(save(tmp_path / save.__name__))
        with torch.no_grad():
            next(iter(of_texts.model.parameters())).fill_(math.nan)
        with pytest.raises(RunError, match="not finite numbers"):
            of_texts(["good"])


def test_other_models_and_inputs_are_refused(tmp_path: Path) -> None:
    folder = toy_labels.save_toy_classifier(tmp_path / "classifier", "classification")
    with pytest.raises(UserError, match="which gives tokens no probabilities; expected an encoder-decoder"):
        Scorer.from_pretrained(folder)
    scorer = Scorer(toy_model(), toy_tokenizer())
    with pytest.raises(UserError, match=r"the model scores a source and a target, .* got 'one'"):
        scorer(["one"])
    with pytest.raises(UserError, match="expected a list of texts, got one text"):
        scorer("one")
    with pytest.raises(UserError, match="the model scores a source and a target"):
        scorer([("one", None)])
    with pytest.raises(UserError, match=r"targets is one text; give a list: \['1 2'\]"):
        scorer.rank("one two", "1 2")
    targets = ["1", "1 2"]
    assert scorer.rank("one two", iter(targets)) == scorer.rank("one two", targets)
    of_texts = Scorer.from_pretrained(toy_labels.save_toy_decoder(tmp_path / "decoder"))
    with pytest.raises(UserError, match="the model scores a text; got"):
        of_texts([("one", "1")])
    with pytest.raises(UserError, match="too_long is for encoder-decoders; leave it out"):
        Scorer(of_texts.model, toy_labels.toy_tokenizer(), too_long="cut")
    with pytest.raises(UserError, match="the tokenizer has no mask_token"):
        Scorer(BertForPreTraining(BertConfig(hidden_size=8, num_attention_heads=1)), toy_tokenizer())
    for options in ({"max_length": 0}, {"max_tokens_per_batch": 0}, {"length_penalty": math.nan}):
        with pytest.raises(UserError, match=next(iter(options))):
            Scorer(toy_model(), toy_tokenizer(), **options)


def test_a_text_may_have_the_maximum_length_and_no_more(tmp_path: Path) -> None:
    """A token that is put in front of the text does not count."""
    tokenizer, text = gpt2(tmp_path), TEXTS[0]
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape))
    length = len(tokenizer(text).input_ids)
    for limit, fits in ((length, True), (length - 1, False)):
        (score,) = Scorer(model, tokenizer, max_length=limit)([text])
        assert (score.problem is None) is fits
