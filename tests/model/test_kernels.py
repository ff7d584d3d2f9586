"""Every attention implementation computes the reference; what they report is complete."""

import pytest
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tiny import assert_sdpa_equals_eager, batch, enable_activation_checkpointing, tiny_model, tokens
from vaswani import VaswaniDecoderConfig, VaswaniForCausalLM
from vaswani.model.attention import eager_attention_forward


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_sdpa_equals_eager_in_outputs_and_gradients(norm_order: str) -> None:
    model, data = tiny_model("eager", norm_order=norm_order), batch()
    assert_sdpa_equals_eager(model, data)


@pytest.mark.slow
def test_flex_equals_eager() -> None:
    """Forward only: FlexAttention has no backward on the CPU."""
    model, data = tiny_model("eager", d_model=64), batch(source=20, target=17)
    with torch.no_grad():
        expected = model(**data).logits
        model.set_attn_implementation("flex_attention")
        torch.testing.assert_close(model(**data).logits, expected, rtol=1e-4, atol=1e-5)


def plain_flash(module: nn.Module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """A flash kernel's contract in plain PyTorch.

    It takes a 2D mask or none, causality from the module, and unpads queries by the mask of the keys.
    Queries, keys and values have one width.
    """
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert attention_mask is None or attention_mask.ndim == 2
    visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    if module.is_causal and query.shape[-2] > 1:
        visible = visible.tril(key.shape[-2] - query.shape[-2])
    if attention_mask is not None:
        visible = visible & attention_mask[:, None, None].bool()
    output, _ = eager_attention_forward(module, query, key, value, visible, scaling, dropout)
    if attention_mask is not None:
        output = output * attention_mask[:, -query.shape[-2] :, None, None]
    return output, None


@pytest.mark.parametrize("key_dim", [None, 4, 20])
def test_flash_kernels_receive_masks_and_widths_in_their_form(key_dim: int | None) -> None:
    """No flash kernel runs on the CPU; one with the same contract shows what reaches it."""
    AttentionInterface.register("flash_stand_in", plain_flash)
    AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    model, data = tiny_model("eager", key_dim=key_dim), batch()
    expected = model(**data).logits
    beams = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    expected_beams = model.generate(data["input_ids"], attention_mask=data["attention_mask"], **beams)
    for stack in (model, model.model, model.model.encoder, model.model.decoder):
        stack.config._attn_implementation_internal = "flash_stand_in"
    real = data["labels"] != -100
    torch.testing.assert_close(model(**data).logits[real], expected[real], rtol=1e-4, atol=1e-5)
    actual_beams = model.generate(data["input_ids"], attention_mask=data["attention_mask"], **beams)
    assert actual_beams.tolist() == expected_beams.tolist()


def test_attentions_and_hidden_states_are_complete() -> None:
    model, data = tiny_model("eager"), batch(rows=2, source=7, target=5)
    output = model(**data, output_attentions=True, output_hidden_states=True)
    assert [tuple(a.shape) for a in output.encoder_attentions] == [(2, 4, 7, 7)] * 2
    assert [tuple(a.shape) for a in output.decoder_attentions] == [(2, 2, 5, 5)] * 2
    assert [tuple(a.shape) for a in output.cross_attentions] == [(2, 2, 5, 7)] * 2
    assert [tuple(h.shape) for h in output.encoder_hidden_states] == [(2, 7, 32)] * 3
    assert [tuple(h.shape) for h in output.decoder_hidden_states] == [(2, 5, 32)] * 3
    for weights in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    torch.testing.assert_close(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)


def test_the_decoder_sees_no_future() -> None:
    for implementation in ("eager", "sdpa"):
        model, data = tiny_model(implementation), batch(rows=1, target=6)
        before = model(**data).logits
        data["labels"][0, 4:] = 5  # becomes the decoder's input at places 5 and on
        torch.testing.assert_close(model(**data).logits[:, :5], before[:, :5])
        assert not torch.allclose(model(**data).logits[:, 5], before[:, 5])


def test_inputs_embeds_encoder_outputs_and_logits_to_keep() -> None:
    model, data = tiny_model(), batch()
    expected = model(**data).logits
    embeds = model.get_input_embeddings()(data["input_ids"])
    rest = {"attention_mask": data["attention_mask"], "labels": data["labels"]}
    torch.testing.assert_close(model(inputs_embeds=embeds, **rest).logits, expected)
    encoded = model.model.encoder(data["input_ids"], data["attention_mask"])
    torch.testing.assert_close(model(encoder_outputs=encoded, **rest).logits, expected)
    other = BaseModelOutputWithPooling(last_hidden_state=encoded[0])
    for given in ((encoded[0],), [encoded[0]], other):
        torch.testing.assert_close(model(encoder_outputs=given, **rest).logits, expected)
    start = model.prepare_decoder_input_ids_from_labels(data["labels"])
    kept = model(
        input_ids=data["input_ids"],
        attention_mask=data["attention_mask"],
        decoder_inputs_embeds=model.model.decoder.embed_tokens(start),
        logits_to_keep=2,
    ).logits
    torch.testing.assert_close(kept, expected[:, -2:])


@pytest.mark.parametrize("given", [{}, {"input_ids": 1, "inputs_embeds": 1}], ids=["neither", "both"])
def test_exactly_one_of_input_ids_and_inputs_embeds_is_required(given: dict[str, int]) -> None:
    model = tiny_model()
    values = {"input_ids": torch.ones(1, 2, dtype=torch.long), "inputs_embeds": torch.ones(1, 2, 32)}
    with pytest.raises(ValueError, match=r"exactly one of input_ids and inputs_embeds; got (neither|both)"):
        model(**{name: values[name] for name in given}, decoder_input_ids=torch.ones(1, 2, dtype=torch.long))


def test_gradient_checkpointing_changes_nothing() -> None:
    model, data = tiny_model(), batch()
    model.train()
    model(**data).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    enable_activation_checkpointing(model)
    model(**data).loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


SPARSE = {"encoder_attention": "sparse", "decoder_attention": "sparse", "sparse_block_size": 2}


@pytest.mark.parametrize("fields", [{}, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention", "flash_stand_in"])
def test_attention_weights_are_the_references_whatever_the_kernel(implementation: str, fields: dict) -> None:
    """Without a cache, with one, and in `generate`; outputs stay what they are."""
    AttentionInterface.register("flash_stand_in", plain_flash)
    AttentionMaskInterface.register("flash_stand_in", flash_attention_mask)
    model, data = tiny_model("eager", **fields), batch(source=14, target=9)
    source = {"input_ids": data["input_ids"], "attention_mask": data["attention_mask"]}
    generating = {**source, "max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    results = []
    for kernel in ("eager", implementation):
        for module in model.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation_internal = kernel
        wanted = model(**data, output_attentions=True)
        stepwise = model.generate(**generating, output_attentions=True)
        beams = model.generate(**generating, num_beams=3, output_attentions=True)
        results.append(
            [
                *(wanted.logits, wanted.loss, stepwise.sequences, beams.sequences),
                *(wanted.encoder_attentions, wanted.decoder_attentions, wanted.cross_attentions),
                *(stepwise.encoder_attentions, stepwise.decoder_attentions, stepwise.cross_attentions),
                *(beams.encoder_attentions, beams.decoder_attentions, beams.cross_attentions),
            ]
        )
    expected, actual = results
    assert all(len(weights) for weights in expected[4:])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_decoder_only_model_returns_its_attention_weights() -> None:
    fields = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 40}
    model = VaswaniForCausalLM._from_config(
        VaswaniDecoderConfig(vocab_size=61, **fields), attn_implementation="sdpa"
    ).eval()
    row = tokens(2, 8)
    output = model(row, output_attentions=True)
    assert [tuple(weights.shape) for weights in output.attentions] == [(2, 2, 8, 8)] * 2
    assert all((weights == weights.tril()).all() for weights in output.attentions)
    torch.testing.assert_close(output.logits, model(row).logits, rtol=1e-4, atol=1e-5)
