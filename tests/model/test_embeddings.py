"""Positions and token embeddings against the paper's formulas."""

import math
from pathlib import Path

import pytest
import torch

from tiny import tiny_config, tiny_model, tokens
from vaswani import VaswaniForConditionalGeneration
from vaswani.model.embeddings import TABLE_LENGTH, LearnedPositions, SinusoidalPositions, TokenEmbeddings


def paper_formula(position: int, d_model: int) -> list[float]:
    """Section 3.5, a number at a time."""
    row = []
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        row += [math.sin(angle), math.cos(angle)]
    return row


@pytest.mark.parametrize("position", [0, 1, 7, 512, 5000, 1_000_000])
def test_sinusoid_is_the_papers_formula_at_any_position(position: int) -> None:
    module = SinusoidalPositions(tiny_config())
    actual = module(torch.tensor([[position]]), None, torch.float64)[0, 0]
    torch.testing.assert_close(
        actual, torch.tensor(paper_formula(position, 32), dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_concatenated_layout_puts_all_sines_first() -> None:
    positions = torch.arange(6)[None]
    pairs = SinusoidalPositions(tiny_config())(positions, 6, torch.float32)
    halves = SinusoidalPositions(tiny_config(sinusoidal_layout="concatenated"))(positions, 6, torch.float32)
    torch.testing.assert_close(halves, torch.cat([pairs[..., 0::2], pairs[..., 1::2]], dim=-1))


def test_a_batch_of_positions_reads_the_same_values_as_a_row() -> None:
    module = SinusoidalPositions(tiny_config())
    positions = torch.tensor([[0, 1, 2], [0, 0, 1]])
    by_row = torch.cat([module(row[None], None, torch.float32) for row in positions])
    torch.testing.assert_close(module(positions, 3, torch.float32), by_row, rtol=0, atol=0)


@pytest.mark.parametrize("length", [9, TABLE_LENGTH, TABLE_LENGTH + 1])
@pytest.mark.parametrize("rows", [1, 2])
def test_cached_and_computed_sinusoids_are_equal(length: int, rows: int) -> None:
    module = SinusoidalPositions(tiny_config())
    positions = torch.arange(length).repeat(rows, 1)
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.float32):
        with torch.inference_mode():
            actual = module(positions, length, dtype)
        assert actual.dtype == dtype
        torch.testing.assert_close(actual, module.encode(positions, dtype), rtol=0, atol=0)
    weight = torch.ones(1, requires_grad=True)
    (weight * module(positions, length, torch.float32)).sum().backward()
    assert not module.state_dict()


def test_learned_positions_raise_an_error_for_too_long_sequences() -> None:
    module = LearnedPositions(tiny_config(position_embedding="learned", max_position_embeddings=8))
    assert module(torch.arange(8)[None], 8, torch.float32).shape == (1, 8, 32)
    with pytest.raises(ValueError, match="a sequence of 9 tokens is longer than max_position_embeddings=8"):
        module(torch.arange(9)[None], 9, torch.float32)


def test_learned_positions_are_repeated_for_longer_sequences(tmp_path: Path) -> None:
    model = tiny_model(position_embedding="learned", max_position_embeddings=8)
    short, long = tokens(2, 8), tokens(2, 21)
    expected = model(short, labels=short).logits
    source, target = (positions.weight.clone() for positions in model.get_position_embeddings())
    with pytest.raises(ValueError, match="longer than max_position_embeddings=8"):
        model(long, labels=long)
    model.resize_position_embeddings(21)
    assert torch.equal(model(short, labels=short).logits, expected)
    for positions, before in zip(model.get_position_embeddings(), (source, target), strict=True):
        assert torch.equal(positions.weight, before.repeat(3, 1)[:21])
    logits = model(long, labels=long).logits
    model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == 21
    assert torch.equal(loaded(long, labels=long).logits, logits)
    with pytest.raises(ValueError, match="new_num_position_embeddings=0 must be at least 1"):
        model.resize_position_embeddings(0)


def test_sinusoids_need_no_more_positions() -> None:
    model, long = tiny_model(max_position_embeddings=8), tokens(2, 21)
    expected = model(long, labels=long).logits
    model.resize_position_embeddings(4096)
    assert model.config.max_position_embeddings == 4096
    assert torch.equal(model(long, labels=long).logits, expected)


def test_learned_positions_count_tokens_and_not_padding() -> None:
    model = tiny_model(position_embedding="learned", max_position_embeddings=8)
    input_ids, mask = tokens(1, 12), torch.ones(1, 12, dtype=torch.long)
    mask[:, :5] = 0
    short = model.model.encoder(input_ids[:, 5:]).last_hidden_state
    padded = model.model.encoder(input_ids, mask).last_hidden_state[:, 5:]
    torch.testing.assert_close(padded, short, rtol=1e-5, atol=1e-5)


def test_sinusoids_have_no_length_limit() -> None:
    model = tiny_model(max_position_embeddings=8)
    with torch.no_grad():
        states = model.model.encoder(tokens(1, 5000)).last_hidden_state
    assert states.isfinite().all()


def test_embeddings_are_scaled_by_the_root_of_the_width() -> None:
    scaled = TokenEmbeddings(tiny_config(), 61)
    plain = TokenEmbeddings(tiny_config(scale_embedding=False), 61)
    plain.load_state_dict(scaled.state_dict())
    ids = tokens(2, 3)
    torch.testing.assert_close(scaled(ids), plain(ids) * 32**0.5)


def test_embeddings_start_with_variance_one_over_the_width() -> None:
    weight = tiny_model(vocab_size=4000).model.encoder.embed_tokens.weight
    assert abs(weight[3:].std().item() - 32**-0.5) < 0.005
    assert weight[0].abs().sum() == 0  # padding


@pytest.mark.parametrize("token", [61, -1, 10**9])
def test_a_token_beyond_the_vocabulary_is_named(token: int) -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=f"token id {token} lies outside the vocabulary of 61 tokens"):
        model(input_ids=torch.tensor([[3, token, 5]]), labels=tokens(1, 2))
