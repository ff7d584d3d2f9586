"""The numbers of "Transformer Inference Arithmetic" (kipply, 2022), as printed there.

The article rounds P to 52, 260 and 13 billion where it divides by rates, and bandwidth to 1.5e12. Two of its
numbers do not follow from its own terms and are left out: 23,000 tokens of cache on four devices, where
56 GB / 0.002 GB is 28,000, and a total of 62 ms, whose terms are 53 and 18 ms.
"""

from dataclasses import replace

import pytest

from vaswani import VaswaniDecoderConfig
from vaswani.hub.run_metadata import meta_model
from vaswani.insight.arithmetic.devices import Device
from vaswani.insight.arithmetic.estimate import estimate, relations_of
from vaswani.insight.arithmetic.memory import self_cache_bytes
from vaswani.insight.arithmetic.phases import Work

A100 = Device("A100 40 GB", {"bfloat16": 312e12}, 1.5e12, 40e9, 300e9, 8e-6)
NO_BIASES = {"position_embedding": "none", "attention_bias": False, "ffn_bias": False}
ANTHROPIC = VaswaniDecoderConfig(  # table 1 of arXiv:2112.00861
    vocab_size=65536,
    d_model=8192,
    decoder_layers=64,
    decoder_attention_heads=64,
    decoder_ffn_dim=4 * 8192,
    tie_word_embeddings=False,
    **NO_BIASES,
)


def related(devices: int, config=ANTHROPIC, **changes):
    work = Work(1, 208, 1, dtype="bfloat16", devices=devices)
    return replace(relations_of(config, work, A100), **changes)


def test_parameters():
    found = estimate(meta_model(ANTHROPIC), Work(1, 208, 1, dtype="bfloat16", devices=4), A100)
    parts = found["parameters"]
    of_layers = parts["decoder self-attention"] + parts["decoder feed-forward"]
    assert of_layers == 12 * 64 * 8192**2 == 51_539_607_552 == found["relations"]["P"]
    assert parts["embeddings"] == parts["head"] == 536_870_912
    assert of_layers + parts["embeddings"] == 52_076_478_464


def test_the_cache():
    assert related(1).cache_bytes_per_token() == 2_097_152
    assert related(1).cache_flops_per_token() == 17_179_869_184
    assert 6 * related(1).cache_flops_per_token() == related(1).flops_per_token()


@pytest.mark.parametrize("key_dim", [None, 16, 200])
def test_the_width_of_keys_changes_weights_and_cache(key_dim):
    config = VaswaniDecoderConfig(decoder_layers=2, attention_bias=False, ffn_bias=False, key_dim=key_dim)
    model = meta_model(config)
    products = [each for name, each in model.model.named_parameters() if "proj" in name or "fc" in name]
    found = related(1, config)
    assert sum(each.numel() for each in products) == found.P
    assert found.cache_bytes_per_token() == self_cache_bytes(config, 1, 1, "bfloat16")
    of_keys = sum(
        each.numel() for name, each in model.named_parameters() if "k_proj" in name or "v_proj" in name
    )
    assert found.cache_flops_per_token() == 2 * of_keys


def test_operations_per_token():
    assert related(1).flops_per_token() == 103_079_215_104


def test_below_208_tokens_memory_binds_and_above_arithmetic():
    assert related(1).tokens_at_balance() == 208
    assert related(4).memory_seconds() == pytest.approx(related(4).arithmetic_seconds(208))
    assert related(1).arithmetic_seconds(416) == pytest.approx(2 * related(1).memory_seconds())
    assert related(1).flops_per_byte_sent() == 1040


def test_a_forward_pass_takes_69_milliseconds_and_17_on_four_devices():
    assert round(1e3 * related(1).memory_seconds()) == 69
    assert round(1e3 * related(4).memory_seconds()) == 17


@pytest.mark.parametrize(("devices", "tokens"), [(3, 8_000), (4, 28_000)])
def test_tokens_of_cache_beside_the_weights(devices, tokens):
    """16 GB / 0.002 GB is "approximately 8,000": the article rounds what a token takes."""
    assert related(devices).tokens_in_memory(52_000_000_000) == pytest.approx(tokens, rel=0.05)


def test_a_large_batch_on_four_devices():
    """Its exercise: 256 rows of the 52 B model take about 21 ms of arithmetic and 4 ms of communication."""
    assert round(1e3 * related(4, P=52_000_000_000).arithmetic_seconds(256)) == 21
    assert round(1e3 * related(4).transfer_seconds(256)) == 4


GOPHER = VaswaniDecoderConfig(
    d_model=16384, decoder_layers=80, decoder_attention_heads=128, decoder_ffn_dim=4 * 16384, **NO_BIASES
)


def test_gopher_on_sixteen_devices():
    relations = related(16, GOPHER, P=260_000_000_000)
    assert round(1e3 * relations.memory_seconds()) == 22
    assert relations.message_seconds() == pytest.approx(2560e-6)
    assert round(1e6 * relations.transfer_seconds(1)) == 35
    assert round(1e3 * relations.arithmetic_seconds(512)) == 53
    assert round(1e3 * relations.transfer_seconds(512)) == 18


def test_thirteen_billion_on_one_device_and_on_two():
    thirteen = VaswaniDecoderConfig(
        d_model=5120, decoder_layers=40, decoder_attention_heads=40, decoder_ffn_dim=4 * 5120, **NO_BIASES
    )
    assert 1e3 * related(1, thirteen).memory_seconds() == pytest.approx(16.8, abs=0.05)
    assert 1e3 * related(2, thirteen).memory_seconds() == pytest.approx(8.4, abs=0.05)
    assert round(1e3 * related(2, thirteen).message_seconds()) == 1
    assert related(1, thirteen).message_seconds() == 0
    assert related(1, thirteen).transfer_seconds(512) == 0


def test_simple_relations_approximate_the_detailed_estimate():
    """Embeddings, the head, attention and the cache are counted in phases, and not in relations."""
    for devices in (1, 4):
        found = estimate(meta_model(ANTHROPIC), Work(1, 208, 2, dtype="bfloat16", devices=devices), A100)
        step, relations = found["phases"]["decoding_step"], found["relations"]
        assert step["bound_by"] == "memory"
        assert step["memory_seconds"] == pytest.approx(relations["memory_seconds"], rel=0.06)
        assert step["memory_seconds"] > relations["memory_seconds"]
        assert step["communication_seconds"] == pytest.approx(
            relations["message_seconds"] + 3 / 4 * relations["transfer_seconds"]
        )
