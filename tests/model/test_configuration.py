"""The configuration refuses impossible values, and the paper's models have the paper's sizes."""

import json
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import TINY, batch, tiny_config, tiny_model, tokens
from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForConditionalGeneration,
)
from vaswani.model.operators import word_dropout


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 30}, "d_model=30 must be divisible by encoder_attention_heads=4; try d_model=28"),
        ({"decoder_attention_heads": 5}, "d_model=32 must be divisible by decoder_attention_heads=5"),
        (
            {"d_model": 9, "encoder_attention_heads": 3, "decoder_attention_heads": 3},
            "d_model=9 must be even",
        ),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and below 1"),
        ({"dropout": -0.1}, "dropout=-0.1 must be at least 0"),
        ({"encoder_layers": 0}, "encoder_layers=0 must be at least 1"),
        ({"activation_function": "rellu"}, "activation_function='rellu' is unknown"),
        ({"norm_order": "sandwich"}, "norm_order"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"pad_token_id": 61}, "pad_token_id=61 lies outside the vocabulary of 61 tokens"),
        (
            {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": True},
            "needs one vocabulary, but vocab_size=61 and decoder_vocab_size=50",
        ),
    ],
)
def test_an_impossible_value_is_named_with_its_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((StrictDataclassError, ValueError)) as raised:
        tiny_config(**fields)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("config_class", "given", "meant"),
    [
        (VaswaniConfig, "d_modle", "d_model"),
        (VaswaniConfig, "hiden_size", "hidden_size"),
        (VaswaniEncoderConfig, "decoder_layers", "encoder_layers"),
        (VaswaniDecoderConfig, "layer_norm_epsilon", "layer_norm_eps"),
    ],
)
def test_a_name_that_resembles_a_field_gives_a_warning(
    config_class: type, given: str, meant: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_class(**{given: 4})
    assert f"{config_class.__name__} has no field '{given}'" in caplog.text
    assert f"did you mean '{meant}'?" in caplog.text
    caplog.clear()
    config_class.from_dict(config_class(my_own=4, num_labels=3, hidden_size=48, num_beams=2).to_dict())
    assert not caplog.text
    assert getattr(config, given) == 4  # as in transformers


def test_two_vocabularies_are_not_shared_by_default() -> None:
    assert tiny_config().share_encoder_decoder_embeddings
    assert not tiny_config(decoder_vocab_size=50).share_encoder_decoder_embeddings


@pytest.mark.parametrize("shares", [None, True, False])
def test_vocabularies_of_the_same_size_are_shared_only_on_request(shares: bool | None) -> None:
    size = tiny_config().vocab_size
    config = tiny_config(decoder_vocab_size=size, share_encoder_decoder_embeddings=shares)
    assert config.share_encoder_decoder_embeddings is bool(shares)
    saved = json.loads(config.to_json_string())
    assert saved["share_encoder_decoder_embeddings"] is bool(shares)
    assert VaswaniConfig.from_dict(saved).share_encoder_decoder_embeddings is bool(shares)


def expected_parameters(vocab: int, d: int, ffn: int, layers: int, keys: int) -> int:
    """Table 3's column, derived by hand: tied embeddings, N encoder and N decoder layers."""
    queries_and_keys, values_and_outputs = 2 * (d * keys + keys), 2 * (d * d + d)
    attention, feed_forward, norm = queries_and_keys + values_and_outputs, 2 * d * ffn + ffn + d, 2 * d
    return (
        vocab * d
        + layers * (attention + feed_forward + 2 * norm)
        + layers * (2 * attention + feed_forward + 3 * norm)
    )


@pytest.mark.parametrize(
    ("fields", "millions"),
    [
        ({}, 65),
        (
            {
                "d_model": 1024,
                "encoder_ffn_dim": 4096,
                "decoder_ffn_dim": 4096,
                "encoder_attention_heads": 16,
                "decoder_attention_heads": 16,
            },
            213,
        ),
    ],
    ids=["base", "big"],
)
def test_base_and_big_have_the_papers_parameter_counts(fields: dict[str, Any], millions: int) -> None:
    """Table 3 says 65 and 213 million; "about 37000 tokens" leaves 3 % of play."""
    config = VaswaniConfig(**fields)
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(config)
    count = model.num_parameters()
    assert count == expected_parameters(37000, config.d_model, config.encoder_ffn_dim, 6, config.d_model)
    assert abs(count / 1e6 - millions) < 0.03 * millions


@pytest.mark.parametrize(("key_dim", "millions"), [(16, 7), (32, 5), (64, 0)])
def test_narrow_keys_save_as_many_parameters_as_in_the_paper(key_dim: int, millions: int) -> None:
    """Rows B of table 3: 58 and 60 million, where the base has 65."""
    with torch.device("meta"):
        base, narrow = (
            VaswaniForConditionalGeneration(VaswaniConfig(key_dim=each)) for each in (None, key_dim)
        )
    assert narrow.num_parameters() == expected_parameters(37000, 512, 2048, 6, 8 * key_dim)
    assert abs((base.num_parameters() - narrow.num_parameters()) / 1e6 - millions) < 0.5


def test_scores_are_divided_by_the_root_of_the_width_of_keys() -> None:
    """Equation 1: zeros behind the queries and keys of each head change the divisor alone."""
    narrow, wide, data = tiny_model(key_dim=4), tiny_model(key_dim=16), batch()
    config, state = narrow.config, narrow.state_dict()
    for name, tensor in state.items():
        if name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config.encoder_attention_heads if ".encoder." in name else config.decoder_attention_heads
            of_heads = tensor.unflatten(0, (heads, 4)) * 2**0.5  # together 2 = sqrt(16 / 4)
            zeros = of_heads.new_zeros(heads, 12, *tensor.shape[1:])
            state[name] = torch.cat([of_heads, zeros], dim=1).flatten(0, 1)
    wide.load_state_dict(state)
    torch.testing.assert_close(wide(**data).logits, narrow(**data).logits)


def test_biases_can_be_left_out() -> None:
    names = {name for name, _ in tiny_model(attention_bias=False, ffn_bias=False).named_parameters()}
    assert not [name for name in names if name.endswith("bias") and "norm" not in name]
    assert [
        name for name, _ in tiny_model(attention_bias=False).named_parameters() if name.endswith("fc1.bias")
    ]
    assert [name for name, _ in tiny_model(ffn_bias=False).named_parameters() if name.endswith("q_proj.bias")]


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_order": "pre"},
        {"activation_function": "gelu"},
        {"activation_function": "silu"},
        {"sinusoidal_layout": "concatenated"},
        {"position_embedding": "learned"},
        {"scale_embedding": False},
    ],
    ids=lambda fields: next(iter(fields)) + "=" + str(next(iter(fields.values()))),
)
def test_every_option_changes_the_result(fields: dict[str, Any]) -> None:
    reference, changed = tiny_model(), tiny_model(**fields)
    changed.load_state_dict(reference.state_dict(), strict=False)
    data = batch()
    assert not torch.allclose(reference(**data).logits, changed(**data).logits, atol=1e-3)


@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout", "word_dropout"])
def test_each_dropout_changes_training_but_not_evaluation(field: str) -> None:
    plain, dropping = tiny_model(), tiny_model(**{field: 0.5})
    dropping.load_state_dict(plain.state_dict())
    data = batch()
    torch.testing.assert_close(plain(**data).logits, dropping(**data).logits)
    first, second = dropping.train()(**data).logits, dropping(**data).logits
    assert not torch.allclose(first, second)
    torch.testing.assert_close(plain.train()(**data).logits, plain.eval()(**data).logits)


def test_word_dropout_zeros_whole_tokens_and_scales_the_others() -> None:
    embeddings = torch.randn(50, 40, 8, requires_grad=True)
    dropped = word_dropout(embeddings, 0.25)
    is_zero = dropped.eq(0).all(-1)
    assert is_zero.float().mean().item() == pytest.approx(0.25, abs=0.05)
    assert not is_zero.all(0).any()  # drawn for each row, and for each token
    assert not is_zero.all(1).any()
    torch.testing.assert_close(dropped, embeddings / 0.75 * ~is_zero[..., None])
    dropped.sum().backward()
    assert torch.equal(embeddings.grad.eq(0).all(-1), is_zero)
    assert word_dropout(embeddings, 0.25, training=False) is embeddings


def test_word_dropout_drops_tokens_of_both_stacks_and_leaves_their_positions() -> None:
    model, data = tiny_model(word_dropout=1 - 1e-9).model.train(), batch()  # which drops all
    mask, decoder_ids = data["attention_mask"], tokens(*data["labels"].shape)
    of_tokens = model(data["input_ids"], mask, decoder_ids, use_cache=False)
    zeros, decoder_zeros = (torch.zeros(*ids.shape, TINY["d_model"]) for ids in (mask, decoder_ids))
    embeddings = {"inputs_embeds": zeros, "decoder_inputs_embeds": decoder_zeros}
    of_zeros = model(attention_mask=mask, **embeddings, use_cache=False)
    for name in ("encoder_last_hidden_state", "last_hidden_state"):
        torch.testing.assert_close(of_tokens[name], of_zeros[name])


configurations = st.fixed_dictionaries(
    {
        "d_model": st.sampled_from([24, 48]),
        "encoder_layers": st.integers(1, 2),
        "decoder_layers": st.integers(1, 2),
        "encoder_attention_heads": st.sampled_from([1, 3, 6]),
        "decoder_attention_heads": st.sampled_from([2, 4, 8]),
        "key_dim": st.sampled_from([None, 1, 5, 32]),
        "norm_order": st.sampled_from(["post", "pre"]),
        "position_embedding": st.sampled_from(["sinusoidal", "learned"]),
        "sinusoidal_layout": st.sampled_from(["interleaved", "concatenated"]),
        "activation_function": st.sampled_from(["relu", "gelu", "silu"]),
        "attention_bias": st.booleans(),
        "ffn_bias": st.booleans(),
        "scale_embedding": st.booleans(),
        "share_encoder_decoder_embeddings": st.booleans(),
        "tie_word_embeddings": st.booleans(),
        "decoder_vocab_size": st.sampled_from([None, 53]),
    }
)


@settings(max_examples=25, deadline=None)
@given(fields=configurations, implementation=st.sampled_from(["eager", "sdpa"]))
def test_any_configuration_trains_pads_and_survives_json(fields: dict[str, Any], implementation: str) -> None:
    if fields["decoder_vocab_size"] is not None:
        fields["share_encoder_decoder_embeddings"] = False
    model = tiny_model(implementation, **fields)
    data = batch(vocab_size=53)
    output = model(**data)
    output.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    row = {name: tensor[1:2] for name, tensor in data.items()}
    row = {"input_ids": row["input_ids"][:, :6], "labels": row["labels"][:, :4]}  # row 1 without its padding
    torch.testing.assert_close(output.logits[1:2, :4], model(**row).logits, rtol=1e-4, atol=1e-5)
    assert VaswaniConfig.from_dict(model.config.to_dict()).to_dict() == model.config.to_dict()
    assert VaswaniConfig(**{**TINY, **fields}).to_diff_dict() == tiny_config(**fields).to_diff_dict()
