"""Padding that a model never writes, and that would be its most probable token, as in OPUS-MT models."""

import pytest
import torch

from toy_translation import toy_model, toy_sources, toy_tokenizer, toy_tokenizers
from vaswani import Scorer, Translator, VaswaniForConditionalGeneration
from vaswani.distillation.trainer import teacher_logits
from vaswani.inference.translate.ensembling import Ensemble
from vaswani.kernels import ensemble_search
from vaswani.unwritten_padding import unwritten_padding

SENTENCES = toy_sources(12, seed=-1)
PADDING = 0


def model(shift: float) -> VaswaniForConditionalGeneration:
    """One that never writes padding; every other logit is lowered by the shift."""
    made = toy_model(lm_head_bias=True)
    with torch.no_grad():
        made.lm_head.bias -= shift
        made.lm_head.bias[PADDING] = 0
    made.generation_config.bad_words_ids = [[PADDING]]
    return made


def translator(shift: float, **options: object) -> Translator:
    return Translator(model(shift), *toy_tokenizers(False), num_beams=4, max_length=12, **options)


def other() -> VaswaniForConditionalGeneration:
    return toy_model(d_model=16, norm_order="pre", decoder_layers=2)


def test_only_padding_banned_from_generation_is_left_out():
    made = toy_model()
    assert unwritten_padding(made) is None
    made.generation_config.bad_words_ids = [[7], [PADDING, 3]]
    assert unwritten_padding(made) is None
    made.generation_config.bad_words_ids = [[7], [PADDING]]
    assert unwritten_padding(made) == PADDING
    made.generation_config.bad_words_ids = None
    made.generation_config.suppress_tokens = [PADDING]
    assert unwritten_padding(made) == PADDING


def test_scores_and_the_best_translation_do_not_depend_on_padding():
    expected, found = translator(0), translator(12)
    pairs = [(source, "eins zwei") for source in SENTENCES]
    scores = [Scorer(each.model, *toy_tokenizers(False))(pairs) for each in (expected, found)]
    assert [score.log_prob for score in scores[1]] == pytest.approx(
        [score.log_prob for score in scores[0]], abs=1e-3
    )
    lists = [list(each.translate(SENTENCES, n_best=4)) for each in (expected, found)]
    for one, two in zip(*lists, strict=True):
        assert two.hypotheses[0].text == one.hypotheses[0].text
        assert two.hypotheses[0].score == pytest.approx(one.hypotheses[0].score, abs=1e-3)
    best = [translation.text for translation in found.translate(SENTENCES, with_scores=False)]
    assert best == [translation.hypotheses[0].text for translation in lists[1]]


@pytest.mark.parametrize(
    "options", [{"no_repeat_ngram_size": 1}, {"banned_phrases": ["1"]}, {"min_length": 5}], ids="".join
)
def test_the_first_of_a_list_is_what_a_search_for_one_finds(options):
    found = translator(12, **options)
    best = [translation.text for translation in found.translate(SENTENCES)]
    lists = list(found.translate(SENTENCES, n_best=4))
    assert [each.text for each in lists] == best
    assert any(
        [one.score for one in each.hypotheses] != sorted((one.score for one in each.hypotheses), reverse=True)
        for each in lists
    )


@pytest.mark.parametrize("by_kernel", [False, True])
def test_an_ensemble_ignores_unwritten_padding(by_kernel, monkeypatch):
    if not by_kernel:
        monkeypatch.setattr(ensemble_search, "_members", lambda *_: None)
    texts = []
    for shift in (0, 12):
        together = Ensemble([other(), model(shift)])
        texts.append(Translator(together, *toy_tokenizers(False), num_beams=4, max_length=12)(SENTENCES))
    assert texts[0] == texts[1]


def test_teacher_logits_exclude_unwritten_padding():
    batch = toy_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    inputs["labels"] = torch.randint(3, 300, (len(SENTENCES), 6))
    expected, found = (teacher_logits(model(shift), inputs).log_softmax(-1) for shift in (0, 12))
    torch.testing.assert_close(found[..., 1:], expected[..., 1:], rtol=0, atol=1e-3)
    assert found.isfinite().all()
    assert (found[..., PADDING] <= found.amin(-1)).all()
    for average in ("probabilities", "log_probabilities"):
        together = teacher_logits(Ensemble([model(0), model(12)], average=average), inputs)
        assert together.isfinite().all()
