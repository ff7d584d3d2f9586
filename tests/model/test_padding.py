"""Padding on any side changes nothing, and a row of only padding gives no NaN."""

import pytest
import torch

from tiny import batch, tiny_model, tokens
from vaswani.model.modeling_vaswani import shift_tokens_right

KERNELS = ["eager", "sdpa"]


def place(ids: torch.Tensor, places: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of `ids` [1, n] at `places` of a row of `length`, junk elsewhere, and the mask of it."""
    row, mask = tokens(1, length), torch.zeros(1, length, dtype=torch.long)
    row[0, places], mask[0, places] = ids[0], 1
    return row, mask


@pytest.mark.parametrize("implementation", KERNELS)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(
    "places", [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [0, 2, 3, 6, 8]], ids=["right", "left", "holes"]
)
def test_padding_of_source_and_target_changes_nothing(
    implementation: str, positions: str, places: list[int]
) -> None:
    model = tiny_model(implementation, position_embedding=positions)
    source, target = tokens(1, 5), tokens(1, 5)
    expected = model(input_ids=source, decoder_input_ids=target).logits
    input_ids, attention_mask = place(source, places, 9)
    decoder_input_ids, decoder_attention_mask = place(target, places, 9)
    actual = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        decoder_input_ids=decoder_input_ids,
        decoder_attention_mask=decoder_attention_mask,
    ).logits[:, places]
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_row_alone_equals_the_row_in_a_batch(implementation: str) -> None:
    model, data = tiny_model(implementation), batch(rows=4)
    together = model(**data).logits
    for row in range(4):
        source, target = 7 - row, 5 - row
        alone = model(
            input_ids=data["input_ids"][row : row + 1, :source], labels=data["labels"][row : row + 1, :target]
        )
        torch.testing.assert_close(together[row : row + 1, :target], alone.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
@pytest.mark.parametrize("implementation", KERNELS)
def test_a_fully_padded_row_gives_no_nan(implementation: str, norm_order: str, dtype: torch.dtype) -> None:
    model, data = tiny_model(implementation, norm_order=norm_order).to(dtype), batch()
    data["attention_mask"][1] = 0
    decoder_attention_mask = torch.ones_like(data["labels"])
    decoder_attention_mask[2] = 0
    output = model(**data, decoder_attention_mask=decoder_attention_mask)
    assert output.logits.isfinite().all()
    output.loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("implementation", KERNELS)
def test_a_fully_masked_query_gets_zeros(implementation: str) -> None:
    attention = tiny_model(implementation).model.encoder.layers[0].self_attn
    visible = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    visible[1] = False
    output, weights = attention(torch.randn(2, 6, 32), visible)
    torch.testing.assert_close(output[1], attention.out_proj.bias.expand(6, 32))  # the projection of zero
    assert weights is None or (weights[1] == 0).all()


@pytest.mark.parametrize("implementation", KERNELS)
def test_padding_gets_no_gradient(implementation: str) -> None:
    model, data = tiny_model(implementation), batch()
    embeds = model.get_input_embeddings()(data["input_ids"]).detach().requires_grad_()
    model(inputs_embeds=embeds, attention_mask=data["attention_mask"], labels=data["labels"]).loss.backward()
    hidden = data["attention_mask"] == 0
    assert (embeds.grad[hidden] == 0).all()
    assert (embeds.grad[~hidden].abs().sum(-1) > 0).all()


def test_labels_shift_right_behind_the_start_token() -> None:
    labels = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100]])
    assert shift_tokens_right(labels, 0, 1).tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert labels.tolist() == [[5, 6, 2, -100], [7, 2, -100, -100]]  # the caller's tensor is left alone
