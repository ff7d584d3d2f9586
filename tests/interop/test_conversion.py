"""Converted models give the same states, logits, losses, gradients and tokens as the originals."""

from typing import Any

import pytest
import torch
from library_models import (
    ALL,
    DECODERS,
    ENCODERS,
    TRANSLATORS,
    VOCAB,
    build,
    name_of,
    padded_batch,
    randomize,
)
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertLMHeadModel,
    BigBirdConfig,
    BigBirdForMaskedLM,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    DistilBertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    OpenAIGPTLMHeadModel,
)
from transformers.models.fsmt import modeling_fsmt

from vaswani import (
    VaswaniConfig,
    VaswaniEncoderConfig,
    VaswaniForConditionalGeneration,
    VaswaniForSequenceClassification,
)
from vaswani.errors import UserError
from vaswani.interop.conversion import FORMATS, convert, export, format_of
from vaswani.interop.weights import to_ours
from vaswani.model.compatibility import CACHE_NAME

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float64"])
SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(autouse=True)
def fsmt_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSMT puts the lowest number of float64 into its causal mask by way of float32, which cannot hold it."""
    monkeypatch.setattr(modeling_fsmt, "fill_with_neg_inf", lambda t: t.fill_(torch.finfo(t.dtype).min))


def inputs_for(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch with all that a model takes besides."""
    inputs: dict[str, Any] = {**batch}
    if type(model).__name__.endswith("ForMultipleChoice"):  # the rows are the choices of one text
        return {name: tensor[None] for name, tensor in batch.items()}
    if getattr(model.config, "type_vocab_size", 0):
        second = torch.arange(batch["input_ids"].shape[1]) > 4
        inputs["token_type_ids"] = second.long().expand_as(batch["input_ids"])
    if model.config.is_encoder_decoder:
        target = padded_batch("right", length=9)["input_ids"]
        start = target.new_full((len(target), 1), model.config.decoder_start_token_id)
        inputs["decoder_input_ids"] = torch.cat([start, target[:, :-1]], 1)
        inputs["use_cache"] = False  # with a cache FSMT looks ahead, and relies on a prompt of one token
    return inputs


def labels_for(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Labels as the head of a model wants them; padding, and what padding predicts, does not count."""
    ids, mask, kind = batch["input_ids"], batch["attention_mask"], type(model).__name__
    tokens = ids.masked_fill((mask & mask.roll(1, 1)) == 0, -100)
    rows = torch.arange(len(ids))
    if model.config.is_encoder_decoder:
        target = padded_batch("right", length=9)
        return {"labels": target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)}
    if kind.endswith("ForQuestionAnswering"):
        return {"start_positions": 5 + rows % 2, "end_positions": 6 + rows % 3}
    if kind.endswith("ForSequenceClassification"):
        return {"labels": rows / 3 if model.config.num_labels == 1 else rows % 2}
    if kind.endswith(("ForMultipleChoice", "ForNextSentencePrediction")):
        return {"labels": rows[:1] if kind.endswith("Choice") else rows % 2}
    if kind.endswith("ForTokenClassification"):
        return {"labels": torch.where(tokens < 0, tokens, tokens % 2)}
    if kind.endswith("ForPreTraining"):
        return {"labels": tokens, "next_sentence_label": rows % 2}
    return {"labels": tokens}


def loss_of(model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """As the model computes it; the library's GPTs lose float64 on the way, so theirs is computed here."""
    output = model(**inputs)
    if isinstance(model, GPT2LMHeadModel | OpenAIGPTLMHeadModel):
        logits, labels = output.logits[:, :-1], inputs["labels"][:, 1:]
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return output.loss


def numbers(output: Any, masks: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """All floating-point numbers of an output, each where there is a token."""
    found = {}
    for name, value in output.items():
        if name in (CACHE_NAME, "cross_attentions"):
            continue
        for number, tensor in enumerate(value if isinstance(value, tuple) else (value,)):
            mask = next((mask for mask in masks if tensor.shape[:2] == mask.shape), None)
            found[f"{name}.{number}"] = tensor if mask is None else tensor[mask.bool()]
    return found


def check_equal(theirs: Any, ours: Any, masks: list[torch.Tensor], tolerance: float) -> None:
    expected, actual = numbers(theirs, masks), numbers(ours, masks)
    assert expected.keys() <= actual.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(
            actual[name],
            tensor,
            atol=tolerance,
            rtol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """Of every weight under each of its names; zero where the loss does not reach."""
    return {
        name: torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def gradients_in_our_names(theirs: nn.Module, ours: nn.Module) -> dict[str, torch.Tensor]:
    rules = format_of(type(theirs).__name__).rules(type(theirs).__name__)
    tables = {rule.theirs for rule in rules if not rule.ours}
    found = {name: gradient for name, gradient in gradients(theirs).items() if name not in tables}
    if type(theirs).__name__ == "GPT2ForQuestionAnswering":
        # Its answers may lie in the padding, which trains the padding's embedding; ours is fixed.
        found["transformer.wte.weight"][theirs.config.pad_token_id] = 0
    return to_ours(found, rules, ours.state_dict(), {})


@DTYPES
@SIDES
@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_states_logits_loss_and_gradients_are_equal(case, side: str, dtype: torch.dtype) -> None:
    theirs = build(case, dtype)
    ours = convert(theirs)
    assert ours.dtype == dtype
    batch = padded_batch(side)
    inputs = inputs_for(theirs, batch)
    masks = [batch["attention_mask"], padded_batch("right", length=9)["attention_mask"]]
    outputs = [model(**inputs, output_hidden_states=True) for model in (theirs, ours)]
    check_equal(*outputs, masks, TOLERANCE[dtype])

    if theirs.base_model is theirs:
        return  # the stacks alone have no loss
    losses = [loss_of(model, {**inputs, **labels_for(theirs, batch)}) for model in (theirs, ours)]
    torch.testing.assert_close(losses[1], losses[0], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    for loss in losses:
        loss.backward()
    expected = gradients_in_our_names(theirs, ours)
    for name, gradient in gradients(ours).items():
        if name == "lm_head.bias" and isinstance(theirs, MarianMTModel):
            continue  # a buffer there, which no training reaches
        torch.testing.assert_close(gradient, expected[name], atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@DTYPES
@pytest.mark.parametrize("case", [ENCODERS[4], DECODERS[2], *TRANSLATORS[::5]], ids=name_of)
def test_long_inputs_are_equal(case, dtype: torch.dtype) -> None:
    theirs = build(case, dtype)
    batch = padded_batch("right", length=300)
    inputs = inputs_for(theirs, batch)
    masks = [batch["attention_mask"], padded_batch("right", length=9)["attention_mask"]]
    outputs = [model(**inputs, output_hidden_states=True) for model in (theirs, convert(theirs))]
    check_equal(*outputs, masks, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_conversion_and_back_is_bit_identical(case, dtype: torch.dtype) -> None:
    theirs = build(case, dtype)
    name = format_of(type(theirs).__name__).name
    back = export(convert(theirs), name)
    assert type(back) is type(theirs)
    assert back.dtype == dtype
    state = back.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    for weight, tensor in theirs.state_dict().items():
        assert torch.equal(state[weight], tensor), weight
    ignored = {"architectures", "dtype", "transformers_version", "_name_or_path", "classifier_dropout"}
    ignored |= {"qa_dropout", "seq_classif_dropout", "n_inner", "torch_dtype"}
    before, after = (
        {name: value for name, value in config.to_dict().items() if name not in ignored}
        for config in (theirs.config, back.config)
    )
    if name == "openai-gpt":
        before["afn"], after["afn"] = (
            value.replace("gelu_new", "gelu") for value in (before["afn"], after["afn"])
        )
    assert after == before


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(
    "case",
    [case for case in [*DECODERS, *TRANSLATORS] if case[0] in (GPT2LMHeadModel, MarianMTModel)],
    ids=name_of,
)
def test_generated_tokens_are_the_same(case, num_beams: int) -> None:
    theirs = build(case, torch.float64, scale=0.4)
    ours = convert(theirs)
    batch = padded_batch("left")
    options = {
        "num_beams": num_beams,
        "max_new_tokens": 12,
        "num_return_sequences": num_beams,
        "do_sample": False,
    }
    expected, actual = (model.generate(**batch, **options) for model in (theirs, ours))
    assert torch.equal(actual, expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize(
    ("case", "scale"), list(zip(TRANSLATORS[-2:], (0.3, 0.5), strict=True)), ids=["two", "one"]
)
def test_fsmt_generates_the_same(case, scale: float, num_beams: int) -> None:
    theirs = build(case, scale=scale)  # with which its rows differ
    batch = padded_batch("right")
    options = {"num_beams": num_beams, "max_length": 12, "do_sample": False}
    expected, actual = (model.generate(**batch, **options) for model in (theirs, convert(theirs)))
    assert torch.equal(actual, expected)
    assert len({tuple(row) for row in expected.tolist()}) > 1


def test_a_bias_that_only_marian_has_is_zero() -> None:
    config = VaswaniConfig(
        vocab_size=VOCAB, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8
    )
    config.sinusoidal_layout = "concatenated"
    ours = VaswaniForConditionalGeneration(config).eval()
    theirs = export(ours, "marian").eval()
    assert not theirs.final_logits_bias.any()
    batch = padded_batch("right")
    inputs = {**batch, "decoder_input_ids": batch["input_ids"][:, :5]}
    torch.testing.assert_close(theirs(**inputs).logits, ours(**inputs).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@DTYPES
def test_torch_transformer(norm_first: bool, bias: bool, activation: str, dtype: torch.dtype) -> None:
    theirs = randomize(
        nn.Transformer(
            *(24, 3, 2, 3, 40),
            activation=activation,
            norm_first=norm_first,
            bias=bias,
            batch_first=True,
            layer_norm_eps=1e-4,
        )
    ).to(dtype)
    ours = convert(theirs)
    source, target = torch.randn(2, 9, 24, dtype=dtype), torch.randn(2, 5, 24, dtype=dtype)
    mask = padded_batch("right", length=9)["attention_mask"][:2]
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=dtype)
    expected = theirs(
        *(source, target),
        tgt_mask=causal,
        src_key_padding_mask=mask == 0,
        memory_key_padding_mask=mask == 0,
        tgt_is_causal=True,
    )
    actual = ours(inputs_embeds=source, decoder_inputs_embeds=target, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(actual, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    expected.sum().backward()
    actual.sum().backward()
    layers = zip(theirs.encoder.layers, ours.encoder.layers, strict=True)
    for their_layer, our_layer in layers:
        torch.testing.assert_close(
            our_layer.fc1.weight.grad, their_layer.linear1.weight.grad, atol=TOLERANCE[dtype], rtol=1e-4
        )


def torch_stacks(**of_decoder: Any) -> nn.Transformer:
    """With a decoder that is given."""
    layer = nn.TransformerDecoderLayer(
        16, of_decoder.pop("nhead", 4), 24, 0.1, batch_first=True, **of_decoder
    )
    decoder = nn.TransformerDecoder(layer, 2, nn.LayerNorm(16))
    return nn.Transformer(16, 4, 2, 2, 24, custom_decoder=decoder, batch_first=True)


def test_the_stacks_of_torch_may_have_other_heads() -> None:
    theirs = randomize(torch_stacks(nhead=2)).double().eval()
    source, target = torch.randn(2, 9, 16).double(), torch.randn(2, 5, 16).double()
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    actual = convert(theirs)(inputs_embeds=source, decoder_inputs_embeds=target).last_hidden_state
    torch.testing.assert_close(actual, theirs(source, target, tgt_mask=causal))


def odd_layer(theirs: nn.Transformer) -> nn.Transformer:
    theirs.decoder.layers[1].activation = nn.functional.gelu
    return theirs


def odd_norm(theirs: nn.Transformer) -> nn.Transformer:
    theirs.encoder.norm.eps = 0.1
    return theirs


class OwnForward(nn.Transformer):
    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return -super().forward(*args, **kwargs)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: torch_stacks(norm_first=True), "layer 0 of the decoder has norm_first=True, and the first"),
        (lambda: torch_stacks(layer_norm_eps=0.1), "layer_norm_eps="),
        (lambda: torch_stacks(activation="gelu"), "layer 0 of the decoder has activation="),
        (lambda: odd_layer(torch_stacks()), "layer 1 of the decoder has activation="),
        (lambda: odd_norm(torch_stacks()), "layer 0 of the encoder has layer_norm_eps="),
        (lambda: OwnForward(16, 4, 2, 2, 24), "with custom stacks is not supported"),
    ],
)
def test_unsupported_torch_options_raise_an_error(made, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(made())


def test_big_birds_weights_with_our_pattern() -> None:
    fields = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BigBirdConfig(vocab_size=VOCAB, block_size=4, num_random_blocks=1, **fields)
    ours = convert(BigBirdForMaskedLM(config))
    pattern = ours.config.sparse_pattern("encoder", 0)
    assert (pattern.block_size, pattern.window_blocks, pattern.random_blocks) == (4, 3, 1)
    assert export(ours, "big_bird").config.attention_type == "block_sparse"


ONE_OF_EACH_FORMAT = {format_of(case[0].__name__).name: case for case in reversed(ALL)}


@pytest.mark.parametrize("name", ONE_OF_EACH_FORMAT)
def test_narrow_keys_are_exported_with_zeros(name: str) -> None:
    usual = convert(build(ONE_OF_EACH_FORMAT[name]))
    usual.config.key_dim = 3
    ours = randomize(type(usual)(usual.config), scale=0.3).double()
    theirs = export(ours, name)
    batch = padded_batch("right")
    inputs = inputs_for(theirs, batch)
    masks = [batch["attention_mask"], padded_batch("right", length=9)["attention_mask"]]
    check_equal(theirs(**inputs), ours(**inputs), masks, TOLERANCE[torch.float64])
    assert convert(theirs).config.key_dim is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_attention": ["full", "sparse"]}, "all layers of a BigBird model have the same attention"),
        ({"sparse_window_blocks": 5}, "sparse_window_blocks=5 is not supported: big_bird models have .*=3"),
        ({"sparse_global_blocks": 1}, "sparse_global_blocks=1 is not supported: big_bird models have .*=2"),
        ({"sparse_global_tokens": 3, "sparse_global_blocks": 0}, "sparse_global_.* is not supported"),
    ],
)
def test_patterns_unsupported_by_big_bird_raise_an_error(fields: dict[str, Any], message: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}
    ours = convert(BigBirdForMaskedLM(BigBirdConfig(vocab_size=VOCAB, block_size=4, **sizes)))
    for name, value in fields.items():
        setattr(ours.config, name, value)
    with pytest.raises(UserError, match=message):
        export(ours, "big_bird")


def test_a_tensor_of_another_shape_is_named() -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    theirs = BertForQuestionAnswering(BertConfig(vocab_size=VOCAB, num_labels=5, **sizes))
    with pytest.raises(UserError, match=r"would have the shape \[5, 16\], and vaswani's model has \[2, 16\]"):
        convert(theirs)


def test_conversion_keeps_the_training_mode_and_copies_the_weights() -> None:
    theirs = build(ENCODERS[4]).train()
    ours = convert(theirs)
    assert ours.training
    ours.lm_head.weight.data.zero_()
    assert theirs.cls.predictions.decoder.weight.any(), "the weights are copies"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: BertLMHeadModel(BertConfig(**SMALL_BERT, is_decoder=True)),
            "BertLMHeadModel cannot be converted; these can: MarianModel, MarianMTModel, FSMTFor",
        ),
        (
            lambda: BertForMaskedLM(BertConfig(**SMALL_BERT, is_decoder=True)),
            "is_decoder=True has no counterpart in vaswani: only bert models with is_decoder=False",
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(**SMALL_GPT, embd_pdrop=0.2)),
            "embd_pdrop=0.2 and resid_pdrop=0.1 differ, and vaswani has dropout for both",
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(**SMALL_GPT, scale_attn_by_inverse_layer_idx=True)),
            "scale_attn_by_inverse_layer_idx=True has no counterpart",
        ),
        (
            lambda: GPT2LMHeadModel(GPT2Config(**SMALL_GPT, is_causal=False)),
            "is_causal=False has no counterpart in vaswani",
        ),
        (
            lambda: MarianMTModel(MarianConfig(**SMALL_MARIAN, is_causal=True)),
            "is_causal=True has no counterpart in vaswani",
        ),
        (
            lambda: MarianMTModel(MarianConfig(**SMALL_MARIAN, tie_word_embeddings=False)),
            "share_encoder_decoder_embeddings=True with tie_word_embeddings=False has no counterpart",
        ),
        (
            lambda: with_one_more_tensor(),
            "the model has 1 tensors (bert.adapter) that vaswani has no",
        ),
        (lambda: with_other_sinusoids(), "model.encoder.embed_positions.weight does not hold the sinusoids"),
        (lambda: with_two_biases(), "cls.predictions.bias differs from cls.predictions.decoder.bias"),
        (lambda: nn.Linear(2, 2), "Linear cannot be converted"),
        (
            lambda: nn.Transformer(8, 2, 1, 1, 8, activation=torch.tanh),
            "the activation <built-in method tanh",
        ),
    ],
)
def test_unsupported_models_raise_an_error(model, message: str) -> None:
    with pytest.raises(UserError) as caught:
        convert(model())
    assert message in str(caught.value)


SMALL_BERT = {
    "vocab_size": 9,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
SMALL_GPT = {"vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
SMALL_MARIAN = {
    "vocab_size": 9,
    "d_model": 8,
    "pad_token_id": 8,
    "decoder_start_token_id": 8,
    **{
        f"{stack}_{name}": 2
        for stack in ("encoder", "decoder")
        for name in ("layers", "ffn_dim", "attention_heads")
    },
}


def with_one_more_tensor() -> nn.Module:
    model = BertForMaskedLM(BertConfig(**SMALL_BERT))
    model.bert.adapter = nn.Parameter(torch.ones(2))
    return model


def with_other_sinusoids() -> nn.Module:
    model = MarianMTModel(MarianConfig(**SMALL_MARIAN))
    model.model.encoder.embed_positions.weight.data.add_(0.01)
    return model


def with_two_biases() -> nn.Module:
    model = BertForMaskedLM(BertConfig(**SMALL_BERT, tie_word_embeddings=False))
    model.cls.predictions.decoder.bias.data.fill_(1.0)
    return model


@pytest.mark.parametrize(
    ("fields", "to", "message"),
    [
        (
            {"sinusoidal_layout": "tensor2tensor"},
            "marian",
            "sinusoidal_layout='tensor2tensor' is not supported: marian models have sinusoidal_layout",
        ),
        (
            {"norm_order": "pre"},
            "marian",
            "norm_order='pre' is not supported: MarianMT has post-norm layers only",
        ),
        (
            {"sinusoidal_layout": "concatenated", "encoder_attention": "sparse"},
            "marian",
            "encoder_attention='sparse' is not supported",
        ),
        (
            {"sinusoidal_layout": "concatenated", "key_dim": 3, "encoder_attention_heads": 8},
            "marian",
            "values, which have 2 features in a head of the encoder",
        ),
        ({}, "bert", "VaswaniForConditionalGeneration has no counterpart among bert models, which have Vas"),
        ({}, "xlnet", "unknown format 'xlnet'; choose one of marian, fsmt, bert"),
    ],
)
def test_configurations_unsupported_by_the_target_raise_an_error(
    fields: dict[str, Any], to: str, message: str
) -> None:
    shape = {"vocab_size": 9, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    with pytest.raises(UserError) as caught:
        export(VaswaniForConditionalGeneration(VaswaniConfig(**shape, **fields)), to)
    assert message in str(caught.value)


def test_every_format_is_tested() -> None:
    assert {format_of(case[0].__name__).name for case in ALL} == set(FORMATS)
    assert {case[0].__name__ for case in ALL} == {
        name for found in FORMATS.values() for name in found.classes
    }


def test_mean_pooling_cannot_be_exported_to_bert() -> None:
    shape = {"vocab_size": 9, "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
    first, mean = (
        VaswaniForSequenceClassification(VaswaniEncoderConfig(**shape, classifier_pooling=pooling))
        for pooling in ("cls", "mean")
    )
    assert type(export(first, "bert")).__name__ == "BertForSequenceClassification"
    with pytest.raises(UserError, match="classifier_pooling='mean' is not supported: bert models have"):
        export(mean, "bert")


def test_a_special_token_outside_the_vocabulary_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in many small models of the Hub, whose configuration has the default of GPT-2."""
    theirs = randomize(
        GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=2, n_positions=40, vocab_size=VOCAB))
    )
    ours: Any = convert(theirs)
    assert f"bos_token_id=50256 is outside the vocabulary of {VOCAB} tokens" in caplog.text
    assert (ours.config.bos_token_id, ours.config.eos_token_id) == (None, None)
    assert (ours.generation_config.bos_token_id, ours.generation_config.eos_token_id) == (None, None)
    ids = padded_batch("right")["input_ids"][:1]
    torch.testing.assert_close(ours(ids).logits, theirs(ids).logits, atol=1e-5, rtol=1e-5)
    expected = theirs.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=9)
    assert torch.equal(
        ours.generate(ids, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=9), expected
    )


@pytest.mark.parametrize("field", ["encoder_layerdrop", "decoder_layerdrop"])
def test_a_share_of_layers_that_training_drops_is_left_out_with_a_warning(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no effect on what the model computes after its training."""
    theirs = randomize(MarianMTModel(MarianConfig(**SMALL_MARIAN, **{field: 0.5}))).eval()
    ours: Any = convert(theirs)
    assert f"{field}=0.5, which has an effect in training only, has no counterpart" in caplog.text
    ids = {"input_ids": torch.tensor([[3, 4, 5]]), "decoder_input_ids": torch.tensor([[3, 6]])}
    torch.testing.assert_close(ours(**ids).logits, theirs(**ids).logits, atol=1e-5, rtol=1e-5)
    assert getattr(export(ours, "marian").config, field) == 0


@pytest.mark.parametrize(
    ("model_class", "dropout"),
    [
        (DistilBertForTokenClassification, 0.1),
        (DistilBertForQuestionAnswering, 0.3),
        (DistilBertForSequenceClassification, 0.2),
    ],
)
def test_each_head_of_distilbert_keeps_its_dropout(model_class: Any, dropout: float) -> None:
    config = DistilBertConfig(
        vocab_size=VOCAB,
        dim=16,
        hidden_dim=32,
        n_layers=1,
        n_heads=2,
        dropout=0.1,
        qa_dropout=0.3,
        seq_classif_dropout=0.2,
    )
    assert convert(model_class(config)).config.classifier_dropout == dropout
