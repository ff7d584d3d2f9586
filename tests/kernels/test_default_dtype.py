"""PyTorch's default dtype does not change the results of a model in float32."""

from collections.abc import Iterator

import pytest
import torch

from tiny import batch, tiny_model
from vaswani import VaswaniForConditionalGeneration
from vaswani.kernels.projected_loss import TokenLoss

DTYPES = [torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


def model() -> VaswaniForConditionalGeneration:
    """Of sizes that the C++ takes."""
    return tiny_model(d_model=64, decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("rows", [2, 70])  # many rows choose other kernels
def test_searches_do_not_depend_on_the_default_dtype(
    default_dtype: torch.dtype, num_beams: int, rows: int
) -> None:
    one, data = model(), batch(rows=5)
    source = {name: data[name].repeat(14, 1)[:rows] for name in ("input_ids", "attention_mask")}
    options = {**source, "num_beams": num_beams, "max_new_tokens": 20, "do_sample": False}
    expected = one.generate(**options)
    torch.set_default_dtype(default_dtype)
    assert torch.equal(one.generate(**options), expected)


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_losses_and_gradients_do_not_depend_on_the_default_dtype(
    default_dtype: torch.dtype, smoothing: float | None
) -> None:
    one, data = model(), batch(rows=5)
    found = []
    for dtype in (torch.get_default_dtype(), default_dtype):
        torch.set_default_dtype(dtype)
        one.zero_grad()
        loss = one(**data, smoothing=smoothing).loss
        loss.backward()
        found.append((loss, *(parameter.grad for parameter in one.parameters())))
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected)


def test_losses_of_distributions_do_not_depend_on_the_default_dtype(default_dtype: torch.dtype) -> None:
    one, data = model(), batch(rows=5)
    kept = data["labels"] != -100
    targets = torch.randn(int(kept.sum()), 61).softmax(-1)
    loss = TokenLoss(kept, lambda logits, rows: -(targets[rows] * logits.log_softmax(-1)).sum())
    inputs = {**data, "token_loss": loss, "decoder_input_ids": data["labels"].clamp(min=0)}
    del inputs["labels"]
    expected = one(**inputs).loss
    torch.set_default_dtype(default_dtype)
    torch.testing.assert_close(one(**inputs).loss, expected)
