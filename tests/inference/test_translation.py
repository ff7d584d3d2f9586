"""`Translator` on a toy language with a half-trained model."""

import copy
import json
from itertools import count, islice
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from datasets import Dataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from toy_translation import (
    save_toy_checkpoint,
    toy_model,
    toy_rows,
    toy_sources,
    toy_tokenizer,
    toy_tokenizers,
)
from vaswani.data.pair_tokens import tokenize_corpus
from vaswani.data.text_codec import TextCodec
from vaswani.errors import RunError, UserError
from vaswani.inference.batches import buffers
from vaswani.inference.decoding import GNMTLengthPenalty
from vaswani.inference.translate.engine import Output
from vaswani.inference.translate.results import Hypothesis, Translation
from vaswani.inference.translate.translation import Translator

EOS = 2
SENTENCES = [
    *toy_sources(24, seed=-1),
    *toy_sources(4, seed=-2, longest=30),
    "",
    " \t",
    "one",
    "one",
    "日本 🙂",
]


def toy_translator(model: PreTrainedModel | None = None, **options: Any) -> Translator:
    return Translator(model or toy_model(), toy_tokenizer(), **options)


def recorded_batches(translator: Translator, sentences: list[str], **options: Any) -> list[torch.Tensor]:
    """The attention masks that `generate` receives."""
    masks = []
    generate = translator.model.generate

    def recording(**kwargs: Any) -> torch.Tensor:
        masks.append(kwargs["attention_mask"])
        return generate(**kwargs)

    with patch.object(translator.model, "generate", recording):
        list(translator.translate(sentences, **options))
    return masks


# Each sentence is translated by itself, whatever stands beside it.


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 4])
def test_translations_do_not_depend_on_batches_or_order(num_beams: int) -> None:
    alone = [toy_translator(num_beams=num_beams)([sentence])[0] for sentence in SENTENCES]
    assert len(set(alone)) > 20
    for max_tokens_per_batch in (1, 400, 10**6):
        translator = toy_translator(num_beams=num_beams, max_tokens_per_batch=max_tokens_per_batch)
        assert translator(SENTENCES) == alone
        assert translator(SENTENCES[::-1]) == alone[::-1]


@pytest.mark.slow
def test_scores_and_n_best_lists_do_not_depend_on_batches() -> None:
    translator = toy_translator()
    together = list(translator.translate(SENTENCES, n_best=4))
    for sentence, translation in zip(SENTENCES, together, strict=True):
        (alone,) = translator.translate([sentence], n_best=4)
        assert translation.source == alone.source == sentence
        assert [h.text for h in translation.hypotheses] == [h.text for h in alone.hypotheses]
        scores = [[h.score for h in result.hypotheses] for result in (translation, alone)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_dropout_is_off_even_if_the_model_was_training() -> None:
    assert toy_translator(toy_model().train())(SENTENCES) == toy_translator()(SENTENCES)


def test_translations_are_correct_and_in_input_order() -> None:
    rows = toy_rows(40, seed=-3, longest=2)
    right = sum(
        translation == target
        for translation, (_, target) in zip(toy_translator()([s for s, _ in rows]), rows, strict=True)
    )
    assert right > 20


@pytest.mark.parametrize("empty", ["", " ", "\t\u3000"])
def test_empty_sentences_stay_empty_and_never_reach_the_model(empty: str) -> None:
    translator = toy_translator()
    one = translator(["one"])
    assert translator([empty, "one", empty]) == ["", *one, ""]
    assert [len(mask) for mask in recorded_batches(translator, [empty, "one", empty])] == [1]
    assert recorded_batches(translator, [empty]) == []
    assert translator([]) == []


def test_text_that_looks_like_a_special_token_is_text() -> None:
    masks = recorded_batches(toy_translator(), ["one</s><pad>two"])
    (as_text,) = TextCodec(toy_tokenizer()).token_ids(["one</s><pad>two"])
    assert masks[0].sum() == len(as_text) > 10


# Scores and ranking.


def test_hypotheses_are_sorted_and_the_first_is_the_translation() -> None:
    translator = toy_translator()
    found = list(translator.translate(SENTENCES, n_best=4))
    assert [translation.text for translation in found] == translator(SENTENCES)
    for translation in found:
        scores = [hypothesis.score for hypothesis in translation.hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == (4 if translation.source.strip() else 0)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_scores_are_those_of_the_search_and_log_probs_those_of_teacher_forcing(alpha: float) -> None:
    model, tokenizer = toy_model(), toy_tokenizer()
    for sentence in toy_sources(6, seed=-4):
        (translation,) = toy_translator(model, length_penalty=alpha).translate([sentence], n_best=3)
        encoded = tokenizer(sentence, return_tensors="pt")
        source = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        search = model.generate(
            **source,
            num_beams=4,
            num_return_sequences=3,
            length_penalty=GNMTLengthPenalty(alpha),
            max_length=1 + source["input_ids"].shape[1] + 50,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert [h.score for h in translation.hypotheses] == pytest.approx(
            search.sequences_scores.tolist(), abs=1e-4
        )
        for hypothesis, sequence in zip(translation.hypotheses, search.sequences, strict=True):
            tokens = sequence[1:].tolist()
            length = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
            labels = sequence[None, 1 : 1 + length]
            log_prob = -model(**source, labels=labels).loss.item() * length
            assert hypothesis.log_prob == pytest.approx(log_prob, abs=1e-3)
            assert hypothesis.score == pytest.approx(log_prob / ((5 + length) / 6) ** alpha, abs=1e-3)


def test_greedy_search_has_scores_too() -> None:
    (greedy,) = toy_translator(num_beams=1).translate(["one two"])
    (best,) = toy_translator(num_beams=4, length_penalty=0.0).translate(["one two"])
    assert greedy.text == best.text
    assert greedy.hypotheses[0].log_prob == pytest.approx(best.hypotheses[0].log_prob, abs=1e-4)
    assert next(toy_translator().translate(["one"], with_scores=False)).hypotheses[0].score is None


def test_a_larger_length_penalty_gives_longer_translations() -> None:
    sources = toy_sources(60, seed=-5)
    lengths = [sum(map(len, toy_translator(length_penalty=alpha)(sources))) for alpha in (-2.0, 0.6, 5.0)]
    assert lengths[0] < lengths[1] < lengths[2]


def test_more_beams_find_likelier_translations() -> None:
    sources = toy_sources(60, seed=-6)
    log_probs = [
        sum(
            t.hypotheses[0].log_prob
            for t in toy_translator(num_beams=k, length_penalty=0.0).translate(sources)
        )
        for k in (1, 4)
    ]
    assert log_probs[0] < log_probs[1]


# Lengths.


def endless_model(**fields: Any) -> PreTrainedModel:
    model = toy_model(**fields)
    model.generation_config.suppress_tokens = [EOS]
    return model


def generated_lengths(translator: Translator, sentences: list[str]) -> list[int]:
    """The tokens of the best hypotheses, in the order of their translation."""
    lengths, search = [], translator.engine.search

    def recording(*args: Any, **options: Any) -> list[list[Output]]:
        found = search(*args, **options)
        lengths.extend(len(best.token_ids) for best, *_ in found)
        return found

    with patch.object(translator.engine, "search", recording):
        list(translator.translate(sentences))
    return lengths


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_translation_has_at_most_50_tokens_more_than_its_source(num_beams: int) -> None:
    sentences = ["one " * 20, "one two three", "four"]  # the order in which they are translated
    source_lengths = [len(ids) for ids in toy_tokenizer()(sentences)["input_ids"]]
    translator = toy_translator(endless_model(), num_beams=num_beams)
    assert generated_lengths(translator, sentences) == [length + 50 for length in source_lengths]
    assert not any(t.hypotheses[0].complete for t in translator.translate(sentences))
    assert next(toy_translator().translate(["one two"])).hypotheses[0].complete


def test_max_length_bounds_every_translation() -> None:
    translator = toy_translator(endless_model(), max_length=9)
    assert generated_lengths(translator, ["one " * 20, "four"]) == [9, 9]


def test_a_line_of_ten_thousand_tokens_is_translated_in_its_own_batch() -> None:
    sentences = ["one two", "seven " * 10_000, "four"]
    translator = toy_translator(max_length=64, max_source_length=None)
    masks = recorded_batches(translator, sentences)
    assert [len(mask) for mask in masks] == [1, 2]
    assert masks[0].shape[1] > 10_000
    texts = translator(sentences)
    assert [texts[0], texts[2]] == toy_translator()(["one two", "four"])
    assert texts[1]


def test_a_source_beyond_learned_positions_is_left_empty_with_a_reason() -> None:
    model = toy_model(position_embedding="learned", max_position_embeddings=40)
    translator = toy_translator(model)
    sentences = ["one two", "one " * 40, "four"]
    length = len(toy_tokenizer()(sentences[1])["input_ids"])
    short, long, other = translator.translate(sentences)
    assert short.text
    assert other.text
    reason = (
        f"it has {length} tokens, and the model has positions for 40; max_source_length=40 would truncate it"
    )
    assert long == Translation(sentences[1], (), reason)
    with pytest.warns(UserWarning, match=f"sentence 1 is left empty: it has {length} tokens"):
        assert translator(sentences) == [short.text, "", other.text]
    assert generated_lengths(toy_translator(endless_model(**vars_of(model))), ["one"]) == [40]


def test_a_source_is_cut_off_as_in_training_with_its_end_token() -> None:
    translator = toy_translator(max_source_length=9)
    tokenizer = toy_tokenizer()
    sentences = ["one two", "one two three four five six", "seven " * 8]
    expected = []
    for sentence in sentences:
        pair = Dataset.from_dict({"source": [sentence], "target": ["1"]})
        (row,) = tokenize_corpus(pair, tokenizer, tokenizer, 9, None, truncated=["source"])
        alone = torch.tensor([row["input_ids"]])
        expected.append(search_alone(translator, alone))
    translations = list(translator.translate(sentences, with_scores=False))
    assert [translation.text for translation in translations] == expected
    lengths = [len(ids) for ids in tokenizer(sentences)["input_ids"]]
    assert [translation.source_cut_off for translation in translations] == [length > 9 for length in lengths]
    assert {translation.source_cut_off for translation in translations} == {False, True}
    assert expected[1:] != toy_translator()(sentences[1:])


@pytest.mark.parametrize(
    ("trained", "of_tokenizer", "expected"),
    [
        (None, None, 1024),
        (256, None, 1024),
        (4096, None, 4096),
        (None, 2048, 2048),
    ],
)
def test_sources_have_a_limit_by_default(
    trained: int | None, of_tokenizer: int | None, expected: int
) -> None:
    model, tokenizer = toy_model(), copy.deepcopy(toy_tokenizer())
    if trained:
        model.generation_config.max_source_length = trained
    if of_tokenizer:
        tokenizer.model_max_length = of_tokenizer
    assert Translator(model, tokenizer).max_source_length == expected
    assert Translator(model, tokenizer, max_source_length=None).max_source_length is None
    assert Translator(model, tokenizer, max_source_length=9).max_source_length == 9


def test_a_model_without_start_or_end_token_raises_an_error() -> None:
    for missing, names in {
        ("eos_token_id",): "eos_token_id",
        ("bos_token_id", "decoder_start_token_id"): "decoder_start_token_id",
    }.items():
        model = toy_model()
        for name in missing:
            setattr(model.generation_config, name, None)
        with pytest.raises(UserError, match=f"generation_config.json has no {names}, so it cannot translate"):
            toy_translator(model)


def test_too_long_sources_are_skipped_or_cut() -> None:
    sentences = ["one two", "seven " * 30, "four"]
    length = len(toy_tokenizer()(sentences[1])["input_ids"])
    limits = {"max_source_length": 9, "num_beams": 1}
    cut = list(toy_translator(**limits).translate(sentences, with_scores=False))
    assert cut == list(toy_translator(**limits, too_long="cut").translate(sentences, with_scores=False))
    assert [translation.source_cut_off for translation in cut] == [False, True, False]
    skipped = list(toy_translator(**limits, too_long="skip").translate(sentences, with_scores=False))
    problem = (
        f"it has {length} tokens, more than max_source_length=9; raise that, or truncate it (too_long=cut)"
    )
    assert skipped == [cut[0], Translation(sentences[1], problem=problem), cut[2]]
    unlimited = toy_translator(num_beams=1, max_length=5)
    unlimited.sides.max_source_length = 9  # as if it were the default: what nobody asked for does not cut
    assert next(unlimited.translate(sentences[1:2])).problem == problem
    with pytest.raises(UserError, match="too_long='drop' is unknown; expected 'cut' or 'skip'"):
        toy_translator(too_long="drop")


def search_alone(translator: Translator, input_ids: torch.Tensor) -> str:
    options = {"num_beams": 4, "length_penalty": GNMTLengthPenalty(0.6)}
    sequences = translator.model.generate(input_ids, max_length=1 + input_ids.shape[1] + 50, **options)
    return translator.target_tokenizer.decode(sequences[0], skip_special_tokens=True)


def vars_of(model: PreTrainedModel) -> dict[str, Any]:
    return {name: getattr(model.config, name) for name in ("position_embedding", "max_position_embeddings")}


# Batches and buffers.


def test_batches_keep_to_the_token_budget_and_hold_like_lengths() -> None:
    budget = 700
    masks = recorded_batches(toy_translator(max_tokens_per_batch=budget), SENTENCES)
    assert sum(len(mask) for mask in masks) == len({s for s in SENTENCES if s.strip()})  # equal ones once
    assert any(len(mask) > 3 for mask in masks)
    for mask in masks:
        assert mask.shape[0] * (2 * mask.shape[1] + 50) <= budget or len(mask) == 1
    lengths = [length for mask in masks for length in mask.sum(1).tolist()]
    assert lengths == sorted(lengths, reverse=True)
    assert len(recorded_batches(toy_translator(), SENTENCES)) < len(masks)


def test_an_endless_stream_is_translated_a_buffer_at_a_time() -> None:
    numbers = count()
    translations = toy_translator().translate((f"one {number}" for number in numbers), buffer_size=3)
    first = list(islice(translations, 4))
    assert [translation.source for translation in first] == ["one 0", "one 1", "one 2", "one 3"]
    assert next(numbers) == 6


def test_buffers_grow_so_that_the_first_results_come_soon() -> None:
    sizes = [len(buffer) for buffer in buffers(["one"] * 9000)]
    assert sizes == [512, 1024, 2048, 4096, 1320]
    assert [len(buffer) for buffer in buffers(["one"] * 9, buffer_size=4)] == [4, 4, 1]


def test_very_long_sentences_fill_a_buffer_early() -> None:
    with patch("vaswani.inference.batches.BUFFERED_CHARACTERS", 30):
        sentences = iter(["one " * 10, "two " * 10])
        next(toy_translator().translate(sentences))
    assert list(sentences) == ["two " * 10]


def test_progress_counts_every_sentence_once() -> None:
    counts: list[int] = []
    list(toy_translator(max_tokens_per_batch=400).translate(SENTENCES, buffer_size=9, progress=counts.append))
    assert sum(counts) == len(SENTENCES)
    assert len(counts) > 5


def test_every_step_feeds_one_token_even_if_the_configuration_was_saved_without_a_cache() -> None:
    model = toy_model()
    model.config.use_cache = model.generation_config.use_cache = False
    widths = set()
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: widths.add(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    toy_translator(model)(["one two three"])
    assert widths == {1}


# Loading, and other models.


def test_a_checkpoint_translates_as_the_model_that_was_saved(tmp_path) -> None:
    expected = toy_translator()(SENTENCES)
    translator = Translator.from_pretrained(save_toy_checkpoint(tmp_path), num_beams=4, device="cpu")
    assert translator(SENTENCES) == expected
    assert Translator.from_pretrained(str(tmp_path), dtype="bfloat16").model.dtype == torch.bfloat16


def test_separate_vocabularies_use_the_tokenizer_of_their_side(tmp_path) -> None:
    translator = Translator.from_pretrained(save_toy_checkpoint(tmp_path, separate=True))
    source, target = toy_tokenizers(separate=True)
    assert (len(translator.source_tokenizer), len(translator.target_tokenizer)) == (len(source), len(target))
    rows = toy_rows(20, seed=-7, longest=2)
    translations = translator([source for source, _ in rows])
    assert sum(a == b for a, (_, b) in zip(translations, rows, strict=True)) > 8


def foreign_models() -> dict[str, PreTrainedModel]:
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 304, "init_std": 0.5}
    shape |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 128}
    shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ends = {"pad_token_id": 0, "eos_token_id": EOS, "decoder_start_token_id": 0}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 304}
    torch.manual_seed(0)
    return {
        "marian": MarianMTModel(MarianConfig(**shape, **ends)),
        "bart": BartForConditionalGeneration(BartConfig(**shape, **ends, bos_token_id=1)),
        "t5": T5ForConditionalGeneration(T5Config(**t5, **ends, initializer_factor=2.0)),
    }


@pytest.mark.parametrize("name", ["marian", "bart", "t5"])
def test_any_encoder_decoder_of_the_auto_classes_translates(name: str, tmp_path) -> None:
    model = foreign_models()[name].eval()
    model.generation_config.max_length = 7  # as such checkpoints come; it must not cut translations
    model.save_pretrained(tmp_path)
    tokenizer = toy_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    translator = Translator.from_pretrained(tmp_path)
    sentences = ["one two three", "four", "nine " * 12]
    alone = []
    for sentence in sentences:
        encoded = tokenizer(sentence, return_tensors="pt")
        options = {"num_beams": 4, "length_penalty": GNMTLengthPenalty(0.6), "forced_eos_token_id": None}
        options["max_length"] = min(1 + encoded["input_ids"].shape[1] + 50, 129)
        alone.append(tokenizer.decode(model.generate(**encoded, **options)[0], skip_special_tokens=True))
    assert translator(sentences) == alone
    if name != "t5":
        (long,) = translator.translate(["one " * 128])
        assert "the model has positions for 128" in str(long.problem)
        translator.sides.max_source_length, translator.sides.too_long = 128, "cut"
        (long,) = translator.translate(["one " * 128])
        assert long.hypotheses
        assert long.source_cut_off


# What cannot be done.


def test_a_batch_that_does_not_fit_into_memory_names_its_size_and_the_remedy() -> None:
    translator = toy_translator()
    translator.model.generate = Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(RunError, match="2 sentences of up to 3 tokens; lower max_tokens_per_batch"):
        translator(["one", "one two"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams=0 must be at least 1"),
        ({"max_length": 0}, "max_length=0 must be at least 1"),
        ({"max_tokens_per_batch": -1}, "max_tokens_per_batch=-1 must be at least 1"),
        ({"max_source_length": 1}, "max_source_length=1 leaves no room for text .* give 2 or more"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        toy_translator(**options)


def test_impossible_requests_are_refused_before_any_work() -> None:
    translator = toy_translator(num_beams=2)
    with pytest.raises(UserError, match="n_best=3 is more than num_beams=2"):
        translator.translate(["one"], n_best=3)
    with pytest.raises(UserError, match="n_best=0 must be at least 1"):
        translator.translate(["one"], n_best=0)
    with pytest.raises(UserError, match="buffer_size=0 must be at least 1"):
        translator.translate(["one"], buffer_size=0)
    with pytest.raises(UserError, match=r"expected a list of sentences, got one text: write \['one two'\]"):
        translator("one two")
    for given, kind in (({"source": ["one"]}, "dict"), ({"one", "two"}, "set"), (None, "NoneType")):
        with pytest.raises(UserError, match=f"^expected a list of sentences, got a {kind}: give "):
            translator(given)  # type: ignore[arg-type]
    for given, message in (
        ({"prefixes": "12"}, r"prefixes is one text; give a list: \['12'\]"),
        ({"prefixes": [None, "1"]}, "prefixes holds None; expected texts"),
        ({"required": ["1", "2"]}, r"required, of a sentence, is one text; give a list: \['1'\]"),
        ({"required": [None, None]}, "required, of a sentence, holds None; expected texts"),
    ):
        with pytest.raises(UserError, match=message):
            list(translator.translate(["one", "two"], **given))
    with pytest.raises(UserError, match=r"text 1, 'a\\ud800b', has half of a surrogate pair; correct it"):
        translator(["a\ud800b"])
    greedy = toy_translator(num_beams=1)
    for sentence in (None, ["one"]):
        with pytest.raises(UserError, match=r"text 1 is .*; expected a string"):
            greedy.stream(sentence)
    with pytest.raises(UserError, match=r"required, of a sentence, is one text; give a list: \['1'\]"):
        greedy.stream("one", required="1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 1.5}, "num_beams=1.5 must be a whole number"),
        ({"num_beams": "4"}, "num_beams='4' must be a whole number"),
        ({"repetition_penalty": "1"}, "repetition_penalty='1' must be a number"),
        ({"length_penalty": None}, "length_penalty=None must be a number from -10 to 10"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        toy_translator(**options)


@pytest.mark.parametrize(
    "field",
    [
        *({"num_beam_groups": 2}, {"stop_strings": ["1"]}, {"guidance_scale": 2.0}, {"max_time": 1.0}),
        *({"penalty_alpha": 0.6}, {"prompt_lookup_num_tokens": 3}),
    ],
    ids="".join,
)
def test_unsupported_searches_of_the_generation_config_raise_an_error(field: dict[str, Any]) -> None:
    model = copy.deepcopy(toy_model())
    model.generation_config.update(**field)
    with pytest.raises(UserError, match=f"the generation_config of the model has {next(iter(field))}="):
        toy_translator(model)


def test_return_dict_in_generate_changes_no_translation() -> None:
    model = copy.deepcopy(toy_model())
    model.generation_config.update(return_dict_in_generate=True, output_scores=True)
    assert toy_translator(model)(SENTENCES[:4]) == toy_translator()(SENTENCES[:4])


@pytest.mark.parametrize(
    "field",
    [{"encoder_repetition_penalty": 3.0}, {"exponential_decay_length_penalty": (1, 0.5)}],
    ids="".join,
)
def test_the_best_of_an_n_best_list_is_the_search_result(field: dict[str, Any]) -> None:
    model = copy.deepcopy(toy_model())
    model.generation_config.update(**field)
    translator = toy_translator(model)
    best = [each.text for each in translator.translate(SENTENCES)]
    assert [each.text for each in translator.translate(SENTENCES, n_best=4)] == best
    assert best != [each.text for each in toy_translator().translate(SENTENCES)]


def test_a_translation_without_hypotheses_has_an_empty_text() -> None:
    assert Translation("one").text == ""
    assert Translation("one", (Hypothesis("1", True), Hypothesis("2", True))).text == "1"


@pytest.mark.parametrize(
    "field", [{"bad_words_ids": [[10_000_000]]}, {"repetition_penalty": 0.0}, {"suppress_tokens": "x"}]
)
def test_a_generation_config_that_the_library_refuses_raises_an_error(tmp_path, field):
    save_toy_checkpoint(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | field))
    with pytest.raises(UserError, match="generation_config"):
        Translator.from_pretrained(tmp_path)(["one two"])


def test_return_dict_false_changes_no_translation(tmp_path):
    save_toy_checkpoint(tmp_path)
    expected = Translator.from_pretrained(tmp_path)(["one two three"])
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"return_dict": False}))
    assert Translator.from_pretrained(tmp_path)(["one two three"]) == expected


@pytest.mark.parametrize("num_beams", [1, 4])
def test_forced_eos_token_id_of_the_model_is_ignored(num_beams: int) -> None:
    """Marian and BART set it; an output at the limit would look complete."""
    options = {"num_beams": num_beams, "max_length": 3}
    plain, forcing = (Translator(toy_model(), toy_tokenizer(), **options) for _ in range(2))
    forcing.model.generation_config.forced_eos_token_id = 2
    expected, found = (list(each.translate(SENTENCES)) for each in (plain, forcing))
    assert [each.hypotheses for each in found] == [each.hypotheses for each in expected]
    assert any(each.cut_off for each in found)
