"""The loss: aligned labels, ignored padding, and one normaliser for a batch however it is split."""

import pytest
import torch
from tiny import batch, tiny_model
from torch import nn


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
