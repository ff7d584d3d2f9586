"""Counted arithmetic against PyTorch's own count of what really runs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniDecoderModel,
    VaswaniEncoderConfig,
    VaswaniEncoderModel,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
)
from vaswani.insight.arithmetic import (
    forward_flops,
    matrix_peak,
    prediction_flops,
    stack_flops,
    training_flops,
)

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


STACKS = {
    "encoder": (VaswaniEncoderConfig, VaswaniEncoderModel, VaswaniForMaskedLM),
    "decoder": (VaswaniDecoderConfig, VaswaniDecoderModel, VaswaniForCausalLM),
}


def one_stack(stack: str, with_head: bool = True, **fields):
    config, model, model_with_head = STACKS[stack]
    small = {"vocab_size": 50, "d_model": 32, "dropout": 0.0, "attention_dropout": 0.0}
    small |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 64}
    small |= {} if with_head or stack == "decoder" else {"pooler": False}
    kind = model_with_head if with_head else model
    return kind._from_config(config(**{**small, **fields}), attn_implementation="eager")


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("fields", [{}, {"d_model": 48}, {"ffn_bias": False, "norm_order": "post"}])
@pytest.mark.parametrize(("rows", "length"), [(3, 7), (1, 1), (2, 40)])
def test_a_stack_alone_is_counted_to_the_last_operation(stack, fields, rows, length):
    tokens = torch.randint(4, 50, (rows, length))
    for with_head in (True, False):
        model = one_stack(stack, with_head, **fields)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(tokens, **({"use_cache": False} if stack == "decoder" else {}))
        predicted = prediction_flops(model.config, rows * length) if with_head else 0
        assert stack_flops(model.config, rows, length) + predicted == counter.get_total_flops()


def test_logits_of_masked_tokens_may_take_a_transform():
    with_transform, without = (
        one_stack("encoder", mlm_transform=transform).config for transform in (True, False)
    )
    assert prediction_flops(with_transform, 10) - prediction_flops(without, 10) == 2 * 10 * 32**2
    counted = prediction_flops(without, torch.tensor(10))  # where counting must not wait for a device
    assert counted.item() == prediction_flops(without, 10)


@pytest.mark.parametrize("stack", STACKS)
def test_sparse_stacks_cost_what_they_see(stack):
    sparse = {"sparse_block_size": 4, "sparse_window_blocks": 1, "sparse_global_blocks": 1}
    fields = {f"{stack}_attention": ["sparse", "full"], "sparse_random_blocks": 1}
    spared = stack_flops(one_stack(stack).config, 1, 200) - stack_flops(
        one_stack(stack, **sparse, **fields).config, 1, 200
    )
    assert 0 < spared < 4 * 32 * 200**2


def test_measuring_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    matrix_peak(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
