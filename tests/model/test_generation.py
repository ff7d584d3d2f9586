"""Generation: every cache equals no cache, and beam search equals the library's on the same weights."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel, StoppingCriteriaList

from marian import marian_like
from tiny import batch, tiny_model, tokens
from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM, VaswaniForConditionalGeneration
from vaswani.inference.decoding import LengthLimits
from vaswani.kernels.beam_search_cache import BeamSearchCache
from vaswani.kernels.search_cache import SearchCache
from vaswani.model.compatibility import CACHE_NAME

KERNELS = ["eager", "sdpa"]


def sources(rows: int = 3) -> dict[str, torch.Tensor]:
    data = batch(rows=rows)
    return {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}


def stock_cache(model: Any) -> EncoderDecoderCache:
    return EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_step_by_step_decoding_equals_one_forward_pass(implementation: str, norm_order: str) -> None:
    model, data, target = tiny_model(implementation, norm_order=norm_order), sources(), tokens(3, 6)
    expected = model(**data, decoder_input_ids=target).logits
    cache, steps = stock_cache(model), []
    encoded = model.model.encoder(**data)
    for part in target.split([3, 1, 1, 1], dim=1):
        output = model(
            encoder_outputs=encoded,
            attention_mask=data["attention_mask"],
            decoder_input_ids=part,
            past_key_values=cache,
            use_cache=True,
        )
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention", ["full", "sparse"])
def test_a_causal_model_has_a_cache_of_fixed_size(attention: str) -> None:
    sparse = {"sparse_block_size": 4, "sparse_window_blocks": 1, "sparse_random_blocks": 1}
    shape = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    config = VaswaniDecoderConfig(vocab_size=60, **shape, decoder_attention=attention, **sparse)
    torch.manual_seed(0)
    model, prompt = VaswaniForCausalLM(config).eval(), tokens(3, 9, vocab_size=60)
    mask = torch.ones_like(prompt)
    mask[0, :4] = 0
    for padding in (None, mask):
        options = {"attention_mask": padding, "max_new_tokens": 12, "do_sample": False}
        expected = model.generate(prompt, **options, use_cache=False)
        assert model.generate(prompt, **options).tolist() == expected.tolist()
        assert model.generate(prompt, **options, cache_implementation="static").tolist() == expected.tolist()


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_every_cache_generates_the_same(implementation: str, num_beams: int) -> None:
    model, data = tiny_model(implementation), sources()
    options = {"num_beams": num_beams, "max_new_tokens": 40, "do_sample": False}
    expected = model.generate(**data, **options, use_cache=False)
    assert model.generate(**data, **options).tolist() == expected.tolist()
    assert model.generate(**data, **options, **{CACHE_NAME: stock_cache(model)}).tolist() == expected.tolist()
    assert model.generate(**data, **options, cache_implementation="static").tolist() == expected.tolist()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_cache_that_the_caller_gives_is_filled(num_beams: int) -> None:
    model, data = tiny_model(), sources()
    cache = stock_cache(model)
    options = {"num_beams": num_beams, "min_new_tokens": 6, "max_new_tokens": 6, "do_sample": False}
    output = model.generate(**data, **options, **{CACHE_NAME: cache}, return_dict_in_generate=True)
    assert output[CACHE_NAME] is cache
    assert cache.get_seq_length() == output.sequences.shape[1] - 1
    for states in (cache.self_attention_cache, cache.cross_attention_cache):
        assert states.layers[0].keys.shape[0] == 3 * num_beams


@pytest.mark.parametrize("implementation", KERNELS)
def test_beams_continue_a_padded_prompt(implementation: str) -> None:
    model, data = tiny_model(implementation), sources(2)
    prompt = torch.tensor([[0, 1, 9, 8], [1, 7, 9, 8]])
    options = {
        "decoder_input_ids": prompt,
        "decoder_attention_mask": (prompt != 0).long(),
        "num_beams": 3,
        "max_new_tokens": 9,
    }
    expected = model.generate(**data, **options, use_cache=False)
    assert model.generate(**data, **options).tolist() == expected.tolist()


def test_beam_search_stores_source_keys_once_and_never_copies_buffers() -> None:
    model, data = tiny_model(), sources(2)
    reordering = SearchCache.reorder_cache
    with patch.object(SearchCache, "reorder_cache", autospec=True, side_effect=reordering) as reorder:
        model.generate(**data, num_beams=4, min_new_tokens=70, max_new_tokens=70)
    cache = reorder.call_args.args[0]
    assert isinstance(cache.self_attention_cache, BeamSearchCache)
    for layer in cache.cross_attention_cache.layers:
        assert layer.keys.shape[0] == 2  # sources, not 2 x 4 beams
    layer = cache.self_attention_cache.layers[0]
    buffer, written = layer.keys, layer.keys[:, :, : layer.get_seq_length()].clone()
    cache.self_attention_cache.reorder_cache(torch.tensor([3, 0, 0, 1, 7, 7, 4, 5]))
    assert layer.keys is buffer
    assert torch.equal(buffer[:, :, : layer.get_seq_length()], written)


END = {"sequence_bias": {(2,): 4.0}}  # so that hypotheses of a random model end, here and there


def decoded_rows(model: Any, **arguments: Any) -> tuple[list[list[int]], list[int]]:
    """What `generate` returns, and how many rows the decoder computed in each step."""
    rows: list[int] = []
    hook = model.model.decoder.layers[0].register_forward_pre_hook(
        lambda module, inputs: rows.append(inputs[0].shape[0])
    )
    output = model.generate(**arguments)
    hook.remove()
    return output.tolist(), rows


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 9),
    kernel=st.sampled_from(KERNELS),
    search=st.sampled_from(
        [
            {"num_beams": 1},
            {"num_beams": 4},
            {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6},
            {"num_beams": 4, "early_stopping": True},
            {"num_beams": 2, "early_stopping": "never", "length_penalty": 2.0},
            {"num_beams": 3, "do_sample": True, "temperature": 0.8},
            {"num_beams": 1, "do_sample": True, "num_return_sequences": 3},
            {"num_beams": 2, "no_repeat_ngram_size": 2},
        ]
    ),
)
def test_removing_finished_sources_from_the_batch_changes_no_result(
    seed: int, rows: int, kernel: str, search: dict[str, Any]
) -> None:
    torch.manual_seed(seed)
    model, data = tiny_model(kernel), batch(rows=rows, source=rows + 3)
    data.pop("labels")
    arguments = {**data, "do_sample": False, **search, **END, "max_new_tokens": 25}
    torch.manual_seed(seed)
    expected = model.generate(**arguments, use_cache=False)
    torch.manual_seed(seed)
    actual = model.generate(**arguments)
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_only_unfinished_sources_are_computed(num_beams: int) -> None:
    model, data = tiny_model(), sources(3)
    limits = torch.tensor([4, 12, 8])
    arguments = {**data, "num_beams": num_beams, "max_new_tokens": 20, "do_sample": False}
    arguments["stopping_criteria"] = StoppingCriteriaList([LengthLimits(limits)])
    expected, all_rows = decoded_rows(model, **arguments, use_cache=False)
    actual, rows = decoded_rows(model, **arguments)
    assert actual == expected
    assert set(all_rows) == {3 * num_beams}
    assert rows == [3] + [3 * num_beams] * 3 + [2 * num_beams] * 4 + [num_beams] * 4


@pytest.mark.parametrize("implementation", KERNELS)
def test_beams_of_a_source_of_only_padding_get_zero_attention(implementation: str) -> None:
    """Attention to it is zero in every kernel, so its masked tokens have no effect."""
    model, data = tiny_model(implementation), sources(3)
    data["attention_mask"][1] = 0
    options = {"num_beams": 4, "max_new_tokens": 9, "return_dict_in_generate": True, "output_scores": True}
    first = model.generate(**data, **options)
    uncached = model.generate(**data, **options, use_cache=False)
    assert first.sequences.tolist() == uncached.sequences.tolist()
    torch.testing.assert_close(first.sequences_scores, uncached.sequences_scores)
    data["input_ids"][1] = tokens(1, 7)
    assert model.generate(**data, **options).sequences.tolist() == first.sequences.tolist()


def test_searches_in_several_threads_are_independent() -> None:
    model = tiny_model()
    inputs = [sources(rows) for rows in (2, 5, 3, 6)]
    options = {"num_beams": 3, "max_new_tokens": 25, "do_sample": False, **END}
    expected = [model.generate(**data, **options).tolist() for data in inputs]
    with ThreadPoolExecutor(4) as pool:
        actual = list(pool.map(lambda data: model.generate(**data, **options).tolist(), inputs))
    assert actual == expected


@pytest.mark.parametrize("attentions", [False, True])
def test_beam_search_reports_scores_and_attentions(attentions: bool) -> None:
    model, data = tiny_model("eager"), sources(2)
    options = {
        "num_beams": 3,
        "max_new_tokens": 6,
        "num_return_sequences": 2,
        "return_dict_in_generate": True,
    }
    output = model.generate(**data, **options, output_scores=True, output_attentions=attentions)
    assert output.sequences.shape[0] == 4
    assert (output.sequences_scores[0::2] >= output.sequences_scores[1::2]).all()
    if attentions:
        assert output.cross_attentions[1][0].shape == (6, 2, 1, 7)
        assert output.decoder_attentions[1][0].shape == (6, 2, 1, 2)


@pytest.mark.parametrize("sizes", [(97, 61), (97, 120)])
def test_with_two_vocabularies_transition_scores_sum_to_the_score(sizes: tuple[int, int]) -> None:
    model = tiny_model(vocab_size=sizes[0], decoder_vocab_size=sizes[1])
    output = model.generate(
        **sources(), num_beams=3, max_new_tokens=9, return_dict_in_generate=True, output_scores=True
    )
    steps = model.compute_transition_scores(
        output.sequences, output.scores, output.beam_indices, normalize_logits=False
    )
    lengths = (output.beam_indices >= 0).sum(dim=1)
    penalty = model.generation_config.length_penalty or 1.0
    torch.testing.assert_close(steps.sum(dim=1) / lengths**penalty, output.sequences_scores)


def test_resizing_the_source_vocabulary_leaves_the_targets() -> None:
    model = tiny_model(vocab_size=97, decoder_vocab_size=61)
    model.resize_token_embeddings(110)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (110, 61)


def test_samples_of_one_source_share_its_keys() -> None:
    model, data = tiny_model(), sources(2)
    torch.manual_seed(1)
    options = {"do_sample": True, "num_return_sequences": 5, "max_new_tokens": 8}
    with patch.object(SearchCache, "narrow", autospec=True, side_effect=SearchCache.narrow) as narrow:
        found = model.generate(**data, **options)
    assert found.shape[0] == 10
    assert narrow.call_args.args[0].cross_attention_cache.layers[0].keys.shape[0] == 2
    torch.manual_seed(1)
    again = model.generate(**data, **options, use_cache=False)
    assert again.tolist() == found.tolist()
    assert len({tuple(row) for row in found[:5].tolist()}) > 1


@pytest.mark.parametrize(
    "options", [{"prompt_lookup_num_tokens": 2}, {"assistant": True}], ids=["lookup", "assistant"]
)
def test_assisted_generation_equals_greedy(options: dict[str, Any]) -> None:
    model, data = tiny_model(), {"input_ids": tokens(1, 7)}
    expected = model.generate(**data, max_new_tokens=12, do_sample=False)
    if options.pop("assistant", False):
        options["assistant_model"] = tiny_model(decoder_layers=1)
    actual = model.generate(**data, max_new_tokens=12, do_sample=False, **options)
    assert actual.tolist() == expected.tolist()


def test_rows_that_do_not_divide_among_sources_are_refused() -> None:
    model, data = tiny_model(), sources(2)
    encoded = model.model.encoder(**data)
    with pytest.raises(ValueError, match="5 rows of decoder input do not divide among 2 rows"):
        model(encoder_outputs=encoded, attention_mask=data["attention_mask"], decoder_input_ids=tokens(5, 3))


@pytest.mark.parametrize("shared", [True, False])
def test_a_marian_model_of_the_same_weights_computes_and_generates_the_same(shared: bool) -> None:
    theirs, ours = marian_like(shared=shared)
    data = batch(rows=4, source=11, target=9)
    actual, expected = ours(**data), theirs(**data)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.loss, expected.loss)
    source = {name: data[name] for name in ("input_ids", "attention_mask")}
    for options in (
        {"num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 4, "length_penalty": 0.6, "num_return_sequences": 3},
    ):
        arguments = {**source, **options, "max_new_tokens": 30, "do_sample": False}
        assert ours.generate(**arguments).tolist() == theirs.generate(**arguments).tolist()


@pytest.mark.parametrize("model_class", [VaswaniForConditionalGeneration, VaswaniForCausalLM])
def test_continuous_batching_is_refused_before_it_begins(model_class: type[PreTrainedModel]) -> None:
    model = model_class(model_class.config_class(vocab_size=50, d_model=24))
    with pytest.raises(NotImplementedError, match="call generate with a padded batch"):
        model.generate_batch([[5, 6], [7]], max_new_tokens=2)
