"""An ensemble behaves as a model that predicts the mean probabilities of its members."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from transformers import (  # fmt: skip
    BartConfig,
    BartForConditionalGeneration,
    GenerationMixin,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from toy_translation import save_toy_checkpoint, toy_model, toy_sources, toy_tokenizer, toy_tokenizers
from vaswani import VaswaniForConditionalGeneration
from vaswani.errors import UserError
from vaswani.inference.position_limits import position_limit
from vaswani.inference.translate.ensembling import AVERAGES, Ensemble, EnsembleCache
from vaswani.inference.translate.translation import Translator
from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME

SENTENCES = [*toy_sources(12, seed=-1), *toy_sources(2, seed=-2, longest=20)]
IDS = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "vocab_size": 304}


def members() -> list[PreTrainedModel]:
    """Two trained models of different widths, depths and norm orders."""
    return [toy_model(), toy_model(d_model=16, norm_order="pre", decoder_layers=2)]


def foreign_models(**fields: Any) -> list[PreTrainedModel]:
    """One of each kind with random weights and one vocabulary."""
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "init_std": 0.5}
    shape |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 128}
    shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2} | IDS | fields
    t5 = {"d_model": 24, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "initializer_factor": 2.0}
    return [
        MarianMTModel(MarianConfig(**shape)),
        BartForConditionalGeneration(BartConfig(**{**shape, "max_position_embeddings": 64})),
        T5ForConditionalGeneration(T5Config(**t5, **IDS)),
        toy_model(),
    ]


def batch() -> dict[str, torch.Tensor]:
    data = toy_tokenizer()(SENTENCES, padding=True, return_tensors="pt")
    source = {name: data[name] for name in ("input_ids", "attention_mask")}
    return {**source, "decoder_input_ids": torch.randint(3, 304, (len(SENTENCES), 6))}


def mean_log_probs(models: list[PreTrainedModel], data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The reference: probabilities added up by hand."""
    probabilities = [model(**data, use_cache=False).logits.double().softmax(-1) for model in models]
    return (sum(probabilities) / len(models)).log().float()


def translator_of(model: PreTrainedModel, **options: Any) -> Translator:
    return Translator(model, toy_tokenizer(), **options)


# Next-token distributions.


@pytest.mark.slow
@pytest.mark.parametrize("models", [members, foreign_models])
def test_logits_are_the_logarithm_of_the_mean_probability(models: Any) -> None:
    models = [model.eval() for model in models()]
    data = batch()
    logits = Ensemble(models)(**data).logits
    assert logits.shape == (len(SENTENCES), 6, 304)
    torch.testing.assert_close(logits, mean_log_probs(models, data), rtol=1e-4, atol=1e-5)
    for model in models:
        assert (logits - model(**data).logits.log_softmax(-1)).abs().max() > 0.1


@pytest.mark.slow
def test_members_receive_the_padding_mask_of_the_target() -> None:
    models, data = members(), batch()
    data["decoder_attention_mask"] = torch.ones_like(data["decoder_input_ids"])
    data["decoder_attention_mask"][0, :3] = 0
    logits = Ensemble(models)(**data).logits
    torch.testing.assert_close(logits[0, 3:], mean_log_probs(models, data)[0, 3:], rtol=1e-4, atol=1e-5)
    del data["decoder_attention_mask"]
    assert (logits - Ensemble(models)(**data).logits)[0, 3:].abs().max() > 0.01


def test_members_compute_in_their_own_dtype_and_the_mean_is_float32() -> None:
    models, data = members(), batch()
    models[0].bfloat16()
    logits = Ensemble(models)(**data).logits
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, mean_log_probs(models, data), rtol=1e-4, atol=1e-4)
    assert Ensemble(models[:1])(**data).logits.dtype == torch.float32


def test_members_are_shared_and_put_into_evaluation_mode() -> None:
    models = [model.train() for model in members()]
    ensemble = Ensemble(models)
    assert list(ensemble.members) == models
    assert not any(model.training for model in models)
    assert ensemble.num_parameters() == sum(model.num_parameters() for model in models)
    ensemble.generation_config.num_beams = 7
    assert models[0].generation_config.num_beams != 7


def test_the_configuration_is_that_of_one_wide_model_of_the_same_tokens() -> None:
    models, data = foreign_models(), batch()
    ensemble = Ensemble(models)
    states = ensemble.get_encoder()(data["input_ids"], data["attention_mask"]).last_hidden_state
    assert ensemble.config.hidden_size == states.shape[-1] == sum(model.config.d_model for model in models)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        assert getattr(ensemble.config, name) == getattr(models[0].config, name)
    for embeddings in (ensemble.get_input_embeddings(), ensemble.get_output_embeddings()):
        assert len(embeddings.weight) == 304


# An ensemble of one.


def test_an_ensemble_of_one_equals_its_model() -> None:
    model, data = toy_model(), batch()
    ensemble = Ensemble([model])
    torch.testing.assert_close(ensemble(**data).logits, model(**data).logits.log_softmax(-1))
    for num_beams in (1, 4):
        one, alone = (translator_of(m, num_beams=num_beams) for m in (ensemble, model))
        for found, expected in zip(one.translate(SENTENCES), alone.translate(SENTENCES), strict=True):
            assert found.text == expected.text
            assert found.hypotheses[0].score == pytest.approx(expected.hypotheses[0].score, abs=1e-4)


@pytest.mark.parametrize("kind", range(4))
def test_an_ensemble_of_one_library_model_generates_as_the_model(kind: int) -> None:
    model = foreign_models()[kind].eval()
    options = {name: value for name, value in batch().items() if name != "decoder_input_ids"}
    options |= {"num_beams": 4, "max_length": 12, "do_sample": False}
    assert torch.equal(Ensemble([model]).generate(**options), model.generate(**options))


# Searching.


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("models", [members, foreign_models])
def test_a_search_with_caches_finds_what_it_finds_without(models: Any, num_beams: int) -> None:
    ensemble = Ensemble(models())
    options = {name: value for name, value in batch().items() if name != "decoder_input_ids"}
    options |= {"num_beams": num_beams, "max_length": 16, "do_sample": False, "return_dict_in_generate": True}
    options |= {"output_scores": True}
    cached, recomputed = (ensemble.generate(**options, use_cache=choice) for choice in (True, False))
    assert torch.equal(cached.sequences, recomputed.sequences)
    assert isinstance(cached[CACHE_NAME], EnsembleCache)
    if num_beams > 1:
        torch.testing.assert_close(cached.sequences_scores, recomputed.sequences_scores)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}])
def test_its_own_searches_equal_those_of_the_library(options: Any, average: str) -> None:
    """Sources of very different lengths, so that some leave the batch before others."""
    ensemble = Ensemble(members(), [1, 3], average)
    data = {name: value for name, value in batch().items() if name != "decoder_input_ids"}
    data |= {"max_length": 30, "length_penalty": 0.6, **options}
    with patch.object(SearchCache, "next_logits", autospec=True, side_effect=SearchCache.next_logits) as own:
        found = ensemble.generate(**data)
    assert own.call_count >= 2 * 8  # of both members
    assert min(call.args[2].shape[0] for call in own.call_args_list) == len(SENTENCES) * data.get(
        "num_beams", 1
    )
    with patch.multiple(Ensemble, _sample=GenerationMixin._sample, _beam_search=GenerationMixin._beam_search):
        assert torch.equal(found, ensemble.generate(**data))


@pytest.mark.parametrize("options", [{"num_beams": 4}, {"do_sample": False}])
def test_unsupported_searches_fall_back_to_the_library(options: dict[str, Any]) -> None:
    data = {name: value for name, value in batch().items() if name != "decoder_input_ids"} | options
    with patch.object(SearchCache, "next_logits", side_effect=AssertionError):
        Ensemble(foreign_models()).generate(**data, max_length=8)
        Ensemble(members()).generate(**data, max_length=8, use_cache=False)
        Ensemble(members()).generate(**data, max_length=8, cache_implementation="static")


def test_members_compute_their_steps_without_their_modules() -> None:
    models = members()
    ensemble, calls = Ensemble(models), []
    plain = VaswaniForConditionalGeneration.forward

    def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(model)
        return plain(model, *args, **kwargs)

    with patch.object(VaswaniForConditionalGeneration, "forward", forward):
        translator_of(ensemble)(["one two three four five"])
    assert list(map(models.index, calls)) == [0, 1]  # for the first token


def test_a_step_with_the_cache_feeds_each_member_one_token() -> None:
    models = members()
    widths = set()
    for model in models:
        model.get_decoder().register_forward_pre_hook(
            lambda module, args, kwargs: widths.add(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
    translator_of(Ensemble(models))(["one two three"])
    assert widths == {1}


def test_scores_are_those_of_the_search_and_translations_those_of_no_member() -> None:
    models = members()
    ensemble = Ensemble(models)
    translations = list(translator_of(ensemble).translate(SENTENCES, n_best=2))
    texts = [translation.text for translation in translations]
    assert all(texts != translator_of(model)(SENTENCES) for model in models)
    translator, tokenizer = translator_of(ensemble), toy_tokenizer()
    for translation in translations[:6]:
        encoded = tokenizer(translation.source, return_tensors="pt")
        source = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        search = ensemble.generate(
            **source,
            num_beams=4,
            num_return_sequences=2,
            length_penalty=translator.options.length_penalty,
            max_length=1 + source["input_ids"].shape[1] + 50,
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == pytest.approx(search.sequences_scores.tolist(), abs=1e-4)
        tokens = search.sequences[0, 1:].tolist()
        length = tokens.index(2) + 1 if 2 in tokens else len(tokens)
        targets = search.sequences[:1, 1 : 1 + length]
        with torch.no_grad():
            predicted = mean_log_probs(models, {**source, "decoder_input_ids": search.sequences[:1, :length]})
        expected = predicted.gather(2, targets[..., None]).sum().item()
        assert translation.hypotheses[0].log_prob == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_do_not_depend_on_batches(num_beams: int) -> None:
    translator = translator_of(Ensemble(members()), num_beams=num_beams)
    together = translator(SENTENCES)
    assert len(set(together)) > 8
    assert [translator([sentence])[0] for sentence in SENTENCES] == together


def test_the_position_limit_is_the_smallest_of_the_members() -> None:
    marian, bart, t5, ours = foreign_models()
    assert position_limit(Ensemble([marian, bart, t5, ours])) == 64
    assert position_limit(Ensemble([marian, ours])) == 128
    assert position_limit(Ensemble([t5, ours])) is None


# What cannot be done.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_token_id": 7}, "pad_token_id, 0 and 7"),
        ({"eos_token_id": 9}, "eos_token_id, 2 and 9"),
        ({"decoder_start_token_id": 0}, "decoder_start_token_id, 1 and 0"),
        ({"vocab_size": 300}, "source vocabulary, 304 and 300"),
    ],
)
def test_models_with_different_tokens_raise_an_error(fields: dict[str, int], message: str) -> None:
    other = foreign_models(**fields)[0]
    with pytest.raises(UserError, match=f"models 1 and 3 of the ensemble differ in {message}; give models"):
        Ensemble([toy_model(), toy_model(), other])


def test_another_target_vocabulary_size_or_no_models_raise_an_error() -> None:
    sizes = " and ".join(str(len(target)) for _, target in (toy_tokenizers(), toy_tokenizers(True)))
    with pytest.raises(UserError, match=f"differ in target vocabulary, {sizes}; give models"):
        Ensemble([toy_model(), toy_model(separate=True)])
    with pytest.raises(UserError, match="an ensemble needs models"):
        Ensemble([])


# Weights and the average.


@pytest.mark.parametrize("weights", [None, [1, 3]])
def test_logarithms_of_probabilities_are_averaged_too(weights: list[float] | None) -> None:
    models, data = members(), batch()
    logits = Ensemble(models, weights, "log_probabilities")(**data).logits
    share = [0.5, 0.5] if weights is None else [0.25, 0.75]
    log_probs = [model(**data, use_cache=False).logits.double().log_softmax(-1) for model in models]
    expected = sum(part * each for part, each in zip(share, log_probs, strict=True)).log_softmax(-1)
    torch.testing.assert_close(logits, expected.float(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(logits.shape[:2]))
    assert (logits - Ensemble(models, weights)(**data).logits).abs().max() > 0.1


@pytest.mark.parametrize("weights", [[1.0, 3.0], [0.1, 0.3]])
def test_only_the_ratios_of_weights_matter(weights: list[float]) -> None:
    models, data = members(), batch()
    logits = Ensemble(models, weights)(**data).logits
    probabilities = [model(**data, use_cache=False).logits.double().softmax(-1) for model in models]
    expected = (0.25 * probabilities[0] + 0.75 * probabilities[1]).log().float()
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(Ensemble(models, [2, 2])(**data).logits, Ensemble(models)(**data).logits)


@pytest.mark.parametrize("average", ["probabilities", "log_probabilities"])
def test_an_ensemble_of_one_equals_its_model_with_any_average(average: str) -> None:
    model, data = toy_model(), batch()
    logits = Ensemble([model], [7.0], average)(**data).logits
    torch.testing.assert_close(logits, model(**data).logits.log_softmax(-1), rtol=1e-4, atol=1e-5)


# By name.


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("members")
    save_toy_checkpoint(folder / "first")
    save_toy_checkpoint(folder / "second", d_model=16, norm_order="pre", decoder_layers=2)
    save_toy_checkpoint(folder / "separate", separate=True)
    return [folder / "first", folder / "second", folder / "separate"]


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"temperature": 1.0}], ids=str)
def test_folders_are_loaded_as_an_ensemble(folders: list[Path], options: dict[str, Any]) -> None:
    together = Translator.from_pretrained(folders[:2], **options)
    assert isinstance(together.model, Ensemble)
    expected = translator_of(Ensemble(members()), **options)(SENTENCES)
    assert together(SENTENCES) == expected
    alone = Translator.from_pretrained(folders[:1], **options)(SENTENCES)
    assert alone == translator_of(toy_model(), **options)(SENTENCES) != expected
    weighted = Translator.from_pretrained(
        folders[:2], ensemble_weights=[1, 9], ensemble_average="log_probabilities", **options
    )
    other = Ensemble(members(), [1, 9], "log_probabilities")
    assert weighted(SENTENCES) == translator_of(other, **options)(SENTENCES) != expected


def test_an_ensemble_has_the_options_of_decoding(folders: list[Path]) -> None:
    translator = Translator.from_pretrained(folders[:2], banned_phrases=["8"], required_phrases=["5 5"])
    for translation in translator.translate(SENTENCES, prefixes=["9"] * len(SENTENCES), n_best=3):
        for hypothesis in translation.hypotheses:
            assert hypothesis.text.startswith("9")
            assert "5 5" in hypothesis.text
            assert "8" not in hypothesis.text


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        (
            [0],
            {"ensemble_weights": [1]},
            "ensemble_weights is for several models, and there is one; leave it out",
        ),
        ([0], {"ensemble_average": "probabilities"}, "ensemble_average is for several models"),
        ([0, 1], {"ensemble_weights": [1]}, "ensemble_weights has 1 weights, and there are 2 models"),
        ([0, 1], {"ensemble_weights": [1, 0]}, "ensemble_weights=0 must be above 0"),
        (
            [0, 1],
            {"ensemble_average": "mean"},
            "ensemble_average='mean' is unknown; expected probabilities or",
        ),
        ([0, 1], {"engine": "ctranslate2"}, "2 models form an ensemble, which engine=ctranslate2 does not"),
        ([0, 1], {"revision": "v1"}, "revision='v1' is of one model, and there are 2; leave it out"),
        ([], {}, "an ensemble needs models; give one or more"),
    ],
    ids=str,
)
def test_invalid_ensemble_options_raise_an_error_before_loading(
    models: list[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Translator.from_pretrained([f"no/model{number}" for number in models], **options)


def test_models_with_other_tokens_are_refused(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="have different target vocabularies, such as"):
        Translator.from_pretrained([folders[0], folders[2]])
    # Of the same size, with two tokens that have changed places.
    other = Path(shutil.copytree(folders[0], tmp_path / "other"))
    for path in other.glob("tokenizer.json"):
        known = json.loads(path.read_text())
        vocabulary = known["model"]["vocab"]
        vocabulary["1"], vocabulary["2"] = vocabulary["2"], vocabulary["1"]
        path.write_text(json.dumps(known))
    with pytest.raises(UserError, match=r"different source vocabularies, such as '[12]': \d+ and \d+; an"):
        Translator.from_pretrained([folders[0], other])
