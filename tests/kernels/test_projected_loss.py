"""A loss that is computed a few tokens at a time equals that of all at once, and so do its gradients."""

import pytest
import torch
from torch import nn

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.kernels import projected_loss as module
from vaswani.kernels.projected_loss import TokenLoss

ROWS, LENGTH, WIDTH, VOCABULARY = 3, 7, 8, 19


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, weight, which tokens are kept, and a target distribution for each of these."""
    kept = torch.rand(ROWS, LENGTH) < 0.7
    states = torch.randn(ROWS, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, requires_grad=True)
    return states, weight, kept, torch.randn(int(kept.sum()), VOCABULARY, dtype=torch.float64).softmax(-1)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -(targets * logits.log_softmax(-1)).sum()


def projected_loss(states: torch.Tensor, weight: torch.Tensor, loss: TokenLoss) -> torch.Tensor:
    """The loss of the logits `states @ weight.T`."""
    projection = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    del projection.weight  # a parameter would be another tensor
    projection.weight = weight
    return loss(states, projection)


@pytest.mark.parametrize("rows_at_a_time", [1, 4, 5, 1000])
def test_chunks_give_the_loss_and_gradients_of_the_whole(inputs, rows_at_a_time, monkeypatch):
    states, weight, kept, targets = inputs
    monkeypatch.setattr(module, "rows_per_chunk", lambda rows, weight: rows_at_a_time)
    seen = []

    def function(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        seen.append((rows.stop - rows.start, len(logits)))
        return cross_entropy(logits, targets[rows])

    loss = projected_loss(states, weight, TokenLoss(kept, function))
    gradients = torch.autograd.grad(3 * loss, (states, weight))
    expected = cross_entropy(states[kept] @ weight.t(), targets)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(3 * expected, (states, weight)))
    assert all(wanted == given <= rows_at_a_time for wanted, given in seen)
    assert sum(given for _, given in seen) == len(targets)


def test_without_kept_tokens_the_loss_is_zero(inputs):
    states, weight, kept, _ = inputs
    loss = projected_loss(
        states, weight, TokenLoss(torch.zeros_like(kept), lambda logits, rows: logits.sum())
    )
    loss.backward()
    assert loss == 0
    assert not states.grad.any()


def test_half_precision_keeps_its_dtype_and_sums_in_float32(inputs):
    states, weight, kept, targets = inputs
    halves = [tensor.detach().bfloat16().requires_grad_() for tensor in (states, weight)]

    def function(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        return cross_entropy(logits.float(), targets[rows].float())

    loss = projected_loss(*halves, TokenLoss(kept, function))
    loss.backward()
    assert loss.dtype == torch.float32
    assert [half.grad.dtype for half in halves] == [torch.bfloat16] * 2
    torch.testing.assert_close(
        loss.double(), cross_entropy(states[kept] @ weight.t(), targets), rtol=0.02, atol=0
    )


def test_under_no_grad_no_gradients_are_computed(inputs):
    states, weight, kept, targets = inputs

    def function(logits: torch.Tensor, rows: slice) -> torch.Tensor:
        assert not logits.requires_grad
        return cross_entropy(logits, targets[rows])

    with torch.no_grad():
        projected_loss(states, weight, TokenLoss(kept, function))


class Adapter(nn.Module):
    """What may take the place of the output projection."""

    def __init__(self, projection: nn.Linear):
        super().__init__()
        self.projection = projection

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return 2 * self.projection(states)


@pytest.mark.parametrize("adapted", [False, True])
def test_a_model_takes_any_loss_of_its_logits(adapted):
    shape = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": VOCABULARY}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**shape, **heads, dropout=0.0))
    if adapted:
        model.lm_head = Adapter(model.lm_head)
    batch = {"input_ids": torch.randint(3, 19, (2, 5)), "decoder_input_ids": torch.randint(3, 19, (2, 4))}
    kept = torch.tensor([[True, True, True, False], [True, False, False, False]])
    targets = torch.randn(4, VOCABULARY).softmax(-1)
    loss = TokenLoss(kept, lambda logits, rows: cross_entropy(logits, targets[rows]))
    outputs = model(**batch, token_loss=loss)
    outputs.loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    expected = cross_entropy(model(**batch).logits[kept], targets)
    expected.backward()
    assert outputs.logits is None
    torch.testing.assert_close(outputs.loss, expected)
    torch.testing.assert_close(gradients, [parameter.grad for parameter in model.parameters()])


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_autocast_converts_states_and_weight_once_and_sums_in_float32(inputs, smoothing, monkeypatch):
    states, weight, kept, targets = (each.detach() for each in inputs)
    states, weight = states.float().requires_grad_(), weight.float().requires_grad_()
    monkeypatch.setattr(module, "rows_per_chunk", lambda rows, weight: 4)
    factors = []

    def record(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        factors.append((right.dtype, right.untyped_storage().data_ptr()))
        return left @ right.t()

    monkeypatch.setattr(module, "product", record)
    labels = targets.argmax(-1)

    def loss() -> torch.Tensor:
        if smoothing is not None:
            return module.linear_cross_entropy(states[kept], weight, labels, smoothing)
        function = TokenLoss(kept, lambda logits, rows: cross_entropy(logits.float(), targets[rows].float()))
        return projected_loss(states, weight, function)

    expected = torch.autograd.grad(loss(), (states, weight))
    factors.clear()
    with torch.autocast("cpu", torch.bfloat16):
        automatic = loss()
    gradients = torch.autograd.grad(automatic, (states, weight))
    assert {dtype for dtype, _ in factors} == {torch.bfloat16}
    assert len({place for _, place in factors}) == 1 < len(factors)
    assert all(each.dtype == torch.float32 for each in (automatic, *gradients))
    torch.testing.assert_close(gradients, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kept", ["all", "some", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cross_entropy_of_logits_is_pytorchs(kept: str, smoothing: float, dtype: torch.dtype) -> None:
    labels = torch.randint(2000, (31,))
    labels[{"all": slice(0), "some": slice(0, None, 3), "none": slice(None)}[kept]] = -100
    logits = (5 * torch.randn(31, 2000)).to(dtype).requires_grad_()
    before = logits.detach().clone()
    exact = logits.detach().double().requires_grad_()
    expected = nn.functional.cross_entropy(exact, labels, reduction="sum", label_smoothing=smoothing)
    loss = module.summed_cross_entropy(logits, labels, smoothing)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-4)
    (gradient,) = torch.autograd.grad(2 * loss, logits)
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-4}
    torch.testing.assert_close(gradient.double(), torch.autograd.grad(2 * expected, exact)[0], **tolerance)
    assert torch.equal(logits, before), "the logits are the model's"
    with torch.no_grad():
        assert torch.equal(module.summed_cross_entropy(logits, labels, smoothing), loss)


@pytest.mark.parametrize("label", [2000, -1])
def test_a_label_outside_the_vocabulary_raises_an_error(label: int) -> None:
    labels = torch.tensor([3, label])
    with pytest.raises(IndexError, match=str(label)):
        module.summed_cross_entropy(torch.randn(2, 2000), labels)
    with pytest.raises(IndexError, match=str(label)):
        module.linear_cross_entropy(torch.randn(2, 8), torch.randn(2000, 8), labels)


def test_a_second_gradient_is_refused() -> None:
    logits = torch.randn(2, 2000, requires_grad=True)
    scale = torch.ones((), requires_grad=True)
    loss = scale * module.summed_cross_entropy(logits, torch.tensor([3, 4]))
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
