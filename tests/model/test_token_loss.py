"""The loss of logits against its definition, token by token, and against the library's label smoothing."""

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from vaswani.model.losses import next_token_loss_function, token_loss_function


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(3, 5, 11)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 3:] = labels[2, 1:] = -100
    return logits, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_equals_the_cross_entropy_with_the_smoothed_distribution(batch, smoothing):
    logits, labels = batch
    total, count = 0.0, 0
    for row, position in (labels != -100).nonzero().tolist():
        wanted = torch.full((11,), smoothing / 11)
        wanted[labels[row, position]] += 1 - smoothing
        total -= (wanted * logits[row, position].log_softmax(-1)).sum()
        count += 1
    loss = token_loss_function(logits, labels, label_smoothing=smoothing)
    torch.testing.assert_close(loss, total / count)


@pytest.mark.parametrize("num_tokens", [None, 23, torch.tensor(23)])
def test_equals_the_label_smoother_of_transformers(batch, num_tokens):
    logits, labels = batch
    count = (labels != -100).sum()
    mean = LabelSmoother(epsilon=0.1)({"logits": logits}, labels)  # older versions take no num_items_in_batch
    expected = mean if num_tokens is None else mean * count / num_tokens
    torch.testing.assert_close(
        token_loss_function(logits, labels, label_smoothing=0.1, num_items_in_batch=num_tokens), expected
    )


def test_micro_batches_add_up_to_the_whole_batch(batch):
    logits, labels = batch
    count = int((labels != -100).sum())
    whole = token_loss_function(logits, labels, label_smoothing=0.1)
    parts = [
        token_loss_function(
            logits[i : i + 1], labels[i : i + 1], label_smoothing=0.1, num_items_in_batch=count
        )
        for i in range(3)
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_smoothing_moves_the_loss(batch):
    plain = token_loss_function(*batch, label_smoothing=0.0)
    assert not torch.isclose(token_loss_function(*batch, label_smoothing=0.1), plain)


@pytest.mark.parametrize("loss_function", [token_loss_function, next_token_loss_function])
@pytest.mark.parametrize("shape", [(5, 3), (15,), (3, 4), (3, 5, 1)])
def test_labels_of_another_shape_are_refused(batch, loss_function, shape):
    labels = torch.zeros(shape, dtype=torch.long)
    with pytest.raises(ValueError, match=r"labels has the shape \[.*\]; expected \[3, 5\]"):
        loss_function(batch[0], labels)


def test_ignored_labels_give_zero_loss_and_no_nan():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    loss = token_loss_function(logits, torch.full((2, 3), -100), label_smoothing=0.1)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))


def test_half_precision_logits_are_summed_in_float32(batch):
    logits, labels = batch
    loss = token_loss_function(logits.bfloat16(), labels, label_smoothing=0.1)
    expected = token_loss_function(logits.bfloat16().float(), labels, label_smoothing=0.1)
    assert loss.dtype == torch.float32
    assert loss == expected
