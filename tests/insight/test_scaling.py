"""The cost model of trainings compared with real models, and its limits."""

import itertools
from dataclasses import replace

import pytest
import torch

from scaling_model import Machine, activation_bytes, cost_of_update
from vaswani import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani.hub.run_metadata import count_parameters

BASE = VaswaniConfig(vocab_size=37000)
MACHINE = Machine(flops=3e14, memory=141e9, devices=8, within=4e11, between=5e10, latency=1e-5)
FIELDS = {
    "norm_order": ["pre", "post"],
    "position_embedding": ["learned", "sinusoidal"],
    "share_encoder_decoder_embeddings": [True, False],
    "tie_word_embeddings": [True, False],
    "attention_bias": [True, False],
    "ffn_bias": [True, False],
}


def small(**fields) -> VaswaniConfig:
    shape = {"vocab_size": 100, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2}
    shape |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_position_embeddings": 33}
    shape |= {"encoder_ffn_dim": 40, "decoder_ffn_dim": 50}
    return VaswaniConfig(**{**shape, **fields})


@pytest.mark.parametrize("values", list(itertools.product(*FIELDS.values())))
def test_parameters_are_counted_exactly(values):
    config = small(**dict(zip(FIELDS, values, strict=True)))
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(config)
    assert count_parameters(config) == model.num_parameters()


@pytest.mark.parametrize("norm_order", ["pre", "post"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_activations_kept_by_a_layer_are_counted(norm_order, stack):
    shape = {"vocab_size": 500, "d_model": 256, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024}
    shape |= {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "norm_order": norm_order}
    tokens = torch.randint(4, 500, (16, 32))

    def kept(layers: int) -> tuple[VaswaniConfig, int]:
        other = {"encoder": "decoder", "decoder": "encoder"}[stack]
        config = VaswaniConfig(**shape, **{f"{stack}_layers": layers, f"{other}_layers": 1})
        model = VaswaniForConditionalGeneration(config).train()
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved = {}

        def keep(tensor):
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids=tokens, labels=tokens)
        return config, sum(saved[place].nbytes() for place in saved.keys() - weights)

    (small_config, of_one), (large_config, of_three) = kept(1), kept(3)
    of_two = [activation_bytes(config, 2 * tokens.numel(), 4) for config in (large_config, small_config)]
    assert of_two[0] - of_two[1] == pytest.approx(of_three - of_one, rel=0.1)


@pytest.mark.parametrize("way", ["ddp", "fsdp", "hybrid"])
def test_traffic_is_zero_for_one_device_and_bounded_for_many(way):
    alone = cost_of_update(BASE, MACHINE, way, 1, 25_000)
    assert (alone.traffic, alone.exposed) == (0, 0)
    weights = 4 * count_parameters(BASE)
    most = {"ddp": 2, "fsdp": 3, "hybrid": 3.25}[way] * weights
    sent = [cost_of_update(BASE, MACHINE, way, 2**power, 25_000).traffic for power in range(1, 11)]
    assert sent == sorted(sent)
    assert sent[-1] == pytest.approx(most, rel=0.15)
    assert sent[-1] <= most


def test_sharding_divides_memory_and_replication_does_not():
    memory = {
        way: [cost_of_update(BASE, MACHINE, way, devices, 25_000).memory for devices in (1, 8, 64)]
        for way in ("ddp", "fsdp", "hybrid")
    }
    states = 16 * count_parameters(BASE)
    assert memory["ddp"][1] == memory["ddp"][2] == memory["ddp"][0] + states / 4  # buckets of gradients
    assert memory["fsdp"][0] - memory["fsdp"][1] == pytest.approx(states * 7 / 8)
    assert memory["fsdp"][0] - memory["fsdp"][2] == pytest.approx(states * 63 / 64)
    assert memory["hybrid"][1] == memory["hybrid"][2] == memory["fsdp"][1]


def test_a_slower_network_costs_time_and_larger_batches_hide_it():
    slow = replace(MACHINE, between=MACHINE.between / 10)
    fast, slowed = (cost_of_update(BASE, machine, "ddp", 64, 5_000) for machine in (MACHINE, slow))
    assert slowed.exposed > fast.exposed
    hidden = cost_of_update(BASE, slow, "ddp", 64, 1_000_000)
    assert hidden.exposed == 0
    assert (
        cost_of_update(BASE, slow, "ddp", 8, 5_000).exposed
        == cost_of_update(BASE, MACHINE, "ddp", 8, 5_000).exposed
    )
