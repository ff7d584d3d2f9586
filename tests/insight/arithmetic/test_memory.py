"""Estimated memory compared with the tensors that exist."""

import pytest
import torch

from vaswani import (
    VaswaniConfig,
    VaswaniDecoderConfig,
    VaswaniEncoderConfig,
    VaswaniForCausalLM,
    VaswaniForConditionalGeneration,
    VaswaniForMaskedLM,
)
from vaswani.insight.arithmetic.estimate import memory
from vaswani.insight.arithmetic.memory import (
    activation_bytes,
    cross_cache_bytes,
    self_cache_bytes,
    tensors_of_activation,
)
from vaswani.insight.arithmetic.phases import Phases, Work
from vaswani.model.compatibility import CACHE_NAME

KINDS = {
    "encoder-decoder": (VaswaniConfig, VaswaniForConditionalGeneration),
    "encoder": (VaswaniEncoderConfig, VaswaniForMaskedLM),
    "decoder": (VaswaniDecoderConfig, VaswaniForCausalLM),
}
FIELDS = {
    "as it is": {},
    "no dropout": {"dropout": 0.0, "attention_dropout": 0.0},
    "norms first": {"norm_order": "pre"},
    "all dropouts": {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1},
    "gelu": {"activation_function": "gelu_new", "attention_dropout": 0.0},
    "narrow keys": {"key_dim": 4},
    "wide keys": {"key_dim": 48, "attention_dropout": 0.0},
    "sparse": {"encoder_attention": "sparse", "decoder_attention": "sparse", "sparse_block_size": 16},
}


def make(kind: str, **fields):
    config_class, model_class = KINDS[kind]
    shape = {"vocab_size": 200, "d_model": 64}
    for stack in ("encoder", "decoder"):
        shape |= {f"{stack}_ffn_dim": 200, f"{stack}_layers": 2, f"{stack}_attention_heads": 4}
    known = config_class().to_dict()
    return model_class(
        config_class(**{name: value for name, value in {**shape, **fields}.items() if name in known})
    )


def kept(model, half: bool, **inputs) -> int:
    """Bytes of all storages that autograd keeps of a training's forward pass, without parameters."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages = {}

    def keep(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=half),
    ):
        model(**inputs, smoothing=0.1)
    return sum(storage.nbytes() for place, storage in storages.items() if place not in weights)


@pytest.mark.parametrize("lengths", [(20, 12), (100, 70)])  # the first keep their attention weights
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("kind", KINDS)
def test_activations_kept_by_a_training_are_counted(kind, fields, dtype, lengths):
    model = make(kind, **FIELDS[fields]).train()
    source, target = (torch.randint(4, 200, (3, length)) for length in lengths)
    inputs = {"input_ids": source, "labels": target if kind == "encoder-decoder" else source}
    found = kept(model, dtype == "bfloat16", **inputs)
    found -= 4 * model.lm_head.weight.numel()  # the loss computes this gradient at once; it is no activation
    work = Work(3, lengths[0], lengths[1] if kind == "encoder-decoder" else 0, dtype=dtype, on_cpu=True)
    told = memory(model, Phases(model, work))["training"]
    told_activations = told["activations"] + told["weights_in_half_precision"]
    if dtype == "bfloat16":  # the projection is copied a few rows at a time
        told_activations -= 2 * model.lm_head.weight.numel()
    assert told_activations == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_gradients_and_optimizer_states(kind):
    model = make(kind).train()
    ids = torch.randint(4, 200, (2, 9))
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    told = memory(model, Phases(model, Work(2, 9, 0 if kind == "encoder" else 9)))["training"]
    assert told["weights"] == sum(each.nbytes for each in model.parameters())
    assert told["gradients"] == sum(each.grad.nbytes for each in model.parameters())
    states = [each for state in optimizer.state.values() for name, each in state.items() if name != "step"]
    assert told["optimizer"] == sum(each.nbytes for each in states)
    assert told["all"] == sum(size for name, size in told.items() if name != "all")


def cache_tensors(cache) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("beams", [1, 3])
def test_keys_and_values_of_source_and_target(dtype, beams):
    model = make("encoder-decoder", key_dim=5).to(getattr(torch, dtype)).eval()
    source, target = torch.randint(4, 200, (2, 11)), torch.randint(4, 200, (2 * beams, 7))
    with torch.no_grad():
        encoded = model.model.encoder(source)
        cache = model(encoder_outputs=encoded, decoder_input_ids=target, use_cache=True)[CACHE_NAME]
    told = memory(model, Phases(model, Work(2, 11, 7, beams=beams, dtype=dtype)))["inference"]
    assert told["self_attention_cache"] == cache_tensors(cache.self_attention_cache)
    assert told["cross_attention_cache"] == cache_tensors(cache.cross_attention_cache)
    assert told["weights"] == sum(each.nbytes for each in model.parameters())


def test_keys_and_values_of_a_prompt_and_its_continuation():
    model = make("decoder", key_dim=20).eval()
    model.generation_config.eos_token_id = None
    prompt = torch.randint(4, 200, (3, 5))
    written = model.generate(
        prompt, max_new_tokens=6, num_beams=1, do_sample=False, return_dict_in_generate=True
    )
    told = memory(model, Phases(model, Work(3, 5, 6)))["inference"]
    assert told["self_attention_cache"] == cache_tensors(written[CACHE_NAME])
    assert "cross_attention_cache" not in told or told["cross_attention_cache"] == 0


def test_devices_share_the_cache_and_what_layers_keep():
    config = VaswaniConfig()
    assert self_cache_bytes(config, 4, 10, "bfloat16") * 2 == self_cache_bytes(config, 4, 10, "float32")
    assert cross_cache_bytes(VaswaniDecoderConfig(), 4, 10, "float32") == 0
    alone, shared = (activation_bytes(config, 4, 20, 20, devices=devices) for devices in (1, 4))
    assert alone / 4 < shared < alone
    model = make("encoder-decoder")
    one, four = (
        memory(model, Phases(model, Work(2, 8, 8, devices=devices)))["inference"] for devices in (1, 4)
    )
    assert one["self_attention_cache"] == 4 * four["self_attention_cache"]
    assert one["weights"] > four["weights"] > one["weights"] / 4


def test_activation_functions_keep_one_or_two_tensors():
    assert [tensors_of_activation(name) for name in ("relu", "gelu", "silu")] == [1, 2, 2]
    assert tensors_of_activation("relu", drops=True) == 2
    assert tensors_of_activation("gelu", drops=True) == 2
