"""Half precision without NaN, autocast, and torch.compile without a graph break."""

import pytest
import torch
from transformers import EncoderDecoderCache, StaticCache

from tiny import GRAPHS_ALONE, batch, tiny_model, tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_half_precision_stays_close(dtype: torch.dtype, norm_order: str) -> None:
    model, data = tiny_model(norm_order=norm_order), batch()
    expected = model(**data).logits
    output = model.to(dtype)(**data)
    assert output.logits.dtype == dtype
    torch.testing.assert_close(output.logits.float(), expected, rtol=0.1, atol=0.1)
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_float16_residuals_that_overflow_do_not_become_nan(norm_order: str) -> None:
    model, data = tiny_model(norm_order=norm_order), batch()
    with torch.no_grad():
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            layer.fc2.weight.mul_(1e4)
            layer.fc2.bias.fill_(6e4)
    assert model.half()(**data).logits.isfinite().all()


def test_autocast_trains_in_bfloat16() -> None:
    model, data = tiny_model(), batch()
    expected = model(**data).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**data).loss
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("norm_order", "backend"), [("post", "inductor"), ("pre", GRAPHS_ALONE)])
def test_a_training_step_compiles_whole(norm_order: str, backend: str) -> None:
    model, data = tiny_model(norm_order=norm_order), batch()
    model(**data).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    loss = compiled(**data).loss
    loss.backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_decoding_with_a_static_cache_compiles_whole() -> None:
    model, target = tiny_model(), tokens(2, 6)
    data = batch(rows=2)
    del data["labels"]
    expected = model(**data, decoder_input_ids=target).logits
    config = model.config.get_text_config(decoder=True)
    cache = EncoderDecoderCache(
        StaticCache(config=config, max_cache_len=16), StaticCache(config=config, max_cache_len=7)
    )
    encoded = model.model.encoder(**data)
    step = torch.compile(model, fullgraph=True)
    rest = {"encoder_outputs": encoded, "attention_mask": data["attention_mask"], "past_key_values": cache}
    with torch.no_grad():
        parts = [model(**rest, decoder_input_ids=target[:, :2], use_cache=True).logits]
        parts += [
            step(**rest, decoder_input_ids=target[:, i : i + 1], use_cache=True).logits for i in range(2, 6)
        ]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-4, atol=1e-5)
