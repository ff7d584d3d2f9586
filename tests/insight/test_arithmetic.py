"""Counted arithmetic against PyTorch's own count of what really runs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.insight.arithmetic import forward_flops, matrix_peak, training_flops

SHAPES = {
    "square": {"encoder_layers": 2, "decoder_layers": 2},
    "deep encoder": {"encoder_layers": 5, "decoder_layers": 1, "encoder_ffn_dim": 48},
    "two vocabularies": {"decoder_vocab_size": 90, "share_encoder_decoder_embeddings": False},
    "wide": {"d_model": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 3},
    "no biases": {"attention_bias": False, "ffn_bias": False, "norm_order": "pre"},
}


def make(**fields) -> VaswaniForConditionalGeneration:
    small = {"vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    small |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    small |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = VaswaniConfig(**{**small, **fields})
    return VaswaniForConditionalGeneration._from_config(config, attn_implementation="eager")


def run(model, rows, source_length, target_length) -> torch.Tensor:
    source = torch.randint(4, 50, (rows, source_length))
    target = torch.randint(4, 50, (rows, target_length))
    return model(input_ids=source, decoder_input_ids=target, use_cache=False).logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [(3, 7, 5), (1, 1, 1), (2, 40, 3)])
def test_a_forward_pass_is_counted_to_the_last_operation(shape, lengths):
    model = make(**SHAPES[shape])
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, *lengths)
    assert forward_flops(model.config, *lengths) == counter.get_total_flops()


def test_a_step_is_three_times_that():
    model = make()
    lengths = (4, 20, 20)
    with FlopCounterMode(display=False) as counter:
        run(model, *lengths).sum().backward()
    assert training_flops(model.config, *lengths) == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_sparse_layers_cost_what_they_see():
    sparse = {"sparse_block_size": 4, "sparse_window_blocks": 1, "sparse_global_blocks": 1}
    config = make(
        encoder_attention=["sparse", "full"], encoder_layers=2, sparse_random_blocks=1, **sparse
    ).config
    full = make(encoder_layers=2).config
    pattern = config.sparse_pattern("encoder", 0)
    for length in (12, 64, 200):
        spared = forward_flops(full, 1, length, 1) - forward_flops(config, 1, length, 1)
        hidden = length**2 - pattern.to_dense(length)[0].sum().item()
        assert spared == pytest.approx(4 * config.d_model * hidden, rel=0.02)
    assert forward_flops(full, 1, 8, 1) == forward_flops(config, 1, 8, 1)


def test_measuring_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    matrix_peak(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
