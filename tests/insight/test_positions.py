"""Plots of positions: the paper's formula, the tables of models, and what of them is drawn."""

import math

import pytest
import torch
from transformers import BertConfig, BertModel

from drawn import check_no_texts_overlap, check_nothing_is_cut_off
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.errors import UserError
from vaswani.insight.positions import draw_positions, positions_of, sinusoids

SIZES = {"d_model": 8, "encoder_vocab_size": 9, "decoder_vocab_size": 9}
SIZES |= {f"{stack}_{name}": 1 for stack in ("encoder", "decoder") for name in ("layers", "attention_heads")}


def a_model(**fields) -> VaswaniForConditionalGeneration:
    torch.manual_seed(0)
    return VaswaniForConditionalGeneration(VaswaniConfig(**SIZES, **fields))


def test_sinusoids_are_those_of_the_paper():
    values = sinusoids(50, 6)
    for position in (0, 1, 49):
        for pair in range(3):
            angle = position / 10000 ** (2 * pair / 6)
            expected = [math.sin(angle), math.cos(angle)]
            assert values[position, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(expected, abs=1e-6)
    apart = sinusoids(50, 6, "concatenated")
    assert torch.equal(apart, torch.cat((values[:, ::2], values[:, 1::2]), dim=1))


def test_positions_of_a_model_are_its_own_encodings():
    learned = a_model(position_embedding="learned", max_position_embeddings=20)
    encoder, decoder = learned.get_position_embeddings()
    found = positions_of(learned)
    assert list(found) == ["learned, encoder", "learned, decoder"]
    assert torch.equal(found["learned, encoder"], encoder.weight)
    assert torch.equal(found["learned, decoder"], decoder.weight)
    assert torch.equal(positions_of(learned, 5)["learned, encoder"], encoder.weight[:5])
    same = positions_of(a_model(sinusoidal_layout="concatenated"), 30)
    assert list(same) == ["sinusoidal"]
    assert torch.equal(same["sinusoidal"], sinusoids(30, 8, "concatenated"))


@pytest.mark.parametrize("dark", [False, True])
def test_the_encodings_and_their_dot_products_are_drawn(dark):
    encodings = {"interleaved": sinusoids(20, 8), "concatenated": sinusoids(20, 8, "concatenated")}
    figure = draw_positions(encodings, dark=dark)
    images = [axes.images[0].get_array() for axes in figure.axes if axes.get_xlabel()]
    for values, drawn, products in zip(encodings.values(), images[::2], images[1::2], strict=True):
        assert torch.equal(torch.tensor(drawn), values)
        assert torch.allclose(torch.tensor(products), values @ values.T)
    check_nothing_is_cut_off(figure)
    check_no_texts_overlap(figure)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((0, 8), "length=0 must be at least 1 and at most 4096"),
        ((9, 9999), "width=9999 must be at least 1 and at most 4096"),
        ((9, 7), "d_model=7 must be even for sinusoidal positions; try d_model=8"),
        ((9, 2, "tensor2tensor"), "d_model=2 must be at least 4"),
        ((9, 8, "diagonal"), "sinusoidal_layout"),
    ],
)
def test_invalid_sizes_raise_an_error(size, message):
    with pytest.raises(UserError, match=message) as caught:
        sinusoids(*size)
    assert "\n" not in str(caught.value)


def test_models_without_position_encodings_raise_an_error():
    with pytest.raises(UserError, match=r"has no position encodings .* give another model"):
        positions_of(a_model(position_embedding="none"))
    learned = a_model(position_embedding="learned", max_position_embeddings=20)
    with pytest.raises(UserError, match="length=21 is more than the 20 positions that the model has learned"):
        positions_of(learned, 21)
    sides = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    bert = BertModel(BertConfig(vocab_size=9, **sides))
    with pytest.raises(UserError, match="is of type 'bert'; plot the positions of a model of vaswani"):
        positions_of(bert)
