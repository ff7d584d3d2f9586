"""The loss: aligned labels, ignored padding, and one normaliser for a batch in any number of parts."""

import pytest
import torch
from torch import nn

from tiny import batch, tiny_model
from vaswani.kernels import projected_loss as module
from vaswani.kernels.projected_loss import linear_cross_entropy


def test_labels_align_with_logits_and_padding_is_ignored() -> None:
    model, data = tiny_model(), batch()
    output = model(**data)
    real = data["labels"] != -100
    expected = nn.functional.cross_entropy(output.logits[real], data["labels"][real])
    torch.testing.assert_close(output.loss, expected)


def test_labels_alone_equal_decoder_inputs_given() -> None:
    model, data = tiny_model(), batch()
    start = model.prepare_decoder_input_ids_from_labels(data["labels"])
    torch.testing.assert_close(model(**data, decoder_input_ids=start).loss, model(**data).loss)


@pytest.mark.parametrize("count", [7, torch.tensor(7)])
def test_the_loss_is_divided_by_the_items_of_the_whole_batch(count: int | torch.Tensor) -> None:
    model, data = tiny_model(), batch()
    real = int((data["labels"] != -100).sum())
    torch.testing.assert_close(model(**data, num_items_in_batch=count).loss, model(**data).loss * real / 7)


def test_eight_batches_of_one_have_the_gradient_of_one_batch_of_eight() -> None:
    model, data = tiny_model().double(), batch(rows=5)
    count = (data["labels"] != -100).sum()
    model(**data, num_items_in_batch=count).loss.backward()
    whole = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for row in range(5):
        model(
            **{name: t[row : row + 1] for name, t in data.items()}, num_items_in_batch=count
        ).loss.backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 61 * 4, 1 << 22])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_fused_loss_equals_projection_and_cross_entropy(
    smoothing: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.CHUNK_ELEMENTS, "cpu", chunk)
    monkeypatch.setattr(module, "MIN_CHUNK_ROWS", 1)
    states = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(61, 16, dtype=torch.float64, requires_grad=True)
    labels = batch()["labels"]
    expected = nn.functional.cross_entropy(
        (states @ weight.t()).flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing
    )
    actual = linear_cross_entropy(states, weight, labels, smoothing)
    torch.testing.assert_close(actual, expected)
    for mine, reference in zip(
        torch.autograd.grad(actual / 7, [states, weight]),
        torch.autograd.grad(expected / 7, [states, weight]),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference)


def test_the_fused_loss_of_no_labels_is_zero() -> None:
    states, weight = torch.randn(2, 3, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
    loss = linear_cross_entropy(states, weight, torch.full((2, 3), -100), 0.1)
    gradients = torch.autograd.grad(loss, [states, weight])
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients)


def test_label_smoothing_moves_the_models_loss_and_its_gradients_agree() -> None:
    model, data = tiny_model(), batch()
    plain = model(**data)
    fused = model(**data, smoothing=0.0)
    assert fused.logits is None
    torch.testing.assert_close(fused.loss, plain.loss)
    smoothed = model(**data, smoothing=0.2)
    expected = nn.functional.cross_entropy(
        plain.logits.flatten(0, 1), data["labels"].flatten(), label_smoothing=0.2
    )
    torch.testing.assert_close(smoothed.loss, expected)
    assert (smoothed.loss - plain.loss).abs() > 1e-3
    for mine, reference in zip(
        torch.autograd.grad(smoothed.loss, list(model.parameters())),
        torch.autograd.grad(expected, list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        model(**data, smoothing=0.2, num_items_in_batch=5).loss * 5,
        smoothed.loss * (data["labels"] != -100).sum(),
    )


def test_the_fused_loss_respects_a_replaced_projection() -> None:
    model, data = tiny_model(tie_word_embeddings=False), batch()
    model.lm_head = nn.Sequential(nn.Linear(32, 8), nn.Linear(8, 61))
    torch.testing.assert_close(model(**data, smoothing=0.0).loss, model(**data).loss)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_fused_loss_in_half_precision_and_under_autocast(dtype: torch.dtype) -> None:
    model, data = tiny_model(), batch()
    expected = model(**data, smoothing=0.1).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = model(**data, smoothing=0.1).loss
    automatic.backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad()
    half = model.to(dtype)(**data, smoothing=0.1).loss
    half.backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(automatic, expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(half, expected, rtol=0.05, atol=0.05)
