"""Parameters by part: exactly the model's own, whatever its type, head and configuration."""

import pytest
import torch
from torch import nn
from transformers import AutoModel

import vaswani
from vaswani import VaswaniConfig, VaswaniDecoderConfig, VaswaniEncoderConfig
from vaswani.hub.run_metadata import meta_model
from vaswani.insight.arithmetic.parameters import parameters_by_part, parameters_of_device

MODELS = [
    name
    for name in vaswani.__all__
    if name.startswith("Vaswani") and hasattr(getattr(vaswani, name), "forward")
]


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_every_model_add_up(name):
    model_class = getattr(vaswani, name)
    with torch.device("meta"):
        model = model_class(model_class.config_class())
    parts = parameters_by_part(model)
    assert sum(parts.values()) == model.num_parameters()
    stacks = model.config.stacks
    assert {part.split()[0] for part in parts} - {"embeddings", "head"} == set(stacks)


@pytest.mark.parametrize("config_class", [VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig])
def test_the_parameters_of_each_part_are_those_of_its_modules(config_class):
    stack = config_class.stacks[-1]
    fields = {f"{stack}_layers": 3, "d_model": 24, "vocab_size": 70, "embedding_norm": True}
    model = meta_model(
        config_class(**fields, **{f"{each}_attention_heads": 4 for each in config_class.stacks})
    )
    parts = parameters_by_part(model)
    layers = next(module for name, module in model.named_modules() if name.endswith(f"{stack}.layers"))

    def held(*modules: nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    assert parts[f"{stack} self-attention"] == held(*(layer.self_attn for layer in layers))
    assert parts[f"{stack} feed-forward"] == held(
        *(each for layer in layers for each in (layer.fc1, layer.fc2))
    )
    above = [
        module
        for name, module in model.named_modules()
        if name.endswith((f"{stack}.layer_norm", f"{stack}.embed_norm"))
    ]
    norms = [module for layer in layers for module in layer.modules() if isinstance(module, nn.LayerNorm)]
    assert parts[f"{stack} norms"] == held(*norms, *above)


def test_tied_weights_count_once():
    tied, apart = (
        parameters_by_part(meta_model(VaswaniConfig(vocab_size=100, **fields)))
        for fields in ({}, {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False})
    )
    assert tied["embeddings"] == 100 * 512
    assert "head" not in tied
    assert (apart["embeddings"], apart["head"]) == (2 * 100 * 512, 100 * 512)


@pytest.mark.parametrize("config_class", [VaswaniConfig, VaswaniEncoderConfig, VaswaniDecoderConfig])
def test_devices_divide_heads_and_inner_features(config_class):
    model = meta_model(config_class(), AutoModel)
    whole, share = parameters_of_device(model, 1), parameters_of_device(model, 4)
    shapes = {name: parameter.numel() for name, parameter in model.named_parameters(remove_duplicate=False)}
    assert whole == shapes
    for name, size in share.items():
        divided = ".layers." in name and name.endswith(
            (
                "q_proj.weight",
                "k_proj.bias",
                "v_proj.weight",
                "fc1.weight",
                "fc1.bias",
                "fc2.weight",
                "out_proj.weight",
            )
        )
        if divided:
            assert size == shapes[name] // 4, name
        elif name.endswith(("out_proj.bias", "fc2.bias", "norm.weight", "norm.bias")) or "embed" in name:
            assert size == shapes[name], name


def test_parameter_shares_follow_the_tensor_parallel_plan():
    """What `tensor_parallel_size` really divides: each module that the model's plan names, and no other."""
    model = meta_model(VaswaniConfig(), AutoModel)
    whole, share = parameters_of_device(model, 1), parameters_of_device(model, 2)
    divided = {name.rpartition(".")[0] for name in whole if share[name] != whole[name]}
    planned = {
        name
        for name, _ in model.named_modules()
        for pattern in model._tp_plan
        if name.split(".")[:2] == pattern.split(".")[:2] and name.split(".")[3:] == pattern.split(".")[3:]
    }
    assert divided == planned
