"""Counted operations compared with those that PyTorch counts while running."""

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
    VaswaniForSequenceClassification,
    VaswaniForTokenClassification,
)
from vaswani.insight.arithmetic.calibration import matrix_peak
from vaswani.insight.arithmetic.flops import (
    forward_flops,
    head_flops,
    prediction_flops,
    stack_flops,
    training_flops,
)
from vaswani.insight.arithmetic.phases import Phases, Work
from vaswani.insight.arithmetic.visible_pairs import visible_pairs
from vaswani.model.compatibility import CACHE_NAME
from vaswani.model.sparse_pattern import SparsePattern

SHAPES = {
    "square": {"encoder_layers": 2, "decoder_layers": 2},
    "deep encoder": {"encoder_layers": 5, "decoder_layers": 1, "encoder_ffn_dim": 48},
    "two vocabularies": {"decoder_vocab_size": 90, "share_encoder_decoder_embeddings": False},
    "wide": {"d_model": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 3},
    "no biases": {"attention_bias": False, "ffn_bias": False, "norm_order": "pre"},
    "narrow keys": {"key_dim": 5, "encoder_attention_heads": 4},
}
STACKS = {
    "encoder": (VaswaniEncoderConfig, VaswaniEncoderModel, VaswaniForMaskedLM),
    "decoder": (VaswaniDecoderConfig, VaswaniDecoderModel, VaswaniForCausalLM),
}


def make(**fields) -> VaswaniForConditionalGeneration:
    small = {"vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    small |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    small |= {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    config = VaswaniConfig(**{**small, **fields})
    return VaswaniForConditionalGeneration._from_config(config, attn_implementation="eager")


def one_stack(stack: str, model_class=None, **fields):
    config, _, with_head = STACKS[stack]
    small = {"vocab_size": 50, "d_model": 32, "dropout": 0.0, "attention_dropout": 0.0}
    small |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 2, f"{stack}_ffn_dim": 64}
    kind = model_class or with_head
    return kind._from_config(config(**{**small, **fields}), attn_implementation="eager")


def counted(run) -> int:
    """What PyTorch counts."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 50, (rows, length))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("lengths", [(3, 7, 5), (1, 1, 1), (2, 40, 3)])
def test_operations_of_a_forward_pass_are_counted_exactly(shape, lengths):
    model, (rows, source, target) = make(**SHAPES[shape]), lengths
    inputs = {"input_ids": tokens(rows, source), "decoder_input_ids": tokens(rows, target)}
    with torch.no_grad():
        found = counted(lambda: model(**inputs, use_cache=False))
    assert forward_flops(model.config, *lengths) == found


@pytest.mark.parametrize("shape", SHAPES)
def test_operations_of_a_training_step_are_counted_exactly(shape):
    model, (rows, source, target) = make(**SHAPES[shape]), (4, 20, 9)
    inputs = {"input_ids": tokens(rows, source), "labels": tokens(rows, target)}
    found = counted(lambda: model(**inputs).loss.backward())
    assert training_flops(model.config, rows, source, target) == found
    assert Phases(model, Work(rows, source, target)).training().flops == found


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("with_head", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"d_model": 48, "key_dim": 7}, {"ffn_bias": False, "norm_order": "post"}]
)
@pytest.mark.parametrize(("rows", "length"), [(3, 7), (1, 1), (2, 40)])
def test_operations_of_one_stack_are_counted_exactly(stack, with_head, fields, rows, length):
    model = one_stack(stack, None if with_head else STACKS[stack][1], **fields)
    ids = tokens(rows, length)
    with torch.no_grad():
        found = counted(lambda: model(ids, **({"use_cache": False} if stack == "decoder" else {})))
    layers = stack_flops(model.config, stack, rows, length)
    assert layers + head_flops(model, rows, rows * length) == found
    if with_head:
        assert head_flops(model, rows, rows * length) == prediction_flops(model.config, rows * length)


@pytest.mark.parametrize(
    "model_class", [VaswaniForSequenceClassification, VaswaniForTokenClassification, VaswaniForMaskedLM]
)
def test_operations_of_a_training_step_are_counted_for_every_head(model_class):
    model, ids = one_stack("encoder", model_class), tokens(3, 9)
    of_texts = model_class is VaswaniForSequenceClassification
    labels = torch.tensor([0, 1, 0]) if of_texts else ids % 2
    found = counted(lambda: model(ids, labels=labels).loss.backward())
    assert Phases(model, Work(3, 9, 0)).training().flops == found


def test_a_training_step_of_a_decoder_reads_both_source_and_target():
    model, ids = one_stack("decoder"), tokens(3, 9)
    found = counted(lambda: model(ids, labels=ids).loss.backward())
    assert Phases(model, Work(3, 4, 5)).training().flops == found


@pytest.mark.parametrize("beams", [1, 3])
def test_reading_a_source_and_each_decoding_step(beams):
    model = make(encoder_layers=2, decoder_layers=2, key_dim=5)
    source, rows, work = tokens(2, 7), 2 * beams, Work(2, 7, 5, beams=beams)
    phases = Phases(model, work)
    with torch.no_grad():
        outputs = {}
        encoding = counted(lambda: outputs.update(encoded=model.model.encoder(source)))
        found = []
        for _past in range(work.target):
            inputs = {"encoder_outputs": outputs["encoded"], "decoder_input_ids": tokens(rows, 1)}
            inputs["past_key_values"] = outputs.get("cache")
            step = counted(lambda given=inputs: outputs.update(cache=model(**given)[CACHE_NAME]))
            found.append(step)
    of_source = phases.reading().flops - encoding  # its keys and values, which the first step computes
    assert found == [phases.step(past).flops + of_source * (past == 0) for past in range(work.target)]
    assert phases.reading().flops + phases.writing().flops == encoding + sum(found)


@pytest.mark.parametrize("beams", [1, 2])
def test_reading_a_prompt_and_each_step_after_it(beams):
    model, work = one_stack("decoder", key_dim=20), Work(2, 6, 4, beams=beams)
    phases, outputs = Phases(model, work), {}
    with torch.no_grad():
        prompt = {"input_ids": tokens(work.rows, 6), "use_cache": True, "logits_to_keep": 1}
        reading = counted(lambda: outputs.update(cache=model(**prompt)[CACHE_NAME]))
        found = [
            counted(lambda: model(tokens(work.rows, 1), past_key_values=outputs["cache"]))
            for _ in range(work.target - 1)
        ]
    assert phases.reading().flops == reading
    assert [phases.step(past).flops for past in range(work.source, work.source + work.target - 1)] == found
    assert phases.writing().flops == sum(found)


PATTERNS = {
    "encoder": SparsePattern(2, block_size=4, window_blocks=3, global_blocks=1, random_blocks=1),
    "wide": SparsePattern(3, block_size=16, window_blocks=5, global_blocks=2, random_blocks=3, seed=5),
    "tokens": SparsePattern(2, block_size=4, window_blocks=1, global_blocks=0, global_tokens=6),
    "decoder": SparsePattern(2, block_size=4, window_blocks=2, global_blocks=1, random_blocks=2, causal=True),
    "causal tokens": SparsePattern(2, block_size=4, global_blocks=0, global_tokens=5, causal=True),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_visible_pairs_are_those_of_the_reference(name):
    for length in (1, 3, 4, 5, 6, 7, 15, 16, 17, 63, 130):
        assert visible_pairs(PATTERNS[name], length) == PATTERNS[name].to_dense(length).sum()


SPARSE = {
    "sparse_block_size": 4,
    "sparse_window_blocks": 3,
    "sparse_global_blocks": 1,
    "sparse_random_blocks": 1,
}


def test_sparse_layers_count_only_visible_pairs():
    kinds = {"encoder_attention": ["sparse", "full"], "decoder_attention": ["full", "sparse"]}
    sparse = make(encoder_layers=2, decoder_layers=2, **kinds, **SPARSE).config
    full = make(encoder_layers=2, decoder_layers=2).config
    head_width = full.d_model // 2
    for source, target in ((12, 9), (64, 30), (90, 70)):
        hidden = (~sparse.sparse_pattern("encoder", 0).to_dense(source)).sum().item()
        hidden += (~sparse.sparse_pattern("decoder", 1).to_dense(target)).sum().item()
        spared = forward_flops(full, 3, source, target) - forward_flops(sparse, 3, source, target)
        assert spared == 4 * head_width * hidden * 3


@pytest.mark.parametrize("stack", STACKS)
def test_sparse_stacks_count_only_visible_pairs(stack):
    fields = {f"{stack}_attention": ["sparse", "full"], **SPARSE}
    full, sparse = one_stack(stack).config, one_stack(stack, **fields).config
    hidden = (~sparse.sparse_pattern(stack, 0).to_dense(200)).sum().item()
    assert stack_flops(full, stack, 1, 200) - stack_flops(sparse, stack, 1, 200) == 4 * 16 * hidden


def test_a_sparse_decoding_step_counts_only_the_visible_keys():
    full, sparse = one_stack("decoder"), one_stack("decoder", decoder_attention="sparse", **SPARSE)
    patterns = [sparse.config.sparse_pattern("decoder", layer).to_dense(50) for layer in range(2)]
    for past in (0, 3, 4, 29, 49):
        hidden = sum((past + 1) * 2 - pattern[:, past].sum().item() for pattern in patterns)
        steps = [Phases(model, Work(1, 1, 50)).step(past) for model in (full, sparse)]
        assert steps[0].flops - steps[1].flops == 4 * 16 * hidden
        assert steps[0].bytes - steps[1].bytes == 2 * 4 * 16 * hidden  # keys and values that are not read


def test_logits_of_masked_tokens_may_take_a_transform():
    with_transform, without = (
        one_stack("encoder", mlm_transform=transform).config for transform in (True, False)
    )
    assert prediction_flops(with_transform, 10) - prediction_flops(without, 10) == 2 * 10 * 32**2
    counted_later = prediction_flops(without, torch.tensor(10))  # where counting must not wait for a device
    assert counted_later.item() == prediction_flops(without, 10)


def test_measuring_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    matrix_peak(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), before)
