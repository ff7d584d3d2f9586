"""Encoders and decoders: what they share with the encoder-decoder, and what each option of theirs changes."""

import re
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from tiny import GRAPHS_ALONE
from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
    VaswaniForPreTraining,
    VaswaniForSequenceClassification,
)
from vaswani.model import modeling_vaswani_decoder

SHAPE: dict[str, Any] = {"vocab_size": 50, "d_model": 16, "dropout": 0.0, "attention_dropout": 0.0}
ENCODER = {**SHAPE, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 24}
DECODER = {**SHAPE, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 24}


DECODERS = [
    model_class
    for model_class in vars(modeling_vaswani_decoder).values()
    if getattr(model_class, "config_class", None) is VaswaniDecoderConfig and "forward" in vars(model_class)
]


def encoder(model_class: Any = VaswaniForMaskedLM, **fields: Any) -> Any:
    torch.manual_seed(0)
    return model_class(VaswaniEncoderConfig(**{**ENCODER, "initializer_range": 0.3, **fields})).eval()


def decoder(**fields: Any) -> VaswaniForCausalLM:
    torch.manual_seed(0)
    return VaswaniForCausalLM(VaswaniDecoderConfig(**{**DECODER, "initializer_range": 0.3, **fields})).eval()


def tokens(rows: int = 3, length: int = 10) -> torch.Tensor:
    return torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(1))


# --------------------------------------------------------------------------------- the loss in one pass


@pytest.mark.parametrize("lm_head_bias", [False, True])
@pytest.mark.parametrize("num_items", [None, 40])
@pytest.mark.parametrize("kind", ["encoder-decoder", "masked", "pre-training", "causal"])
def test_the_loss_in_one_pass_is_the_loss_of_the_logits(
    kind: str, num_items: int | None, lm_head_bias: bool
) -> None:
    torch.manual_seed(0)
    ids = tokens()
    inputs: dict[str, Any] = {"input_ids": ids, "labels": ids.masked_fill(ids % 3 == 0, -100)}
    if kind == "encoder-decoder":
        shape = {**ENCODER, **DECODER, "lm_head_bias": lm_head_bias}
        model: Any = VaswaniForConditionalGeneration(VaswaniConfig(**shape))
    elif kind == "causal":
        model = decoder(lm_head_bias=lm_head_bias)
    else:
        model = encoder(
            VaswaniForMaskedLM if kind == "masked" else VaswaniForPreTraining, lm_head_bias=lm_head_bias
        )
    if lm_head_bias:
        nn.init.normal_(model.lm_head.bias)
    if kind == "pre-training":
        inputs["next_sentence_label"] = torch.tensor([0, 1, 1])
    found = []
    for options in ({}, {"smoothing": 0.0}):
        model.zero_grad()
        output = model(**inputs, **options, num_items_in_batch=num_items)
        output.loss.backward()
        logits = output.prediction_logits if kind == "pre-training" else output.logits
        assert (logits is None) == bool(options)
        found.append((output.loss, *(p.grad for p in model.parameters() if p.grad is not None)))
    for one_pass, plain in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(one_pass, plain, atol=1e-5, rtol=1e-4)
    smoothed = model(**inputs, smoothing=0.2, num_items_in_batch=num_items).loss
    assert not torch.isclose(smoothed, found[0][0])


@pytest.mark.parametrize("kind", ["masked", "pre-training", "causal"])
def test_a_batch_in_parts_has_the_loss_of_the_whole(kind: str) -> None:
    ids = tokens(rows=4)
    labels = ids.masked_fill(ids % 3 == 0, -100)
    model = {
        "masked": encoder,
        "pre-training": lambda: encoder(VaswaniForPreTraining),
        "causal": decoder,
    }[kind]()
    items = (labels[:, 1:] if kind == "causal" else labels).ne(-100).sum()
    whole = model(ids, labels=labels).loss
    parts = [
        model(ids[r], labels=labels[r], num_items_in_batch=items).loss for r in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_the_pretraining_loss_is_the_sum_of_both_tasks() -> None:
    model, ids = encoder(VaswaniForPreTraining), tokens()
    relation = torch.tensor([0, 1, 1])
    both = model(ids, labels=ids, next_sentence_label=relation)
    masked, sentences = model(ids, labels=ids).loss, model(ids, next_sentence_label=relation).loss
    torch.testing.assert_close(both.loss, masked + sentences)
    expected = nn.functional.cross_entropy(both.seq_relationship_logits, relation)
    torch.testing.assert_close(sentences, expected)


# ------------------------------------------------------------------------------------ what is where


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("position_embedding", ["learned", "sinusoidal", "none"])
def test_packed_documents_do_not_see_each_other(implementation: str, position_embedding: str) -> None:
    model = decoder(position_embedding=position_embedding)
    model.set_attn_implementation(implementation)
    documents = [tokens(1, length) for length in (4, 7, 1, 5)]
    positions = torch.cat([torch.arange(d.shape[1]) for d in documents])[None]
    packed = model(torch.cat(documents, 1), position_ids=positions).logits
    alone = torch.cat([model(document).logits for document in documents], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(torch.cat(documents, 1)).logits, alone, atol=1e-3), "it would show"


@pytest.mark.parametrize("attention", ["sparse", ["full", "sparse"]], ids=str)
@pytest.mark.parametrize("use_cache", [False, True])
def test_sparse_attention_refuses_packed_documents(attention: Any, use_cache: bool) -> None:
    model, ids = decoder(decoder_attention=attention, sparse_block_size=4), tokens(1, 8)
    with pytest.raises(ValueError, match="position_ids restart within a row, as in packed documents"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]), use_cache=use_cache)
    torch.testing.assert_close(model(ids, position_ids=torch.arange(8)[None]).logits, model(ids).logits)


@pytest.mark.parametrize("model_class", DECODERS)
def test_every_decoder_takes_or_leaves_a_cache(model_class: Any) -> None:
    torch.manual_seed(0)
    ids = tokens()
    model = model_class(VaswaniDecoderConfig(**DECODER, pad_token_id=0)).eval()
    expected, *_ = model(ids).to_tuple()
    for options in ({"use_cache": False}, {"use_cache": True}, {"past_key_values": None}):
        torch.testing.assert_close(model(ids, **options).to_tuple()[0], expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    ids, pad = tokens(2, 6), torch.zeros(2, 3, dtype=torch.int64)
    padded = torch.cat([pad, ids] if side == "left" else [ids, pad], 1)
    mask = (padded != 0).long()
    for model in (encoder(), decoder()):
        states = model(padded, attention_mask=mask).logits[mask.bool()]
        torch.testing.assert_close(states, model(ids).logits.flatten(0, 1), atol=1e-5, rtol=1e-4)


def test_positions_can_include_padding() -> None:
    ids = tokens(2, 6)
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.int64), ids], 1)
    mask = (padded != 0).long()
    for make in (encoder, decoder):
        model = make(position_from_mask=False)
        states = model(padded, attention_mask=mask).logits[mask.bool()]
        given = model(ids, position_ids=torch.arange(3, 9)[None]).logits.flatten(0, 1)
        torch.testing.assert_close(states, given, atol=1e-5, rtol=1e-4)
        assert not torch.allclose(states, model(ids).logits.flatten(0, 1), atol=1e-3)


def test_sinusoids_of_each_layout() -> None:
    """The paper's formula; Marian's sines first; and tensor2tensor's wavelengths, from an offset."""
    d, length = 16, 5
    positions = torch.arange(length)[:, None]
    frequencies = 10000 ** (-torch.arange(0, d, 2) / d)
    spaced = 10000 ** (-torch.arange(d // 2) / (d // 2 - 1))
    expected = {
        "interleaved": torch.stack(
            [(positions * frequencies).sin(), (positions * frequencies).cos()], -1
        ).flatten(1),
        "concatenated": torch.cat([(positions * frequencies).sin(), (positions * frequencies).cos()], -1),
        "tensor2tensor": torch.cat([((positions + 2) * spaced).sin(), ((positions + 2) * spaced).cos()], -1),
    }
    for layout, table in expected.items():
        offset = 2 if layout == "tensor2tensor" else 0
        model = encoder(position_embedding="sinusoidal", sinusoidal_layout=layout, sinusoidal_offset=offset)
        table_of_model = model.model.encoder.embed_positions.table(torch.device("cpu"), torch.float32)
        torch.testing.assert_close(table_of_model[:length], table, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("pattern", [["sparse", "full"], "sparse"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_decoder_with_sparse_layers_generates_as_it_computes(pattern: Any, num_beams: int) -> None:
    """GPT-3's alternation; with a cache and without."""
    model = decoder(
        decoder_attention=pattern, sparse_block_size=4, sparse_random_blocks=1, sparse_global_blocks=1
    )
    prompt = tokens(2, 21)
    options = {"max_new_tokens": 9, "num_beams": num_beams, "do_sample": False, "eos_token_id": None}
    with_cache, without = (model.generate(prompt, **options, use_cache=flag) for flag in (True, False))
    assert torch.equal(with_cache, without)
    assert not torch.allclose(model(prompt).logits, decoder()(prompt).logits, atol=1e-3)


def test_sparse_attention_changes_the_encoder_outputs() -> None:
    ids = tokens(2, 40)
    fields = {"sparse_block_size": 4, "sparse_random_blocks": 1, "sparse_global_blocks": 1}
    assert not torch.allclose(
        encoder(encoder_attention="sparse", **fields)(ids).logits, encoder()(ids).logits, atol=1e-3
    )


# ------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "fields",
    [
        {"embedding_norm": False},
        {"norm_order": "pre"},
        {"layer_norm_eps": 0.1},
        {"activation_function": "relu"},
        {"position_embedding": "none"},
        {"scale_embedding": True},
        {"mlm_transform": False},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_each_option_changes_the_logits(fields: dict[str, Any]) -> None:
    before, after = encoder(), encoder(**fields)
    after.load_state_dict(before.state_dict(), strict=False)
    ids = tokens()
    assert not torch.allclose(after(ids).logits, before(ids).logits, atol=1e-3)


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("attention_bias", False, {"q_proj.bias", "out_proj.bias"}),
        ("attention_output_bias", False, {"out_proj.bias"}),
        ("ffn_bias", False, {"fc1.bias"}),
        ("norm_bias", False, {"layer_norm.bias"}),
        ("lm_head_bias", False, {"lm_head.bias"}),
        ("token_type_vocab_size", 0, {"embed_token_types.weight"}),
    ],
)
def test_each_option_removes_its_weights(field: str, value: Any, names: set[str]) -> None:
    before, after = (set(encoder(**fields).state_dict()) for fields in ({}, {field: value}))
    gone = before - after
    assert all(any(name.endswith(end) for name in gone) for end in names)
    if field == "attention_output_bias":
        assert not any(name.endswith("q_proj.bias") for name in gone)


@pytest.mark.parametrize(
    ("model_class", "pooler", "expected"),
    [
        (VaswaniEncoderModel, None, True),
        (VaswaniEncoderModel, False, False),
        (VaswaniForMaskedLM, None, False),
        (VaswaniForMaskedLM, True, True),
        (VaswaniForSequenceClassification, False, True),
    ],
)
def test_the_pooler_exists_only_if_used_or_requested(
    model_class: Any, pooler: bool | None, expected: bool
) -> None:
    assert (encoder(model_class, pooler=pooler).base_model.pooler is not None) == expected


def test_a_classifier_can_have_a_hidden_layer() -> None:
    plain, own = (encoder(VaswaniForSequenceClassification, classifier_activation=a) for a in (None, "relu"))
    assert own.base_model.pooler is None
    ids = tokens()
    state = own.base_model(ids).last_hidden_state[:, 0]
    torch.testing.assert_close(own(ids).logits, own.classifier(own.pre_classifier(state).relu()))
    torch.testing.assert_close(plain(ids).logits, plain.classifier(plain.base_model(ids).pooler_output))


@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_text_is_classified_by_the_mean_of_its_tokens(activation: str | None) -> None:
    mean, first = (
        encoder(
            VaswaniForSequenceClassification, classifier_activation=activation, classifier_pooling=pooling
        )
        for pooling in ("mean", "cls")
    )
    ids = tokens()
    state = mean.base_model(ids).last_hidden_state.mean(1)
    if activation is None:
        pooled = mean.base_model.pooler.dense(state).tanh()
    else:
        pooled = mean.pre_classifier(state).relu()
    torch.testing.assert_close(mean(ids).logits, mean.classifier(pooled))
    assert not torch.allclose(first(ids).logits, mean(ids).logits, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_mean_pooling_excludes_padding(side: str) -> None:
    model = encoder(VaswaniForSequenceClassification, classifier_pooling="mean", position_embedding="none")
    ids = tokens()
    padding, places = torch.zeros_like(ids[:, :3]), [1, 0] if side == "left" else [0, 1]
    padded, mask = (
        torch.cat([pair[place] for place in places], dim=1)
        for pair in ((ids, padding), (torch.ones_like(ids), padding))
    )
    torch.testing.assert_close(model(padded, attention_mask=mask).logits, model(ids).logits)
    assert torch.isfinite(model(padded, attention_mask=torch.zeros_like(mask)).logits).all()
    of_pairs = mask.bool()[:, None, None].expand(-1, 1, mask.shape[1], -1)
    with pytest.raises(ValueError, match=r"shape \(3, 1, .*give one of \(batch_size, sequence_length\)"):
        model(padded, attention_mask=of_pairs)


def test_new_weights_have_the_requested_standard_deviation() -> None:
    for std in (0.02, 0.5):
        model = encoder(initializer_range=std)
        assert model.model.encoder.layers[0].fc1.weight.std().item() == pytest.approx(std, rel=0.2)
    glorot = encoder(initializer_range=None)
    assert glorot.model.encoder.embed_tokens.weight[1:].std().item() == pytest.approx(16**-0.5, rel=0.2)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_new_padding_embeddings_are_zero_and_loaded_ones_are_kept(is_loaded: bool) -> None:
    model = encoder()
    embeddings = model.get_input_embeddings()
    padding = embeddings.padding_idx
    with torch.no_grad():
        embeddings.weight[:] = 7.0
    embeddings.weight._is_hf_initialized = is_loaded  # the library's mark
    with torch.no_grad():
        model._init_weights(embeddings)
    assert (embeddings.weight[padding] == (7.0 if is_loaded else 0.0)).all()
    others = embeddings.weight[torch.arange(50) != padding]
    assert (others == 7.0).all() if is_loaded else others.std().item() == pytest.approx(0.3, rel=0.2)


def test_dropout_before_the_classifier() -> None:
    model = encoder(VaswaniForSequenceClassification, classifier_dropout=0.5).train()
    ids = tokens()
    assert not torch.equal(model(ids).logits, model(ids).logits)
    assert torch.equal(model.eval()(ids).logits, model(ids).logits)


def test_segments_have_embeddings() -> None:
    model, ids = encoder(), tokens()
    none = model(ids).logits
    torch.testing.assert_close(model(ids, token_type_ids=torch.zeros_like(ids)).logits, none)
    hook = model.model.embed_token_types.register_forward_hook(
        lambda module, inputs, output: output.roll(1, -1)
    )
    for types in (None, torch.zeros_like(ids)):  # as of an adapter or of offloading
        assert not torch.allclose(model(ids, token_type_ids=types).logits, none, atol=1e-3)
    hook.remove()
    assert not torch.allclose(model(ids, token_type_ids=torch.ones_like(ids)).logits, none, atol=1e-3)
    with pytest.raises(
        ValueError, match=r"token_type_ids holds 2, but token_type_vocab_size=2: they go from 0 to 1"
    ):
        model(ids, token_type_ids=torch.full_like(ids, 2))
    with pytest.raises(ValueError, match=r"were given to a model without token types .*leave them out"):
        encoder(token_type_vocab_size=0)(ids, token_type_ids=torch.ones_like(ids))


@pytest.mark.parametrize(
    ("config_class", "fields", "message"),
    [
        (
            VaswaniEncoderConfig,
            {"d_model": 20, "encoder_attention_heads": 3},
            "must be divisible by encoder_att",
        ),
        (VaswaniDecoderConfig, {"decoder_layers": 0}, "decoder_layers=0 must be at least 1"),
        (VaswaniEncoderConfig, {"classifier_activation": "sine"}, "classifier_activation='sine' is unknown"),
        (
            VaswaniEncoderConfig,
            {"classifier_dropout": 1.0},
            "classifier_dropout=1.0 must be at least 0 and below 1",
        ),
        (VaswaniEncoderConfig, {"classifier_pooling": "max"}, "'cls', 'mean'"),
        (VaswaniEncoderConfig, {"token_type_vocab_size": -1}, "token_type_vocab_size=-1 must be at least 0"),
        (VaswaniDecoderConfig, {"layer_norm_eps": 0}, "layer_norm_eps=0 must be above 0"),
        (
            VaswaniDecoderConfig,
            {"initializer_range": 0.0},
            "initializer_range=0.0 must be above 0 and",
        ),
        (VaswaniDecoderConfig, {"sinusoidal_offset": -1}, "sinusoidal_offset=-1 must be at least 0"),
        (VaswaniDecoderConfig, {"decoder_attention": ["full"]}, "decoder_attention lists 1 layers"),
        (VaswaniDecoderConfig, {"pad_token_id": 60_000}, "pad_token_id=60000 lies outside the vocabulary"),
    ],
)
def test_impossible_configurations_raise_an_error(
    config_class: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((StrictDataclassError, ValueError), match=re.escape(message)):
        config_class(**fields)


def test_a_checkpoint_can_be_loaded_with_any_head(tmp_path) -> None:
    """Pre-trained weights stay when a head is put on them, and when it is taken off."""
    encoder().save_pretrained(tmp_path / "masked")
    body = AutoModel.from_pretrained(tmp_path / "masked")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "masked").eval()
    ids = tokens()
    torch.testing.assert_close(body.eval()(ids).last_hidden_state, again.model(ids).last_hidden_state)
    torch.testing.assert_close(again(ids).logits, encoder()(ids).logits)
    decoder().save_pretrained(tmp_path / "causal")
    torch.testing.assert_close(
        AutoModelForCausalLM.from_pretrained(tmp_path / "causal").eval()(ids).logits, decoder()(ids).logits
    )


@pytest.mark.slow
def test_a_whole_step_compiles() -> None:
    ids = tokens()
    for model in (encoder().train(), decoder().train()):
        compiled = torch.compile(model, fullgraph=True, backend=GRAPHS_ALONE)
        torch.testing.assert_close(
            compiled(ids, labels=ids).loss, model(ids, labels=ids).loss, atol=1e-5, rtol=1e-4
        )
